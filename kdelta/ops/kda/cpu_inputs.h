// What every CPU schedule of kda starts from: up to kKdaChunk tokens of one head in fp32, normalised, gated,
// zero-padded. Decays are exp(g), at most 1: schedules multiply them and never form exp(-g), so any gate, -inf and 0
// included, is exact.
#pragma once

#include <cmath>

#include "kdelta/ops/common/cpu/simd_math.h"
#include "kdelta/ops/kda/variants.h"

// Each instruction set compiles these headers into a namespace of its own: 512-bit templates are instantiated with
// three sets of flags, and the linker must not hand the AMX file's copy to a processor without its extensions.
#if defined(__AMX_TILE__)
#define KDELTA_KDA_ISA isa_amx
#elif defined(__AVX512BF16__)
#define KDELTA_KDA_ISA isa_avx512_bf16
#elif defined(__AVX512F__)
#define KDELTA_KDA_ISA isa_avx512
#elif defined(__AVX2__)
#define KDELTA_KDA_ISA isa_avx2
#else
#define KDELTA_KDA_ISA isa_portable
#endif

namespace kdelta::kda_cpu {
inline namespace KDELTA_KDA_ISA {

// Whole vectors of every instruction set, in pairs (the chunk schedule packs two).
KDELTA_INLINE int64_t padded(int64_t n) {
  return (n + 31) / 32 * 32;
}
KDELTA_INLINE int64_t align64(int64_t bytes) {
  return (bytes + 63) / 64 * 64;
}

// Hands out 64-byte aligned pieces of one thread's scratch; with no memory behind it, it measures.
struct Carver {
  char* base = nullptr;
  int64_t used = 0;
  template <class T>
  KDELTA_INLINE T* take(int64_t count) {
    T* p = reinterpret_cast<T*>(base + used);
    used += align64(count * static_cast<int64_t>(sizeof(T)));
    return p;
  }
};

// Rows of `Kp` and `Vp` floats (padded K, padded width of the task's value range); the padding of q, k and decay is
// zero.
struct Tokens {
  int64_t K = 0, Kp = 0, Vp = 0;
  float *q = nullptr, *k = nullptr, *decay = nullptr;  // [64, Kp]; q carries the scale
  float *v = nullptr, *out = nullptr;                  // [64, Vp]
  float *beta = nullptr, *qk = nullptr;                // [64]; qk = q . k

  KDELTA_INLINE void carve(Carver& c, int64_t width_k, int64_t width_v) {
    K = width_k, Kp = padded(width_k), Vp = padded(width_v);
    q = c.take<float>(kKdaChunk * Kp);
    k = c.take<float>(kKdaChunk * Kp);
    decay = c.take<float>(kKdaChunk * Kp);
    v = c.take<float>(kKdaChunk * Vp);
    out = c.take<float>(kKdaChunk * Vp);
    beta = c.take<float>(kKdaChunk);
    qk = c.take<float>(kKdaChunk);
  }
};

// A share of the work: value channels [v_begin, v_end) of one head of one sequence. Channels never meet, so the split
// is free.
struct Task {
  int64_t n = 0, h = 0, v_begin = 0, v_end = 0;
};

template <class V, class T>
KDELTA_INLINE void widen_row(const T* x, int64_t n, int64_t n_padded, float* out) {
  constexpr int64_t L = V::kLanes;
  int64_t d = 0;
  for (; d + L <= n; d += L) V::load(x + d).store(out + d);
  if (d < n) V::load_n(x + d, n - d).store(out + d), d += L;
  for (; d < n_padded; d += L) V::zero().store(out + d);
}

template <class V>
KDELTA_INLINE void widen(const AnyConstView& x, int64_t t, int64_t h, int64_t begin, int64_t n, int64_t n_padded,
                         float* out) {
  if (x.dtype == DType::f32)
    widen_row<V>(x.at<const float>(t, h) + begin, n, n_padded, out);
  else
    widen_row<V>(x.at<const bf16>(t, h) + begin, n, n_padded, out);
}

template <class V, class T>
KDELTA_INLINE void narrow_row(const float* x, int64_t n, T* out) {
  constexpr int64_t L = V::kLanes;
  int64_t d = 0;
  for (; d + L <= n; d += L) V::load(x + d).store(out + d);
  if (d < n) V::load(x + d).store_n(out + d, n - d);
}

template <class V>
KDELTA_INLINE float dot(const float* a, const float* b, int64_t n_padded) {
  V s = V::zero();
  for (int64_t d = 0; d < n_padded; d += V::kLanes) s = V::fma(V::load(a + d), V::load(b + d), s);
  return s.sum();
}

// The functions below work on N vectors side by side: one chain of dependent operations fills the scheduler before it
// ends; with 32 registers eight interleaved ones take three quarters of the time of four (measured).
template <class V>
inline constexpr int kGateVectors = V::kLanes == 16 ? 8 : 2;

// ln(1+y) for y in [0, 1]: 2 atanh(s), s = y/(2+y) <= 1/3; the first term left out is below 1e-8 of the sum.
template <class V>
KDELTA_INLINE V log1p_unit(V y) {
  const V s = y / (y + V::set1(2.0f)), s2 = s * s;
  V p = V::set1(2.0f / 15);
  for (float c : {2.0f / 13, 2.0f / 11, 2.0f / 9, 2.0f / 7, 2.0f / 5, 2.0f / 3, 2.0f}) p = V::fma(p, s2, V::set1(c));
  return p * s;
}

// x <- exp(x) for x <= 0. With 512-bit vectors 2^r is a Taylor sum (|r| <= 1/2, error 5e-9) in front of vscalefps, half
// the instructions of simd::exp; the error is relative to x, so slow gates lose nothing.
template <class V, int N>
KDELTA_INLINE void exp_nonpositive(V (&x)[N]) {
#if defined(__AVX512DQ__)
  if constexpr (V::kLanes == 16) {
    V n[N], r[N], p[N];
    for (int i = 0; i < N; ++i) {
      x[i] = V::max(V::set1(-160.0f),
                    x[i] * V::set1(1.44269504f));  // far below the smallest float, still finite; NaN stays
      n[i] = x[i].round();
      r[i] = x[i] - n[i];
      p[i] = V::set1(1.52527338e-5f);
    }
    for (float c :
         {1.54035304e-4f, 1.33335581e-3f, 9.61812911e-3f, 5.55041087e-2f, 2.40226507e-1f, 6.93147181e-1f, 1.0f})
      for (int i = 0; i < N; ++i) p[i] = V::fma(p[i], r[i], V::set1(c));
    for (int i = 0; i < N; ++i) x[i] = {_mm512_scalef_ps(p[i].v, n[i].v)};
    return;
  }
#endif
  for (int i = 0; i < N; ++i) x[i] = simd::exp(x[i]);
}

// 1/y for a y with a normal reciprocal. A vector division takes as long as eight multiplications.
template <class V>
KDELTA_INLINE V reciprocal(V y) {
#if defined(__AVX512DQ__)
  if constexpr (V::kLanes == 16) {
    const V r = {_mm512_rcp14_ps(y.v)};
    return V::fma(r, V::set1(1.0f) - y * r, r);
  }
#endif
  return V::set1(1.0f) / y;
}

#if defined(__AVX512DQ__)
// x <- 2^x for |x| <= 126 and NaN, by an integer addition to the exponent: conversions, additions and integer
// operations run beside multiplications, vreduceps and vscalefps in their place. c: the polynomial, highest first.
// beside(0) to beside(3) are run where this waits.
template <class V, int N, int M, class F>
KDELTA_INLINE void exp2_normal(V (&x)[N], const float (&c)[M], F&& beside) {
  V n[N], p[N];
  for (int i = 0; i < N; ++i) n[i] = x[i].round();
  beside(0);
  for (int i = 0; i < N; ++i) x[i] = x[i] - n[i];
  for (int i = 0; i < N; ++i) p[i] = V::fma(V::set1(c[0]), x[i], V::set1(c[1]));
  beside(1);
  for (int m = 2; m < M; ++m) {
    for (int i = 0; i < N; ++i) p[i] = V::fma(p[i], x[i], V::set1(c[m]));
    if (m < 4) beside(m);
  }
  for (int i = 0; i < N; ++i) {
    const __m512i e = _mm512_slli_epi32(_mm512_cvtps_epi32(n[i].v), 23);
    x[i] = {_mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p[i].v), e))};
  }
}

