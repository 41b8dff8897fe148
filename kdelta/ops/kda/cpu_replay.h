// Replay: the updates that records describe, on rows of S [V, K], to the bit those of the step schedule:
//   s' = (s * decay) + u k, rounded to the pool's dtype, record after record
// A vector of S stays in its register for all records.
#pragma once

#include "kdelta/ops/common/cpu/parallel.h"
#include "kdelta/ops/kda/cpu_inputs.h"

namespace kdelta::kda_cpu {
inline namespace KDELTA_KDA_ISA {

// The first `count` records of one head in one slot: decay [K] | key [K] | change [V].
struct Records {
  const float* first = nullptr;
  int64_t stride = 0, count = 0, K = 0;
  const float* decay(int64_t j) const { return first + j * stride; }
  const float* key(int64_t j) const { return decay(j) + K; }
  const float* change(int64_t j) const { return decay(j) + 2 * K; }
};

// The hardware streams lines of one page well; asking this far ahead crosses page ends and the jump to the next head.
inline constexpr int64_t kStepAhead = 4096;
template <class S>
KDELTA_INLINE void prefetch_ahead(const S* p, int64_t n) {
  for (int64_t d = 0; d < n; d += 64 / static_cast<int64_t>(sizeof(S)))
    __builtin_prefetch(reinterpret_cast<const char*>(p + d) + kStepAhead, 1);
}

// Rows in flight: each is one chain of dependent operations, and rounding to bf16 makes it long.
inline constexpr int64_t kReplayRows = 8;

// R rows, of value channels v on, from src to dst, which may be one.
template <class V, class S, int64_t R, class To>
KDELTA_INLINE void replay_rows(const Records& x, int64_t v, const S* src, To* dst) {
  constexpr int64_t L = V::kLanes;
  for (int64_t d = 0; d < x.K; d += L) {
    const int64_t n = x.K - d < L ? x.K - d : L;
    V s[R];
    for (int64_t r = 0; r < R; ++r) s[r] = simd::load_lanes<V>(src + r * x.K + d, n);
    for (int64_t j = 0; j < x.count; ++j) {
      const V decay = simd::load_lanes<V>(x.decay(j) + d, n), k = simd::load_lanes<V>(x.key(j) + d, n);
      const float* u = x.change(j) + v;
      for (int64_t r = 0; r < R; ++r) s[r] = rounded<V, S>(V::fma(V::set1(u[r]), k, s[r] * decay));
    }
    for (int64_t r = 0; r < R; ++r) simd::store_lanes(s[r], dst + r * x.K + d, n);
  }
  prefetch_ahead(src, R * x.K);
}

// `rows` rows on; what dst receives is rounded to the pool's dtype S, whatever its own.
template <class V, class S, class To>
KDELTA_INLINE void replay(const Records& x, int64_t v, int64_t rows, const S* src, To* dst) {
  constexpr int64_t R = kReplayRows;
  int64_t r = 0;
  for (; r + R <= rows; r += R) replay_rows<V, S, R>(x, v + r, src + r * x.K, dst + r * x.K);
  for (; r < rows; ++r) replay_rows<V, S, 1>(x, v + r, src + r * x.K, dst + r * x.K);
}

// kda_replay: heads over the threads.
template <class V, class S>
void replay_all(const Exec& ex, const KdaReplayArgs& a, const KdaDesc& d) {
  parallel_for(ex, d.N * d.H, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t n = i / d.H, h = i % d.H, slot = a.slot.data[n], count = a.accepted.data[n] - 1;
      if (slot == -1 || count == 0) continue;
      S* s = static_cast<S*>(a.state.data) + slot * a.state.stride[0] + h * a.state.stride[1];
      replay<V, S>({a.records.at(slot, 0, h), a.records.stride[1], count, d.K}, 0, d.V, s, s);
    }
  });
}
template <class V>
void run_replay(const Exec& ex, const KdaReplayArgs& a, const KdaDesc& d) {
  if (a.state.dtype == DType::f32)
    replay_all<V, float>(ex, a, d);
  else
    replay_all<V, bf16>(ex, a, d);
}

}  // namespace KDELTA_KDA_ISA
}  // namespace kdelta::kda_cpu
