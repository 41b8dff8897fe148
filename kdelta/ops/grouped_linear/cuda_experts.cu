#include <algorithm>

#include "kdelta/ops/common/cuda/launch.cuh"
#include "kdelta/ops/grouped_linear/cuda_routing.cuh"

namespace kdelta::grouped {
namespace {

constexpr int kAtOnce = 256;  // 8 KB of kernel parameters
static_assert(sizeof(Expert) == table_bytes(1));
struct Some {
  Expert expert[kAtOnce];
};

__global__ void __launch_bounds__(kAtOnce) write_experts(const __grid_constant__ Some some, Expert* to, int count) {
  cuda::pdl_trigger();
  cuda::pdl_wait();
  const int e = static_cast<int>(threadIdx.x);
  if (e < count) to[e] = some.expert[e];
}

Expert expert(const Matrix& w) {
  return {static_cast<const uint8_t*>(w.data), w.scale, w.row_bytes, w.scale_row_bytes};
}

// Distances as integers: the matrices need not be parts of one array.
int64_t distance(const void* from, const void* to) {
  return static_cast<int64_t>(reinterpret_cast<uintptr_t>(to) - reinterpret_cast<uintptr_t>(from));
}

}  // namespace

Experts experts_of(const Exec& ex, std::span<const Matrix> w, void* scratch) {
  Experts all{.first = expert(w[0])};
  if (w.size() > 1) {
    all.data_step = distance(w[0].data, w[1].data);
    all.scale_step = distance(w[0].scale, w[1].scale);
  }
  const bool even = [&] {
    for (size_t e = 1; e < w.size(); ++e)
      if (distance(w[e - 1].data, w[e].data) != all.data_step ||
          distance(w[e - 1].scale, w[e].scale) != all.scale_step || w[e].row_bytes != w[0].row_bytes ||
          w[e].scale_row_bytes != w[0].scale_row_bytes)
        return false;
    return true;
  }();
  if (even) return all;
  auto* table = static_cast<Expert*>(scratch);
  all.table = table;
  for (size_t first = 0; first < w.size(); first += kAtOnce) {
    Some some{};
    const auto count = std::min<size_t>(kAtOnce, w.size() - first);
    for (size_t e = 0; e < count; ++e) some.expert[e] = expert(w[first + e]);
    cuda::launch(ex, "grouped_linear", {.grid = 1, .block = kAtOnce, .pdl = cuda::pdl_pays(target_of(ex), 1)},
                 write_experts, some, table + first, static_cast<int>(count));
  }
  return all;
}

}  // namespace kdelta::grouped