// z <- exp(lower_bound sigmoid(A z)) on 512-bit vectors. Inside the sigmoid the exponential is minimax (7e-8 of g); the
// outer one is exact at 0 in value and slope (3e-9), and its argument, at least -7.3, needs no bound.
template <class V, int N, class F>
KDELTA_INLINE void bounded_decay(V (&z)[N], V A, V lower_bound, F&& beside) {
  const V a = A * V::set1(-1.44269504f), bound = lower_bound * V::set1(1.44269504f);
  // 2^126 makes g a denormal; min and max keep a NaN in their second operand.
  for (int i = 0; i < N; ++i) z[i] = V::max(V::set1(-126.0f), V::min(V::set1(126.0f), a * z[i]));
  exp2_normal(z, {1.32764722e-3f, 9.67554133e-3f, 5.55071327e-2f, 2.40221197e-1f, 6.93146967e-1f, 1.0f}, beside);
  for (int i = 0; i < N; ++i) {
    const V y = V::set1(1.0f) + z[i], r = {_mm512_rcp14_ps(y.v)}, g = bound * r;
    z[i] = V::fma(g, {_mm512_fnmadd_ps(y.v, r.v, V::set1(1.0f).v)}, g);
  }
  exp2_normal(
      z, {1.53211547e-4f, 1.33901615e-3f, 9.61852630e-3f, 5.55036225e-2f, 2.40226475e-1f, 6.93147181e-1f, 1.0f},
      [&](int i) __attribute__((always_inline)) { beside(4 + i); });
}
#endif

