// linear on AMX tiles, for any Tiles with the members of AmxTiles (the test runs it on emulated ones): 1,024 tokens at
// a time are packed by the team, then the panels of weight rows are handed out.
#pragma once

#include "kdelta/ops/common/cpu/dot_amx.h"
#include "kdelta/ops/linear/cpu_kernel.h"

namespace kdelta {

template <class Tiles>
void linear_tiles(const Exec& ex, const LinearArgs& a, void* scratch) {
  const Projection all = linear_projection(a);
  const int64_t K = a.w.cols, panels = panel_count(a.w.rows);
  auto* packed = static_cast<uint8_t*>(scratch);
  uint8_t* threads = packed + packed_token_bytes(all.T < kTileTokens ? all.T : kTileTokens, K);
  for (int64_t first = 0; first < all.T; first += kTileTokens) {
    const Projection p = token_range(all, first, all.T - first < kTileTokens ? all.T - first : kTileTokens);
    const PackedTokens x = packed_tokens(p, packed);
    auto pack = [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b)
        pack_token_block(p, b, x.columns, packed + b * tile_columns(K) * 64 * x.columns);
    };
    parallel_for(ex, x.blocks, 65536 / (32 * K) + 1, pack);
    auto multiply = [&](int rank, int64_t begin, int64_t end) {
      project_panels_tiles<Tiles>(p, packed, begin, end, tile_scratch(threads, rank, K));
    };
    parallel_for_ranked(ex, panels, group_grain(panels, ex.threads->size()), multiply);
  }
}

}  // namespace kdelta
