// kdelta serve: the OpenAI-compatible server.
#include "frontends/server/serve.h"

#include <filesystem>
#include <fstream>

#include "frontends/cli/commands.h"
#include "frontends/cli/terminal.h"
#include "frontends/cli/usage.h"

namespace kdelta::cli {
namespace {

// A key a line; empty lines and those that begin with # are none.
std::vector<std::string> keys_of(const ServeFlags& o) {
  std::vector<std::string> keys = o.keys;
  if (!o.key_file.empty()) {
    std::ifstream in(o.key_file);
    if (!in) throw UsageError("--api-key-file: '" + o.key_file + "' cannot be opened");
    for (std::string line; std::getline(in, line);) {
      while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
      if (!line.empty() && line.front() != '#') keys.push_back(line);
    }
    if (keys.empty()) throw UsageError("--api-key-file: '" + o.key_file + "' holds no key");
  }
  for (const std::string& key : keys)
    if (key.empty()) throw UsageError("--api-key: an empty key");
  return keys;
}

std::vector<std::string> names_of(const ServeFlags& o) {
  if (!o.names.empty()) return o.names;
  std::filesystem::path path = std::filesystem::absolute(o.load.model).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  return {path.filename().string()};
}

std::chrono::milliseconds of_seconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

}  // namespace

int serve(const ServeFlags& o) {
  check_load(o.load);
  server::ServeOptions s;
  s.http.host = o.host;
  s.http.port = o.port;
  s.http.max_body = o.max_body_mb << 20;
  s.http.max_bodies = std::max(s.http.max_bodies, s.http.max_body);
  s.http.max_connections = o.max_connections;
  s.http.ping_interval = of_seconds(o.ping_interval);
  s.http.write_timeout = of_seconds(o.stall_timeout);
  s.api.names = names_of(o);
  s.api.keys = keys_of(o);
  s.api.origins = o.origins;
  s.api.timeout = of_seconds(o.timeout);
  s.api.retries.window = of_seconds(o.retry_window);
  s.api.metrics_prefix = o.metrics_prefix;
  if (!o.no_log) s.api.log = [](const std::string& line) { say("{}\n", line); };
  s.service.max_waiting = o.max_waiting;
  s.service.step_limit = of_seconds(o.step_timeout);
  s.shutdown_timeout = of_seconds(o.shutdown_timeout);
  return server::serve(
      s,
      [&] {
        return load_engine(o.load, o.quiet ? LoadReport::silent : LoadReport::whole,
                           {.max_sequences = "--max-num-seqs"});
      },
      [&](const std::string& line) {
        if (!o.quiet) say("{}\n", line);
      });
}

}  // namespace kdelta::cli
