#include "kdelta/ops/linear/cuda_plan.h"

#include <algorithm>

namespace kdelta {
namespace {

// Clocks of a tile's step: its products (256 tokens: 1,024 at the unit's rate), or the bytes that it waits for; and
// what a tile costs around its steps, and the second kernel.
int64_t step_clocks(int tokens) {
  return std::max<int64_t>(440, tokens * 9 / 2);
}
constexpr int64_t kTileClocks = 3000, kReduceClocks = 6000;

int64_t divide_up(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

}  // namespace

GemmPlan gemm_plan(int64_t T, int64_t row_tiles, int64_t steps, int multiprocessors) {
  GemmPlan best;
  int64_t least = -1;
  for (int tokens : {32, 64, 128, 256}) {
    const int64_t tiles = row_tiles * divide_up(T, tokens);
    for (int splits = 1; splits <= 8; ++splits) {
      if (splits > 1 && (tiles * splits > multiprocessors || steps < 8 * splits)) break;
      const int64_t rounds = divide_up(tiles * splits, multiprocessors);
      const int64_t clocks =
          rounds * (divide_up(steps, splits) * step_clocks(tokens) + kTileClocks) + (splits > 1 ? kReduceClocks : 0);
      if (least < 0 || clocks < least) least = clocks, best = {.tokens = tokens, .splits = splits};
    }
  }
  return best;
}

int64_t gemm_scratch_bytes(int multiprocessors) {
  return multiprocessors * kGemmTileRows * 256 * 4;
}

}  // namespace kdelta
