// How grouped_linear on AMX cuts its pairs: segments of at most 1,024 pairs of one expert, packed and multiplied in
// waves whose packed tokens fit a bounded buffer.
#pragma once

#include "kdelta/ops/common/cpu/amx_sizes.h"

namespace kdelta {

struct TokenSegment {
  int64_t expert, first, count;
  int64_t offset;  // bytes into the packed tokens of the wave
};

KDELTA_INLINE int64_t segment_capacity(int64_t P, int64_t E) {
  return (P < E ? P : E) + P / kTileTokens + 1;
}

// Packing at most doubles the pairs (17 of them take two blocks of 16); a wave holds 32 MB or one segment.
KDELTA_INLINE int64_t wave_bytes(int64_t P, int64_t K) {
  const int64_t all = 2 * P * tile_columns(K) * 64, one = packed_token_bytes(kTileTokens, K);
  const int64_t most = one > (int64_t{32} << 20) ? one : int64_t{32} << 20;
  return all < most ? all : most;
}

KDELTA_INLINE int64_t segment_list_bytes(int64_t P, int64_t E) {
  return (segment_capacity(P, E) * static_cast<int64_t>(sizeof(TokenSegment)) + 63) / 64 * 64;
}

}  // namespace kdelta