// x <- 1/(1 + exp(-x)), by the smaller exponential so that neither end overflows.
template <class V, int N>
KDELTA_INLINE void to_sigmoid(V (&x)[N]) {
  V e[N];
  for (int i = 0; i < N; ++i) e[i] = V::zero() - x[i].abs();
  exp_nonpositive(e);
  for (int i = 0; i < N; ++i) {
    const V r = reciprocal(V::set1(1.0f) + e[i]);
    x[i] = V::select_gt(V::zero(), x[i], e[i] * r, r);
  }
}

// Eight independent pieces of work, beside(0) to beside(7), for the time in which gates wait for one another; each is
// run once.
struct Nothing {
  KDELTA_INLINE void operator()(int) const {}
};

// z: raw gates plus bias, replaced by exp(g).
template <class V, int N, KdaGate kKind, class F>
KDELTA_INLINE void decay_of(V (&z)[N], V A, V lower_bound, F&& beside) {
  if constexpr (kKind == KdaGate::bounded) {
#if defined(__AVX512DQ__)
    if constexpr (V::kLanes == 16) return bounded_decay(z, A, lower_bound, beside);
#endif
    for (int i = 0; i < N; ++i) z[i] = A * z[i];
    to_sigmoid(z);
    for (int i = 0; i < N; ++i) z[i] = lower_bound * z[i];
  } else {
    V e[N];
    for (int i = 0; i < N; ++i) e[i] = V::zero() - z[i].abs();
    exp_nonpositive(e);
    // max keeps a NaN in its second operand.
    for (int i = 0; i < N; ++i) z[i] = V::zero() - A * (V::max(V::zero(), z[i]) + log1p_unit(e[i]));
  }
  exp_nonpositive(z);
  for (int i = 0; i < 8; ++i) beside(i);
}

