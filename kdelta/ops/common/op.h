// describe -> choose -> run, the same for every op. A kernel is one row of its op's variants.inc, best first; choose()
// is a pure function from a descriptor (host-known sizes, never live lengths) to a row, and every refused row has its
// reason.
#pragma once

#include <algorithm>
#include <span>
#include <string>

#include "kdelta/core/check.h"
#include "kdelta/core/exec.h"

namespace kdelta {

// The part of a descriptor that every op shares.
struct Target {
  DeviceKind device = DeviceKind::cpu;
  IsaLevel isa = IsaLevel::portable;  // of the processor
  int threads = 1;                    // of the CPU backend
  CudaLevel cuda = CudaLevel::none;   // of the CUDA device
  int multiprocessors = 0;            // of the CUDA device
};

inline Target target_of(const Exec& ex) {
  KDELTA_CHECK(ex.scratch != nullptr && ex.options != nullptr, "incomplete Exec, or a fork that has been joined");
  if (ex.device.kind == DeviceKind::cpu) {
    KDELTA_CHECK(ex.threads != nullptr, "an Exec of the CPU without threads");
    return {.device = DeviceKind::cpu, .isa = std::min(ex.options->isa, detect_isa()), .threads = ex.threads->size()};
  }
  KDELTA_CHECK(ex.planning || ex.stream != nullptr, "an Exec of ", to_string(ex.device), " without a stream");
  const DeviceProperties& p = device_properties(ex.device);
  return {.device = ex.device.kind, .cuda = p.level, .multiprocessors = p.multiprocessors};
}

// What a row asks of the machine: a device, and the least level of it.
struct Needs {
  DeviceKind device;
  IsaLevel isa = IsaLevel::portable;
  CudaLevel cuda = CudaLevel::none;
  constexpr Needs(IsaLevel least) : device(DeviceKind::cpu), isa(least) {}
  constexpr Needs(CudaLevel least) : device(DeviceKind::cuda), cuda(least) {}
};
std::string to_string(const Needs& needs);

template <class Args, class Desc>
struct Variant {
  const char* name;
  Needs needs;
  const char* (*refuse)(const Desc&);     // nullptr: fits; else the reason. May itself be nullptr: fits everything
  int64_t (*scratch_bytes)(const Desc&);  // may be nullptr: none. Must grow with every size in Desc
  // nullptr: a CUDA row of a build without CUDA, listed for explain()
  void (*run)(const Exec&, const Args&, const Desc&, void* scratch);
};

// A row's function, or nullptr where the build has no code behind it; the function is then never referred to.
constexpr bool has_code(const Needs& needs) {
  return needs.device == DeviceKind::cpu || kCudaBuild;
}
#define KDELTA_RUN(needs, function)                           \
  [] {                                                        \
    if constexpr (::kdelta::has_code(::kdelta::Needs(needs))) \
      return function;                                        \
    else                                                      \
      return nullptr;                                         \
  }()

// Why this machine cannot run the row, whatever the call; nullptr when it can.
template <class Args, class Desc>
const char* machine_refusal(const Variant<Args, Desc>& row, const Target& target) {
  if (row.run == nullptr) return "this build has no CUDA";
  if (row.needs.device != target.device)
    return row.needs.device == DeviceKind::cpu ? "it runs on the CPU" : "it runs on a CUDA device";
  if (row.needs.isa > target.isa) return "the processor (or --isa) lacks the instructions";
  if (row.needs.cuda > target.cuda) return "the CUDA device lacks the instructions";
  return nullptr;
}

// Why this row cannot serve this descriptor; nullptr when it can.
template <class Args, class Desc>
const char* refusal(const Variant<Args, Desc>& row, const Desc& d) {
  if (const char* reason = machine_refusal(row, d.target)) return reason;
  return row.refuse == nullptr ? nullptr : row.refuse(d);
}

// A line per row: name and why it was refused. What a failed choice reports.
template <class Args, class Desc>
std::string explain(const char* op, std::span<const Variant<Args, Desc>> rows, const Desc& d) {
  std::string out = str("op ", op, ":\n");
  for (const auto& row : rows) {
    const char* reason = refusal(row, d);
    out += str("  ", row.name, ": ", reason == nullptr ? "fits" : reason, "\n");
  }
  return out;
}

// The first row that fits, or the forced one. Throws Error(invalid_argument) for an unknown forced name and
// Error(unsupported) when the forced row or every row refuses.
template <class Args, class Desc>
const Variant<Args, Desc>& choose(const char* op, std::span<const Variant<Args, Desc>> rows, const Desc& d,
                                  const Options& options) {
  const auto forced = options.force.find(op);
  if (forced == options.force.end()) {
    for (const auto& row : rows)
      if (refusal(row, d) == nullptr) return row;
    fail(ErrorCode::unsupported, "no variant serves this call\n", explain(op, rows, d));
  }
  for (const auto& row : rows) {
    if (row.name != forced->second) continue;
    if (const char* reason = refusal(row, d))
      fail(ErrorCode::unsupported, "op ", op, ": forced variant ", row.name, " refuses: ", reason);
    return row;
  }
  std::string names;
  for (const auto& row : rows) names += (names.empty() ? "" : ", ") + std::string(row.name);
  fail(ErrorCode::invalid_argument, "op ", op, ": forced variant '", forced->second, "', known: ", names);
}

// Chooses, borrows scratch, reports to the observer, runs. When planning, takes the most any row could ask for and
// returns: a smaller step may choose another row.
template <class Args, class Desc>
void run_op(const Exec& ex, const char* op, std::span<const Variant<Args, Desc>> rows, const Args& args, const Desc& d,
            const Cost& cost) {
  const Variant<Args, Desc>& row = choose(op, rows, d, *ex.options);
  if (ex.observer != nullptr) ex.observer->on_op(op, row.name, cost);
  Arena::Scope scope(*ex.scratch);
  if (ex.planning) {
    int64_t most = 0;
    for (const auto& r : rows)
      if (r.scratch_bytes != nullptr && machine_refusal(r, d.target) == nullptr)
        most = std::max(most, r.scratch_bytes(d));
    ex.scratch->take(most);
    return;
  }
  void* scratch = row.scratch_bytes != nullptr ? ex.scratch->take(row.scratch_bytes(d)) : nullptr;
  row.run(ex, args, d, scratch);
}

}  // namespace kdelta
