// How grouped_linear cuts its pairs for the kernels that pack tokens: segments of one expert, packed and multiplied in
// waves whose packed tokens fit a bounded buffer. Sizes: see ops/common/cpu/packed.h.
#pragma once

#include "kdelta/core/dtype.h"

namespace kdelta {

struct TokenSegment {
  int64_t expert, first, count;
  int64_t offset;  // bytes into the packed tokens of the wave
};

template <class Sizes>
KDELTA_INLINE int64_t segment_capacity(int64_t P, int64_t E) {
  return (P < E ? P : E) + P / Sizes::kTokens + 1;
}

// A wave holds 32 MB or one segment.
template <class Sizes>
KDELTA_INLINE int64_t wave_bytes(int64_t P, int64_t K) {
  const int64_t all = Sizes::packed_at_most(P, K), one = Sizes::packed(Sizes::kTokens, K);
  const int64_t most = one > (int64_t{32} << 20) ? one : int64_t{32} << 20;
  return all < most ? all : most;
}

template <class Sizes>
KDELTA_INLINE int64_t segment_list_bytes(int64_t P, int64_t E) {
  return (segment_capacity<Sizes>(P, E) * static_cast<int64_t>(sizeof(TokenSegment)) + 63) / 64 * 64;
}

template <class Sizes>
KDELTA_INLINE int64_t grouped_packed_bytes(int64_t P, int64_t E, int64_t K, int threads) {
  return segment_list_bytes<Sizes>(P, E) + wave_bytes<Sizes>(P, K) + threads * Sizes::thread(P, K);
}

}  // namespace kdelta
