#include "kdelta/ops/linear/cuda_plan.h"

#include <algorithm>
#include <span>

namespace kdelta {
namespace {

// Clocks of a tile's step: its products (256 tokens: 1,024 at the unit's rate), or the bytes that it waits for; and
// what a tile costs around its steps, and the second kernel.
int64_t step_clocks(int tokens) {
  return std::max<int64_t>(440, tokens * 9 / 2);
}
constexpr int64_t kTileClocks = 3000, kReduceClocks = 6000;

// Of 128 columns: two warpgroups scale and add 64 x tokens sums four times, two instructions a sum.
int64_t fp8_step_clocks(int tokens) {
  return std::max<int64_t>(880, tokens * 10);
}

int64_t divide_up(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

GemmPlan least_clocks(int64_t T, int64_t row_tiles, int64_t steps, int multiprocessors, std::span<const int> widths,
                      int64_t (*clocks_of)(int)) {
  GemmPlan best;
  int64_t least = -1;
  for (const int tokens : widths) {
    const int64_t tiles = row_tiles * divide_up(T, tokens);
    for (int splits = 1; splits <= 8; ++splits) {
      if (splits > 1 && (tiles * splits > multiprocessors || steps < 8 * splits)) break;
      const int64_t rounds = divide_up(tiles * splits, multiprocessors);
      const int64_t clocks =
          rounds * (divide_up(steps, splits) * clocks_of(tokens) + kTileClocks) + (splits > 1 ? kReduceClocks : 0);
      if (least < 0 || clocks < least) least = clocks, best = {.tokens = tokens, .splits = splits};
    }
  }
  return best;
}

}  // namespace

GemmPlan gemm_plan(int64_t T, int64_t row_tiles, int64_t steps, int multiprocessors) {
  constexpr int kTokens[] = {32, 64, 128, 256};
  return least_clocks(T, row_tiles, steps, multiprocessors, kTokens, step_clocks);
}

GemmPlan fp8_plan(int64_t T, int64_t row_tiles, int64_t steps, int multiprocessors) {
  constexpr int kTokens[] = {64, 128};
  return least_clocks(T, row_tiles, steps, multiprocessors, kTokens, fp8_step_clocks);
}

int64_t gemm_scratch_bytes(int multiprocessors) {
  return multiprocessors * kGemmTileRows * 256 * 4;
}

Fp8Scratch fp8_scratch(int64_t T, int64_t K, int multiprocessors) {
  const auto aligned = [](int64_t bytes) { return divide_up(bytes, 256) * 256; };
  Fp8Scratch s;
  s.codes = gemm_scratch_bytes(multiprocessors);
  s.records = s.codes + aligned(T * K);
  // A word a token and block, and 16 bytes a tile and step, of 64 tokens at least.
  s.bytes = s.records + divide_up(T, 128) * 128 * divide_up(K, 128) * 16 + divide_up(T, 64) * divide_up(K, 128) * 16;
  return s;
}

}  // namespace kdelta