template <class V, int N, KdaGate kKind, class T, class F = Nothing>
KDELTA_INLINE void read_decays(const T* x, const float* bias, V A, V lower_bound, int64_t n, float* out,
                               F&& beside = {}) {
  V z[N];
  for (int i = 0; i < N; ++i)
    z[i] = simd::load_lanes<V>(x + i * V::kLanes, n) + simd::load_lanes<V>(bias + i * V::kLanes, n);
  decay_of<V, N, kKind>(z, A, lower_bound, beside);
  for (int i = 0; i < N; ++i) simd::store_lanes(z[i], out + i * V::kLanes, n);
}

// exp(g) of one token and head from its raw gates; what lies behind K stays. beside(d) is called once for every 128
// channels whole, from d on.
template <class V, KdaGate kKind, class T, class F>
KDELTA_INLINE void read_decay_row(const T* x, const float* bias, float A, float lower_bound, int64_t K, float* out,
                                  F&& beside) {
  constexpr int64_t L = V::kLanes;
  constexpr int N = kGateVectors<V>;
  const V va = V::set1(A), vl = V::set1(lower_bound);
  int64_t d = 0;
  for (; d + N * L <= K; d += N * L)
    read_decays<V, N, kKind>(
        x + d, bias + d, va, vl, L, out + d, [&](int i) __attribute__((always_inline)) { beside(d, i); });
  for (; d + L <= K; d += L) read_decays<V, 1, kKind>(x + d, bias + d, va, vl, L, out + d);
  if (d < K) read_decays<V, 1, kKind>(x + d, bias + d, va, vl, K - d, out + d);
}

// beside(d, i), i in 0..7: as often as whole groups of kGateVectors vectors, from channel d on, fit into K.
struct NothingBeside {
  KDELTA_INLINE void operator()(int64_t, int) const {}
};
template <class V, class T, class F>
KDELTA_INLINE void read_decay_of(const KdaArgs& a, int64_t h, int64_t t, float A, int64_t K, float* out, F&& beside) {
  const T* x = a.gate.at<const T>(t, h);
  if (a.gate_kind == KdaGate::bounded)
    read_decay_row<V, KdaGate::bounded>(x, a.dt_bias.at(h), A, a.lower_bound, K, out, beside);
  else
    read_decay_row<V, KdaGate::softplus>(x, a.dt_bias.at(h), A, 0.0f, K, out, beside);
}
template <class V, class F = NothingBeside>
KDELTA_INLINE void read_decay(const KdaArgs& a, int64_t h, int64_t t, float A, int64_t K, float* out, F&& beside = {}) {
  if (a.gate.dtype == DType::f32)
    read_decay_of<V, float>(a, h, t, A, K, out, beside);
  else
    read_decay_of<V, bf16>(a, h, t, A, K, out, beside);
}

template <class V>
KDELTA_INLINE void normalise(KdaNorm kind, float scale, int64_t Kp, float* x) {
  const float f = kind == KdaNorm::l2 ? scale / std::sqrt(dot<V>(x, x, Kp) + 1e-6f) : scale;
  if (f == 1.0f) return;
  for (int64_t d = 0; d < Kp; d += V::kLanes) (V::load(x + d) * V::set1(f)).store(x + d);
}

KDELTA_INLINE float scalar(const AnyConstView& x, int64_t t, int64_t h) {
  return x.dtype == DType::f32 ? x.at<const float>(t)[h] : to_float(x.at<const bf16>(t)[h]);
}

// Token strides are too long for the hardware's prefetchers (H rows of K); without this half of a prefill waited for
// its inputs.
inline constexpr int64_t kPrefetchTokens = 8;
KDELTA_INLINE void prefetch_row(const AnyConstView& x, int64_t t, int64_t h) {
  const int64_t bytes = x.dtype == DType::f32 ? 4 : 2;
  const char* p = static_cast<const char*>(x.data) + (t * x.stride[0] + h * x.stride[1]) * bytes;
  for (int64_t b = 0; b < x.dim(2) * bytes; b += 64) __builtin_prefetch(p + b, 0, 2);
}
KDELTA_INLINE void prefetch_token(const KdaArgs& a, int64_t t, int64_t h) {
  if (t >= a.q.dim(0)) return;
  prefetch_row(a.q, t, h);
  prefetch_row(a.k, t, h);
  prefetch_row(a.v, t, h);
  prefetch_row(a.gate, t, h);
}

