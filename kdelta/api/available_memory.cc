#include "kdelta/api/available_memory.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <limits>

#include "kdelta/core/check.h"

namespace kdelta {
namespace {

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

// The number behind `key` in a file of "key number" lines, -1 without.
int64_t number_behind(const std::string& path, const std::string& key) {
  std::ifstream in(path);
  std::string word;
  int64_t value = -1;
  while (in >> word) {
    if (word == key && in >> value) return value;
    in.clear();
  }
  return -1;
}

// -1 without a number: no such file, or "max".
int64_t number_in(const std::string& path) {
  std::ifstream in(path);
  int64_t value = -1;
  return in >> value ? value : -1;
}

// What one control group leaves. Cached files count as used there but give way.
int64_t left_in(const std::string& folder, const char* limit, const char* used, const char* cached) {
  const int64_t most = number_in(folder + "/" + limit), now = number_in(folder + "/" + used);
  if (most < 0 || now < 0) return kNoLimit;
  return std::max<int64_t>(0, most - now + std::max<int64_t>(0, number_behind(folder + "/memory.stat", cached)));
}

// The group of this process in the second version's single tree, "" or "/a/b".
std::string own_group(const std::string& proc) {
  std::ifstream in(proc + "/self/cgroup");
  for (std::string line; std::getline(in, line);)
    if (line.starts_with("0::/")) return line == "0::/" ? "" : line.substr(3);
  return "";
}

std::string gigabytes(int64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f GB", static_cast<double>(bytes) / 1e9);
  return text;
}

// The settings that a plan grows with.
std::string shrinking(const runtime::EngineConfig& config) {
  // What is at its least already shrinks nothing.
  std::string larger = str("max_length ", config.max_length, ", token_budget ", config.token_budget);
  if (config.max_sequences > 1) larger += str(", max_sequences ", config.max_sequences);
  if (config.prefix_snapshots > 0) larger += str(", prefix_snapshots ", config.prefix_snapshots);
  if (config.drafts > 0) larger += str(", drafts ", config.drafts);
  return larger;
}

// Of a recorded step, more or less: a few thousand nodes.
constexpr int64_t kRecorded = 8 << 20;

}  // namespace

int64_t available_memory(const std::string& proc, const std::string& cgroup) {
  const int64_t kb = number_behind(proc + "/meminfo", "MemAvailable:");
  int64_t least = kb < 0 ? kNoLimit : kb * 1024;
  // A limit of any group above holds too.
  for (std::string group = own_group(proc);; group.resize(group.rfind('/'))) {
    least = std::min(least, left_in(cgroup + group, "memory.max", "memory.current", "inactive_file"));
    if (group.empty()) break;
  }
  return std::min(least,
                  left_in(cgroup + "/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"));
}

void check_memory(const Model& model, const runtime::EngineConfig& config, int64_t weights, int64_t available,
                  int64_t drafter) {
  runtime::EngineConfig alone = config;
  alone.options.threads = 1;
  const int64_t plan = runtime::plan_memory(model, alone, drafter).total();
  if (plan <= available && weights <= available - plan) return;
  fail(ErrorCode::out_of_memory, "memory: ", weights > 0 ? gigabytes(weights) + " of weights to be made and " : "",
       gigabytes(plan), " of state and scratch are needed, ", gigabytes(available),
       " are available; what shrinks the plan: ", shrinking(config));
}

void check_device_memory(const runtime::EngineConfig& config, int64_t weights, const runtime::MemoryPlan& plan,
                         int64_t available) {
  const int64_t rest = plan.on_device() + kRecorded * std::ssize(config.buckets);
  if (weights + rest <= available) return;
  fail(ErrorCode::out_of_memory, "memory: ", gigabytes(weights), " of weights and ", gigabytes(rest),
       " of state and scratch are needed, ", gigabytes(available), " are free on ", to_string(config.device),
       "; what shrinks the plan: ", shrinking(config));
}

}  // namespace kdelta
