// What the value channels of a block share: from the tokens as they are given to scores and 16-bit factors.
//
// Scores. A_ij is a sum over channels of k_i k_j and the decays between, and no quotient is formed: keys are multiplied
// by the decays after them as the block goes on. Inside a group of four tokens that happens token by token; a key of an
// earlier group meets the group's tokens, each times the decays from the group's start up to it, after one
// multiplication by the decay of each group between. The keys that come out at the end are kg.
#pragma once

#include "kdelta/ops/kda/chunk_operand.h"
#include "kdelta/ops/kda/chunk_scratch.h"

namespace kdelta::kda_chunk {
inline namespace KDELTA_KDA_ISA {

// Lane sums of eight vectors, in order. By value, so that none of them needs an address.
struct Eight {
  V v[8];
  static KDELTA_INLINE Eight zero() {
    Eight r;
    unroll<8>([&](auto i) KDELTA_FLAT { r.v[i] = V::zero(); });
    return r;
  }
};
KDELTA_INLINE __m512 half_sums(V a, V b) {
  return _mm512_add_ps(_mm512_unpacklo_ps(a.v, b.v), _mm512_unpackhi_ps(a.v, b.v));
}
KDELTA_INLINE __m512 quarter_sums(__m512 p, __m512 q) {
  const __m512d a = _mm512_castps_pd(p), b = _mm512_castps_pd(q);
  return _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
}
KDELTA_INLINE __m256 sums8(Eight x) {
  const __m512 r0 = quarter_sums(half_sums(x.v[0], x.v[1]), half_sums(x.v[2], x.v[3]));
  const __m512 r1 = quarter_sums(half_sums(x.v[4], x.v[5]), half_sums(x.v[6], x.v[7]));
  const __m512 t = _mm512_add_ps(_mm512_shuffle_f32x4(r0, r1, 0x88), _mm512_shuffle_f32x4(r0, r1, 0xdd));
  // t: lanes r0(0+1), r0(2+3), r1(0+1), r1(2+3)
  const __m512 s = _mm512_add_ps(t, _mm512_shuffle_f32x4(t, t, 0xb1));
  return _mm512_castps512_ps256(_mm512_shuffle_f32x4(s, s, 0x08));
}
KDELTA_INLINE V sums16(const V* v) {
  Eight first, second;
  unroll<8>([&](auto i) KDELTA_FLAT { first.v[i] = v[i], second.v[i] = v[8 + i]; });
  return {_mm512_insertf32x8(_mm512_castps256_ps512(sums8(first)), sums8(second), 1)};
}

// The channels of q and k that are read beside the gates: what read_decay takes at once.
inline constexpr int64_t kBeside = 16 * kda_cpu::kGateVectors<V>;
static_assert(kda_cpu::kGateVectors<V> == 8);

// Tokens [t, t + count) of the call to rows; identities (q = k = beta = 0, decay 1) behind them. mix gets its diagonal.
KDELTA_INLINE void read_tokens(const KdaArgs& a, const Task& task, int64_t t, int64_t count, Rows& x, Block& b) {
  const float A = std::exp(*a.a_log.at(task.h));
  V qq[C], kk[C], qk[C];
  for (int64_t i = 0; i < C; ++i) {
    V sq = V::zero(), sk = V::zero(), both = V::zero();
    float *q = x.q + i * x.Kp, *k = x.k + i * x.Kp, *decay = x.decay + i * x.Kp;
    if (i < count) {
      const bf16 *q_in = a.q.at<const bf16>(t + i, task.h), *k_in = a.k.at<const bf16>(t + i, task.h);
      kda_cpu::prefetch_token(a, t + i + kda_cpu::kPrefetchTokens, task.h);
      auto read = [&](int64_t d, int64_t n) KDELTA_FLAT {
        const V qv = simd::load_lanes<V>(q_in + d, n), kv = simd::load_lanes<V>(k_in + d, n);
        qv.store(q + d);
        kv.store(k + d);
        sq = V::fma(qv, qv, sq);
        sk = V::fma(kv, kv, sk);
        both = V::fma(qv, kv, both);
      };
      kda_cpu::read_decay<V>(a, task.h, t + i, A, x.K, decay,
                             [&](int64_t d, int e) KDELTA_FLAT { read(d + 16 * e, 16); });
      for (int64_t d = x.K / kBeside * kBeside; d < x.Kp; d += 16) read(d, x.K >= d + 16 ? 16 : x.K > d ? x.K - d : 0);
      for (int64_t d = x.K; d < x.Kp; ++d) decay[d] = 1.0f;
      b.beta[i] = kda_cpu::scalar(a.beta, t + i, task.h);
    } else {
      for (int64_t d = 0; d < x.Kp; d += 16)
        V::zero().store(q + d), V::zero().store(k + d), V::set1(1.0f).store(decay + d);
      b.beta[i] = 0;
    }
    qq[i] = sq, kk[i] = sk, qk[i] = both;
  }
  V k_factor = V::set1(1.0f), q_factor = V::set1(a.scale);
  if (a.norm_kind == KdaNorm::l2) {
    k_factor = k_factor / (sums16(kk) + V::set1(1e-6f)).sqrt();
    q_factor = q_factor / (sums16(qq) + V::set1(1e-6f)).sqrt();
  }
  k_factor.store(x.k_factor);
  q_factor.store(x.q_factor);
  if (a.beta_kind == KdaBeta::raw) {
    V beta[1] = {V::load(b.beta)};
    kda_cpu::to_sigmoid(beta);
    simd::Avx512{_mm512_maskz_mov_ps(V::mask(count), beta[0].v)}.store(b.beta);
  }
  float diagonal[C];
  (sums16(qk) * k_factor * q_factor).store(diagonal);
  for (int64_t i = 0; i < C; ++i) b.mix[i * C + i] = diagonal[i];
}

// Two rows of four scores.
KDELTA_INLINE void store_scores(__m256 sums, float first, float second, float* row) {
  _mm_storeu_ps(row, _mm_mul_ps(_mm256_castps256_ps128(sums), _mm_set1_ps(first)));
  _mm_storeu_ps(row + C, _mm_mul_ps(_mm256_extractf128_ps(sums, 1), _mm_set1_ps(second)));
}

// The group's scores among themselves; its keys times the group's later decays, and kd, qd and the decay of the group
// counted from its start.
KDELTA_INLINE void near_scores(const Rows& x, int64_t i, const float* low_factor, Block& b) {
  const int64_t Kp = x.Kp;
  const float *k_in = x.k + i * Kp, *q_in = x.q + i * Kp, *decay = x.decay + i * Kp;
  float *keys = x.keys + i * Kp, *kd = x.kd, *qd = x.qd, *whole = x.group_decay;
  const float* f = x.k_factor + i;
  Eight low[2] = {Eight::zero(), Eight::zero()}, mix[2] = {Eight::zero(), Eight::zero()};  // four slots a row
  for (int64_t d = 0; d < Kp; d += 16) {
    V y[4], so_far;
    unroll<4>([&](auto r) KDELTA_FLAT {
      const V k = V::load(k_in + r * Kp + d), q = V::load(q_in + r * Kp + d), a = V::load(decay + r * Kp + d);
      unroll<r>([&](auto e) KDELTA_FLAT {
        constexpr int64_t row = r / 2, slot = r % 2 * 4 + e;
        y[e] = y[e] * a;
        low[row].v[slot] = V::fma(k, y[e], low[row].v[slot]);
        mix[row].v[slot] = V::fma(q, y[e], mix[row].v[slot]);
      });
      y[r] = k * V::set1(f[r]);
      so_far = r == 0 ? a : so_far * a;
      (k * so_far).store(kd + r * Kp + d);
      (q * so_far).store(qd + r * Kp + d);
    });
    unroll<4>([&](auto r) KDELTA_FLAT { y[r].store(keys + r * Kp + d); });
    so_far.store(whole + d);
  }
  const int64_t at = i * C + i;
  const float *fl = low_factor + i, *fm = x.q_factor + i;
  float diagonal[4];
  for (int64_t r = 0; r < 4; ++r) diagonal[r] = b.mix[at + r * (C + 1)];
  store_scores(sums8(low[0]), fl[0], fl[1], b.low + at);
  store_scores(sums8(low[1]), fl[2], fl[3], b.low + at + 2 * C);
  store_scores(sums8(mix[0]), fm[0], fm[1], b.mix + at);
  store_scores(sums8(mix[1]), fm[2], fm[3], b.mix + at + 2 * C);
  for (int64_t r = 0; r < 4; ++r) b.mix[at + r * (C + 1)] = diagonal[r];
}

// Four rows against four keys of an earlier group; kNext: the keys move on past this group.
template <bool kNext>
KDELTA_INLINE void far_scores(const Rows& x, const float* rows, float* keys, const float* factor, float* to) {
  const int64_t Kp = x.Kp;
  const float* whole = x.group_decay;
  Eight acc[2] = {Eight::zero(), Eight::zero()};
  for (int64_t d = 0; d < Kp; d += 16) {
    V y[4];
    unroll<4>([&](auto e) KDELTA_FLAT { y[e] = V::load(keys + e * Kp + d); });
    unroll<4>([&](auto r) KDELTA_FLAT {
      const V row = V::load(rows + r * Kp + d);
      unroll<4>([&](auto e) KDELTA_FLAT {
        V& sum = acc[r / 2].v[r % 2 * 4 + e];
        sum = V::fma(row, y[e], sum);
      });
    });
    if constexpr (kNext) unroll<4>([&](auto e) KDELTA_FLAT { (y[e] * V::load(whole + d)).store(keys + e * Kp + d); });
  }
  store_scores(sums8(acc[0]), factor[0], factor[1], to);
  store_scores(sums8(acc[1]), factor[2], factor[3], to + 2 * C);
}

// kd and qd of a group counted from the block's start, with the sums of squares of kd's four rows and qd's.
KDELTA_INLINE __m256 extend_factors(const Rows& x) {
  const int64_t Kp = x.Kp;
  float *kd = x.kd, *qd = x.qd, *so_far = x.decay_so_far;
  const float* whole = x.group_decay;
  Eight sum = Eight::zero();
  for (int64_t d = 0; d < Kp; d += 16) {
    const V p = V::load(so_far + d);
    unroll<4>([&](auto r) KDELTA_FLAT {
      const V k = V::load(kd + r * Kp + d) * p, q = V::load(qd + r * Kp + d) * p;
      k.store(kd + r * Kp + d);
      q.store(qd + r * Kp + d);
      sum.v[r] = V::fma(k, k, sum.v[r]);
      sum.v[4 + r] = V::fma(q, q, sum.v[4 + r]);
    });
    (p * V::load(whole + d)).store(so_far + d);
  }
  return sums8(sum);
}

// Everything of a block but its state products: tokens [t, t + count) of the call.
template <class Form>
KDELTA_INLINE void make_block(const KdaArgs& a, const Task& task, int64_t t, int64_t count, Rows& x, Block& b) {
  read_tokens(a, task, t, count, x, b);
  float low_factor[C];
  (V::zero() - V::load(b.beta) * V::load(x.k_factor)).store(low_factor);
  for (int64_t d = 0; d < x.Kp; d += 16) V::set1(1.0f).store(x.decay_so_far + d);
  for (int64_t i = 0; i < C; i += kGroup) {
    near_scores(x, i, low_factor, b);
    for (int64_t j = 0; j < i; j += kGroup) {
      far_scores<false>(x, x.kd, x.keys + j * x.Kp, low_factor + i, b.low + i * C + j);
      far_scores<true>(x, x.qd, x.keys + j * x.Kp, x.q_factor + i, b.mix + i * C + j);
    }
    const __m256 squares = extend_factors(x);
    Form::pack_rows(x, i, squares, b);
  }
  for (int64_t d = 0; d < x.Kp; d += 16) V::load(x.decay_so_far + d).store(b.decay + d);
  Form::pack_keys(x, b);
}

}  // namespace KDELTA_KDA_ISA
}  // namespace kdelta::kda_chunk
