// kdelta inspect: config, tensors, sizes and memory plan, from config.json and headers alone; values with --check.
#include <fmt/core.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <optional>

#include "frontends/cli/commands.h"
#include "frontends/cli/json_text.h"
#include "frontends/cli/terminal.h"
#include "frontends/cli/usage.h"
#include "kdelta/api/check_values.h"

namespace kdelta::cli {
namespace {

std::string size(int64_t bytes) {
  return human_bytes(static_cast<double>(bytes));
}

int64_t tokens_of_step(const Engine& engine, bool decode) {
  return decode ? 1 : std::min<int64_t>(512, engine.max_length());
}

// Attention is counted with the longest context, which the title says.
void print_ops(const Engine& engine, bool decode) {
  const int64_t tokens = tokens_of_step(engine, decode);
  fmt::print("\none step, {}, in a context of {} (-c)\n  {:<16} {:<14} {:>6} {:>12} {:>12}\n",
             decode ? "one token" : fmt::format("{} tokens of a prompt", tokens), engine.max_length(), "op", "variant",
             "calls", "moves", "GFLOP");
  for (const StepOp& op : engine.explain_step(tokens, decode))
    fmt::print("  {:<16} {:<14} {:>6} {:>12} {:>12.3f}\n", op.op, op.variant, op.calls, human_bytes(op.bytes),
               op.flops / 1e9);
}

// Every name that --force takes.
void print_variants() {
  fmt::print("\nkernels of each op, best first (--force OP:VARIANT; this machine: {})\n",
             fmt::join(machine_isa(), ", "));
  for (const OpVariants& op : op_variants()) {
    std::string names;
    for (const auto& v : op.variants) names += fmt::format("{}{} ({})", names.empty() ? "" : ", ", v.name, v.needs);
    fmt::print("  {:<16} {}\n", op.op, names);
  }
}

void print_ops_json(const Engine& engine) {
  fmt::print(",\"steps\":[");
  for (const bool decode : {false, true}) {
    const int64_t tokens = tokens_of_step(engine, decode);
    fmt::print("{}{{\"tokens\":{},\"context\":{},\"decode\":{},\"ops\":[", decode ? "," : "", tokens,
               engine.max_length(), decode);
    bool first = true;
    for (const StepOp& op : engine.explain_step(tokens, decode)) {
      fmt::print("{}{{\"op\":{},\"variant\":{},\"calls\":{},\"bytes\":{:.0f},\"flops\":{:.0f}}}", first ? "" : ",",
                 quoted(op.op), quoted(op.variant), op.calls, op.bytes, op.flops);
      first = false;
    }
    fmt::print("]}}");
  }
  fmt::print("],\"variants\":{{");
  bool first_op = true;
  for (const OpVariants& op : op_variants()) {
    fmt::print("{}{}:[", first_op ? "" : ",", quoted(op.op));
    first_op = false;
    for (size_t i = 0; i < op.variants.size(); ++i)
      fmt::print("{}{{\"name\":{},\"isa\":{}}}", i == 0 ? "" : ",", quoted(op.variants[i].name),
                 quoted(op.variants[i].needs));
    fmt::print("]");
  }
  fmt::print("}}");
}

// What the files hold.
void print_info(const ModelInfo& info) {
  fmt::print("{} ({})\n", info.kind, info.architecture);
  for (const auto& [name, value] : info.fields) fmt::print("  {:<20} {}\n", name, value);
  if (info.tensors == 0) fmt::print("\n{} parameters by config.json; no tensor file was read\n", info.parameters);
  if (info.tensors > 0) {
    fmt::print("\n{} parameters in {} tensors, {} files, {}\n", info.parameters, info.tensors, info.files,
               size(info.bytes));
    for (const auto& g : info.groups)
      fmt::print("  {:<32} {:<8} {:>8} tensors {:>12}{}\n", g.name, g.dtype, g.tensors, size(g.bytes),
                 g.inputs.empty() ? "" : "  inputs " + g.inputs);
  }
}

void print_notes(const ModelInfo& info, bool tensors) {
  for (const std::string& note : info.notes) fmt::print("note: {}\n", note);
  if (!tensors) return;
  fmt::print("\n");
  for (const auto& t : info.tensor_list)
    fmt::print("{}  {}  {}  {}  {}\n", t.name, t.dtype, t.shape, size(t.bytes), t.file);
}

using Damaged = std::optional<std::vector<DamagedTensor>>;  // none: values were not looked at

Damaged look_at_values(const InspectOptions& o) {
  if (!o.check) return {};
  if (o.load.dummy_weights) throw UsageError("--check: goes without --load-format dummy, which has no values");
  ProgressBar bar("reading", false);
  return check_values(
      o.load.model, [&](int64_t done, int64_t total) { bar.update(done, total, "B"); }, &interrupted);
}

void print_damaged(const Damaged& damaged) {
  if (!damaged) return;
  fmt::print("\nvalues: {}\n", damaged->empty() ? "all are numbers" : "not all are numbers");
  for (const DamagedTensor& d : *damaged)
    fmt::print("  {} ({}, {}): {} of {} values are NaN or infinite, the first is number {}\n", d.name, d.dtype, d.file,
               d.damaged, d.values, d.first);
}

void print_damaged_json(const Damaged& damaged) {
  if (!damaged) return;
  fmt::print(",\"damaged\":[");
  for (size_t i = 0; i < damaged->size(); ++i) {
    const DamagedTensor& d = (*damaged)[i];
    fmt::print("{}{{\"name\":{},\"dtype\":{},\"file\":{},\"values\":{},\"damaged\":{},\"first\":{}}}",
               i == 0 ? "" : ",", quoted(d.name), quoted(d.dtype), quoted(d.file), d.values, d.damaged, d.first);
  }
  fmt::print("]");
}

void print_text(const Engine& engine, const InspectOptions& o, const Damaged& damaged) {
  print_info(engine.info());
  const MemoryReport& m = engine.memory();
  const std::string each = o.load.ranks > 1 ? fmt::format(" of each of {} ranks", o.load.ranks) : "";
  fmt::print("\nmemory plan{} ({} tokens, {} sequences at most, activations {}, {})\n", each, engine.max_length(),
             o.load.max_sequences, o.load.dtype, engine.device_summary());
  fmt::print("  {:<32} {:>12}\n", "program and tokenizer", size(m.program));
  fmt::print("  {:<32} {:>12}\n  {:<32} {:>12}\n", "weights, mapped", size(m.weights_mapped), "weights, converted",
             size(m.weights_converted));
  fmt::print("  {:<32} {:>12}  ({} each)\n", "recurrent and convolution slots", size(m.slots), size(m.sequence_bytes));
  fmt::print("  {:<32} {:>12}  ({} per token)\n", "latent pages", size(m.pages), size(m.token_bytes));
  fmt::print("  {:<32} {:>12}\n  {:<32} {:>12}\n", "scratch of a step", size(m.scratch), "logits", size(m.logits));
  fmt::print("  {:<32} {:>12}\n  {:<32} {:>12}\n", "batches, lists and requests", size(m.batch + m.host), "total",
             size(m.total()));
  fmt::print("\ntokenizer: {}\n", engine.has_tokenizer() ? "found" : engine.tokenizer_problem());
  print_notes(engine.info(), o.tensors);
  print_damaged(damaged);
  if (o.ops) {
    print_ops(engine, false);
    print_ops(engine, true);
    print_variants();
  }
}

void print_memory_json(const MemoryReport& m, int ranks) {
  fmt::print(
      ",\"memory\":{{\"ranks\":{},\"program\":{},\"weights_mapped\":{},\"weights_converted\":{},\"slots\":{},\"pages\":"
      "{},"
      "\"scratch\":{},\"logits\":{},\"batch\":{},\"host\":{},\"slot_bytes\":{},\"token_bytes\":{},\"total\":{}}}",
      ranks, m.program, m.weights_mapped, m.weights_converted, m.slots, m.pages, m.scratch, m.logits, m.batch, m.host,
      m.sequence_bytes, m.token_bytes, m.total());
}

// `engine`: null when the model is described alone.
void print_json(const ModelInfo& info, const Engine* engine, const InspectOptions& o, const Damaged& damaged = {}) {
  fmt::print("{{\"kind\":{},\"architecture\":{},\"fields\":{{", quoted(info.kind), quoted(info.architecture));
  for (size_t i = 0; i < info.fields.size(); ++i)
    fmt::print("{}{}:{}", i == 0 ? "" : ",", quoted(info.fields[i].first), quoted(info.fields[i].second));
  fmt::print("}},\"parameters\":{},\"tensors\":{},\"files\":{},\"bytes\":{}", info.parameters, info.tensors, info.files,
             info.bytes);
  if (engine != nullptr) print_memory_json(engine->memory(), o.load.ranks);
  if (!info.refused.empty()) fmt::print(",\"refused\":{}", quoted(info.refused));
  fmt::print(",\"groups\":[");
  for (size_t i = 0; i < info.groups.size(); ++i)
    fmt::print("{}{{\"name\":{},\"dtype\":{},\"inputs\":{},\"tensors\":{},\"bytes\":{}}}", i == 0 ? "" : ",",
               quoted(info.groups[i].name), quoted(info.groups[i].dtype), quoted(info.groups[i].inputs),
               info.groups[i].tensors, info.groups[i].bytes);
  fmt::print("],\"notes\":[");
  for (size_t i = 0; i < info.notes.size(); ++i) fmt::print("{}{}", i == 0 ? "" : ",", quoted(info.notes[i]));
  fmt::print("]");
  if (o.tensors) {
    fmt::print(",\"tensor_list\":[");
    for (size_t i = 0; i < info.tensor_list.size(); ++i) {
      const auto& t = info.tensor_list[i];
      fmt::print("{}{{\"name\":{},\"dtype\":{},\"shape\":{},\"bytes\":{},\"file\":{}}}", i == 0 ? "" : ",",
                 quoted(t.name), quoted(t.dtype), t.shape, t.bytes, quoted(t.file));
    }
    fmt::print("]");
  }
  print_damaged_json(damaged);
  if (engine != nullptr && o.ops) print_ops_json(*engine);
  fmt::print("}}\n");
}

void show_foreign(const ModelInfo& info, const InspectOptions& o) {
  if (o.json) {
    print_json(info, nullptr, o);
  } else {
    print_info(info);
    print_notes(info, o.tensors);
  }
  std::fflush(stdout);
}

}  // namespace

int inspect(const InspectOptions& o) {
  LoadOptions load = o.load;
  load.headers_only = true;
  check_load(load);
  // Shown, and refused by load() all the same: what cannot be loaded is no success.
  if (!load.dummy_weights)
    if (const auto foreign = describe_foreign(load.model)) show_foreign(*foreign, o);
  const Engine engine = Engine::load(load);
  const Damaged damaged = look_at_values(o);
  if (o.json)
    print_json(engine.info(), &engine, o, damaged);
  else
    print_text(engine, o, damaged);
  return damaged && !damaged->empty() ? kExitFailed : 0;
}

}  // namespace kdelta::cli
