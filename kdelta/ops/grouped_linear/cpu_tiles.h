// grouped_linear on AMX tiles, for any Tiles with the members of AmxTiles. Per wave (tile_plan.h): the team packs the
// tokens, then the panels of all segments are handed out.
#pragma once

#include "kdelta/ops/common/cpu/dot_amx.h"
#include "kdelta/ops/grouped_linear/cpu_kernel.h"
#include "kdelta/ops/grouped_linear/tile_plan.h"

namespace kdelta {

KDELTA_INLINE int64_t cut_segments(const GroupedLinearArgs& a, int64_t E, TokenSegment* segments) {
  int64_t count = 0;
  for (int64_t e = 0; e < E; ++e) {
    const int64_t end = a.expert_begin.data[e + 1];
    for (int64_t p = a.expert_begin.data[e]; p < end; p += kTileTokens)
      segments[count++] = {e, p, end - p < kTileTokens ? end - p : kTileTokens, 0};
  }
  return count;
}

// Gives the segments from `begin` on their places in the wave; returns the first that does not fit.
KDELTA_INLINE int64_t fill_wave(TokenSegment* segments, int64_t begin, int64_t count, int64_t K, int64_t room) {
  int64_t used = 0, i = begin;
  for (; i < count; ++i) {
    const int64_t bytes = packed_token_bytes(segments[i].count, K);
    if (used + bytes > room) break;
    segments[i].offset = used;
    used += bytes;
  }
  return i;
}

template <class Tiles>
void multiply_wave(const Exec& ex, const GroupedLinearArgs& a, const TokenSegment* segments, int64_t count,
                   uint8_t* packed, uint8_t* threads) {
  const int64_t K = a.x.dim(1), panels = panel_count(a.w[0].rows);
  auto pack = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const TokenSegment& s = segments[i];
      const Projection p = pair_projection(a, s.expert, s.first, s.count);
      const PackedTokens x = packed_tokens(p, packed + s.offset);
      for (int64_t b = 0; b < x.blocks; ++b)
        pack_token_block(p, b, x.columns, packed + s.offset + b * tile_columns(K) * 64 * x.columns);
    }
  };
  parallel_for(ex, count, 1, pack);
  auto multiply = [&](int rank, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end;) {
      const TokenSegment& s = segments[i / panels];
      const int64_t first = i % panels, last = panels - first < end - i ? panels : first + end - i;
      project_panels_tiles<Tiles>(pair_projection(a, s.expert, s.first, s.count), packed + s.offset, first, last,
                                  tile_scratch(threads, rank, K));
      i += last - first;
    }
  };
  parallel_for_ranked(ex, count * panels, group_grain(panels, ex.threads->size()), multiply);
}

template <class Tiles>
void grouped_linear_tiles(const Exec& ex, const GroupedLinearArgs& a, const GroupedLinearDesc& d, void* scratch) {
  auto* segments = static_cast<TokenSegment*>(scratch);
  uint8_t* packed = static_cast<uint8_t*>(scratch) + segment_list_bytes(d.P, d.E);
  const int64_t room = wave_bytes(d.P, d.K), count = cut_segments(a, d.E, segments);
  for (int64_t begin = 0; begin < count;) {
    const int64_t end = fill_wave(segments, begin, count, d.K, room);
    multiply_wave<Tiles>(ex, a, segments + begin, end - begin, packed, packed + room);
    begin = end;
  }
}

}  // namespace kdelta