// Tokens [t, t + count) of the call; count <= 64.
template <class V>
void prepare(const KdaArgs& a, const Task& task, int64_t t, int64_t count, Tokens& x) {
  const float A = std::exp(*a.a_log.at(task.h));
  for (int64_t i = 0; i < count; ++i) {
    float *q = x.q + i * x.Kp, *k = x.k + i * x.Kp, *decay = x.decay + i * x.Kp;
    prefetch_token(a, t + i + kPrefetchTokens, task.h);
    widen<V>(a.q, t + i, task.h, 0, x.K, x.Kp, q);
    widen<V>(a.k, t + i, task.h, 0, x.K, x.Kp, k);
    read_decay<V>(a, task.h, t + i, A, x.K, decay);
    for (int64_t d = x.K; d < x.Kp; ++d) decay[d] = 0;
    widen<V>(a.v, t + i, task.h, task.v_begin, task.v_end - task.v_begin, x.Vp, x.v + i * x.Vp);
    normalise<V>(a.norm_kind, a.scale, x.Kp, q);
    normalise<V>(a.norm_kind, 1.0f, x.Kp, k);
    x.beta[i] = scalar(a.beta, t + i, task.h);
    x.qk[i] = dot<V>(q, k, x.Kp);
  }
  for (int64_t i = 0; a.beta_kind == KdaBeta::raw && i < count; i += V::kLanes) {
    V b[1] = {V::load_n(x.beta + i, count - i < V::kLanes ? count - i : V::kLanes)};
    to_sigmoid(b);
    b[0].store(x.beta + i);
  }
}

template <class V>
void write_out(const KdaArgs& a, const Task& task, int64_t t, int64_t count, const Tokens& x) {
  const int64_t width = task.v_end - task.v_begin;
  for (int64_t i = 0; i < count; ++i) {
    if (a.out.dtype == DType::f32)
      narrow_row<V>(x.out + i * x.Vp, width, a.out.at<float>(t + i, task.h) + task.v_begin);
    else
      narrow_row<V>(x.out + i * x.Vp, width, a.out.at<bf16>(t + i, task.h) + task.v_begin);
  }
}

// x as the pool's dtype holds it.
template <class V, class S>
KDELTA_INLINE V rounded(V x) {
  if constexpr (sizeof(S) == sizeof(float)) return x;
#if defined(__AVX512DQ__)
  if constexpr (sizeof(S) == 2 && V::kLanes == 16) {
    const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000));
    return {_mm512_castsi512_ps(_mm512_and_si512(x.rounded_upper(), upper))};
  }
#endif
#if defined(__AVX2__)
  if constexpr (sizeof(S) == 2 && V::kLanes == 8)
    return {_mm256_castsi256_ps(_mm256_slli_epi32(x.rounded_lower(), 16))};
#endif
  S r[V::kLanes];
  x.store(r);
  return V::load(r);
}

// A state that lives on in fp32 takes the pool's rounding where a cut would give it.
template <class V, class S>
KDELTA_INLINE void round_to_pool(float* x, int64_t n) {
  if constexpr (sizeof(S) == 2)
    for (int64_t i = 0; i < n; i += V::kLanes) rounded<V, S>(V::load(x + i)).store(x + i);
}

// The column of the slot that sequence n starts from: with records it has one, brought there by replay.
KDELTA_INLINE int64_t start_column(const KdaArgs& a, int64_t n) {
  return a.records.null() ? a.seq.accepted.data[n] - 1 : 0;
}

// Row v_begin of one head's state in one slot.
template <class S>
KDELTA_INLINE S* state_rows(const KdaArgs& a, const Task& task, int64_t slot) {
  const int64_t K = a.q.dim(2);
  return static_cast<S*>(a.state.data) + slot * a.state.stride[0] + task.h * a.state.stride[1] + task.v_begin * K;
}

}  // namespace KDELTA_KDA_ISA
}  // namespace kdelta::kda_cpu
