// kdelta quantize: a checkpoint in smaller formats, and the sizes before and after.
#include "kdelta/api/quantize.h"

#include <fmt/core.h>

#include "frontends/cli/commands.h"
#include "frontends/cli/json_text.h"
#include "frontends/cli/terminal.h"
#include "frontends/cli/usage.h"

namespace kdelta::cli {
namespace {

std::string size(int64_t bytes) {
  return human_bytes(static_cast<double>(bytes));
}

void print_text(const QuantizeReport& r) {
  for (const auto& g : r.groups) {
    const std::string what = g.matrices > 0 ? fmt::format("{} matrices to {}", g.matrices, g.format) : g.format;
    fmt::print("{:<16} {:<26} {:>12} -> {:>12}\n", g.name, what, size(g.bytes_before), size(g.bytes_after));
  }
  fmt::print("{:<16} {:<26} {:>12} -> {:>12}\n", "tensors in all", fmt::format("{} files", r.files),
             size(r.bytes_before), size(r.bytes_after));
}

void print_json(const QuantizeReport& r) {
  fmt::print("{{\"groups\":[");
  for (size_t i = 0; i < r.groups.size(); ++i) {
    const auto& g = r.groups[i];
    fmt::print("{}{{\"name\":{},\"format\":{},\"matrices\":{},\"bytes_before\":{},\"bytes_after\":{}}}",
               i == 0 ? "" : ",", quoted(g.name), quoted(g.format), g.matrices, g.bytes_before, g.bytes_after);
  }
  fmt::print(
      "],\"bytes_before\":{},\"bytes_after\":{},\"files\":{},\"files_kept\":{},\"files_redone\":{},\"buffer_bytes\":"
      "{}}}\n",
      r.bytes_before, r.bytes_after, r.files, r.files_kept, r.files_redone, r.buffer_bytes);
}

void say_what_was_there(const QuantizeReport& r) {
  if (r.files_kept > 0) say("{} of {} files were there from an earlier run\n", r.files_kept, r.files);
  if (r.files_redone > 0) say("{} files were there but not as an earlier run left them: made again\n", r.files_redone);
}

void say_what_is_there(const QuantizeReport& r) {
  if (r.files_kept > 0)
    say("{} of {} files are there from an earlier run and kept if they are as it left them\n", r.files_kept, r.files);
  if (r.files_redone > 0) say("{} files are there that no run finished: they would be made again\n", r.files_redone);
}

}  // namespace

int quantize(const QuantizeFlags& flags) {
  QuantizeOptions o = flags.quantize;
  if (o.out.empty() && !o.dry_run) throw UsageError("--out: missing, expected the name of the new directory");
  QuantizeReport report;
  {
    ProgressBar bar("quantising");
    o.progress = [&](int64_t done, int64_t total) { bar.update(done, total, "B"); };
    o.cancel = &interrupted;
    try {
      report = kdelta::quantize(o);
    } catch (...) {
      if (interrupted) say("finished files stay in {}.partial; the same command goes on\n", o.out);
      throw;
    }
  }
  if (flags.json)
    print_json(report);
  else
    print_text(report);
  o.dry_run ? say_what_is_there(report) : say_what_was_there(report);
  if (!o.dry_run) say("written to {}\n", o.out);
  if (o.qkv == "int8" || o.experts == "int8") say("int8 is for other engines: kdelta does not load it\n");
  return 0;
}

}  // namespace kdelta::cli
