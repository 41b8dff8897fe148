// Device time of an op's CUDA rows, in a graph as an engine runs them: a graph calls the op on `sets` different copies
// of its data, together larger than the L2, and the median over replays divided by the calls is the time of one. The
// share of the roof compares with a copy, read or update kernel of the same run.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kdelta/core/graph.h"
#include "kdelta/ops/common/op.h"

namespace kdelta::gpu_bench {

enum class RoofKind {
  read,    // bytes/s read
  copy,    // bytes/s read plus written, apart
  update,  // bytes/s read plus written, in place
};
const char* to_string(RoofKind kind);

// Device memory whose words are finite under fp32, bf16 and FP8, freed with the last copy.
std::shared_ptr<Buffer> filled(int64_t bytes);
// The same words from the host.
template <class T>
std::shared_ptr<Buffer> uploaded(const std::vector<T>& values);
std::shared_ptr<Buffer> upload(const void* data, int64_t bytes);
template <class T>
std::shared_ptr<Buffer> uploaded(const std::vector<T>& values) {
  return upload(values.data(), static_cast<int64_t>(values.size() * sizeof(T)));
}

struct Case {
  std::string op, variant, shape;
  Cost cost;  // of one call
  RoofKind roof = RoofKind::copy;
  int64_t footprint = 0;  // bytes of one set of data; 0: cost.bytes
  // Allocates `sets` sets of data; the returned function enqueues the op on one of them.
  std::function<std::function<void(const Exec&, int set)>(int sets)> make;
};
void add(Case c);

// An Exec with the row forced, for Case::make's function.
Exec forced(const Exec& ex, const std::string& op, const std::string& variant);

// CUDA rows of an op that this machine runs.
const Target& target();
template <class Rows>
std::vector<std::string> cuda_variants(const Rows& rows) {
  std::vector<std::string> names;
  for (const auto& row : rows)
    if (machine_refusal(row, target()) == nullptr) names.push_back(row.name);
  return names;
}

struct Flags {
  std::string filter, results, commit = "unknown", command;
};
int run(const Flags& flags);

struct Registration {
  explicit Registration(void (*f)());
};

}  // namespace kdelta::gpu_bench

#define KDELTA_GPU_BENCH(name)                                                                            \
  static void kdelta_gpu_bench_##name();                                                                  \
  static const ::kdelta::gpu_bench::Registration kdelta_gpu_registration_##name(kdelta_gpu_bench_##name); \
  static void kdelta_gpu_bench_##name()
