// The chunk schedule of prefill in 512-bit vectors. Blocks of C = 16 tokens; with P_i the product of the decays up to
// token i,
//   kd_i = k_i P_i   qd_i = q_i P_i   kg_j = k_j P_last / P_j (a product of the later decays, never a quotient)
//   A_ij = sum_d k_i k_j P_i / P_j,  M_ij likewise with q_i
//   (I + diag(b) A) U = b (V - kd S)    O = qd S + M U    S <- P_last S + kg^T U
// Products with the state run on 16-bit operands (chunk_operand.h); the scores, the forward substitution and M U are
// fp32, so a row depends on no later token, bit for bit. Every factor is at most 1: any gate is exact, and underflow is
// a true zero. Tokens that a block lacks are identities (k = q = v = beta = 0, decay 1). Why 16 and not 64: notes.md.
#pragma once

#include "kdelta/ops/kda/chunk_operand.h"
#include "kdelta/ops/kda/chunk_scratch.h"

namespace kdelta::kda_chunk {
inline namespace KDELTA_KDA_ISA {

// Lane sums of eight vectors, in order.
KDELTA_INLINE __m256 sums8(const V v[8]) {
  __m512 p[4];
  for (int i = 0; i < 4; ++i)
    p[i] =
        _mm512_add_ps(_mm512_unpacklo_ps(v[2 * i].v, v[2 * i + 1].v), _mm512_unpackhi_ps(v[2 * i].v, v[2 * i + 1].v));
  __m512 r[2];
  for (int i = 0; i < 2; ++i) {
    const __m512d a = _mm512_castps_pd(p[2 * i]), b = _mm512_castps_pd(p[2 * i + 1]);
    r[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
  }
  const __m512 t = _mm512_add_ps(_mm512_shuffle_f32x4(r[0], r[1], 0x88), _mm512_shuffle_f32x4(r[0], r[1], 0xdd));
  // t: lanes r0(0+1), r0(2+3), r1(0+1), r1(2+3)
  const __m512 s = _mm512_add_ps(t, _mm512_shuffle_f32x4(t, t, 0xb1));
  return _mm512_castps512_ps256(_mm512_shuffle_f32x4(s, s, 0x08));
}

// Row i of both score matrices: keys_j is multiplied by decay_i and met with k_i and q_i, four j at a time. Rows of
// keys from i on hold anything; row i is set here.
KDELTA_INLINE void score_row(const Tokens& x, int64_t t, int64_t i, float* keys, float* low, float* mix) {
  const float *k = x.k + t * x.Kp, *q = x.q + t * x.Kp, *decay = x.decay + t * x.Kp;
  const int64_t Kp = x.Kp;
  for (int64_t j = 0; j < i; j += 4) {
    V acc[8];
    for (V& a : acc) a = V::zero();
    for (int64_t d = 0; d < Kp; d += 16) {
      const V dv = V::load(decay + d), kv = V::load(k + d), qv = V::load(q + d);
      for (int64_t e = 0; e < 4; ++e) {
        float* p = keys + (j + e) * Kp + d;
        const V y = V::load(p) * dv;
        y.store(p);
        acc[e] = V::fma(y, kv, acc[e]);
        acc[4 + e] = V::fma(y, qv, acc[4 + e]);
      }
    }
    const __m256 s = sums8(acc);
    _mm_storeu_ps(low + j, _mm_mul_ps(_mm256_castps256_ps128(s), _mm_set1_ps(-x.beta[t])));
    _mm_storeu_ps(mix + j, _mm256_extractf128_ps(s, 1));
  }
  for (int64_t d = 0; d < Kp; d += 16) V::load(k + d).store(keys + i * Kp + d);
  mix[i] = x.qk[t];
}

// One row to pairs of channels; returns what a product with it must be multiplied by.
template <class Operand>
KDELTA_INLINE float pack_row(const float* x, int64_t Kp, uint32_t* out) {
  float inverse = 1.0f;
  if (Operand::kScaled) {
    V s0 = V::zero(), s1 = V::zero();
    for (int64_t d = 0; d < Kp; d += 32) {
      s0 = V::fma(V::load(x + d), V::load(x + d), s0);
      s1 = V::fma(V::load(x + d + 16), V::load(x + d + 16), s1);
    }
    inverse = _mm512_cvtss_f32(Operand::inverse(V::set1((s0 + s1).sum())).v);
  }
  const V scale = V::set1(1.0f / inverse);
  for (int64_t d = 0; d < Kp; d += 32)
    _mm512_storeu_si512(out + d / 2, Operand::row(V::load(x + d), V::load(x + d + 16), scale));
  return inverse;
}

// kd and qd row by row while P grows: pack(i, kd, qd). rows: three of Kp.
template <class F>
KDELTA_INLINE void read_factors(const Tokens& x, int64_t t, float* rows, F&& pack) {
  const int64_t Kp = x.Kp;
  float* product = rows + 2 * Kp;
  for (int64_t d = 0; d < Kp; d += 16) V::set1(1.0f).store(product + d);
  for (int64_t i = 0; i < C; ++i) {
    const float *k = x.k + (t + i) * Kp, *q = x.q + (t + i) * Kp, *decay = x.decay + (t + i) * Kp;
    for (int64_t d = 0; d < Kp; d += 16) {
      const V p = V::load(product + d) * V::load(decay + d);
      p.store(product + d);
      (V::load(k + d) * p).store(rows + d);
      (V::load(q + d) * p).store(rows + Kp + d);
    }
    pack(i, rows, rows + Kp);
  }
}

// kg and the whole decay of the block's first `count` tokens, from the last one back, 16 channels at a time: pack(d,
// kg) with the C tokens in registers.
template <class F>
KDELTA_INLINE void write_factors(const Tokens& x, int64_t t, int64_t count, float* whole_decay, F&& pack) {
  const int64_t Kp = x.Kp;
  for (int64_t d = 0; d < Kp; d += 16) {
    V y[C], later = V::set1(1.0f);
    for (int64_t i = C - 1; i >= 0; --i) {
      y[i] = V::zero();
      if (i >= count) continue;
      y[i] = V::load(x.k + (t + i) * Kp + d) * later;
      later = later * V::load(x.decay + (t + i) * Kp + d);
    }
    later.store(whole_decay + d);
    pack(d, y);
  }
}

// The 16-bit copy of a panel, scaled per value channel; `sum` holds the sums of squares over channels.
template <class Operand>
KDELTA_INLINE void pack_scaled(const Panel& p, int64_t Kp, const V sum[2]) {
  V scale[2];
  for (int64_t j = 0; j < 2; ++j) {
    const V inverse = Operand::inverse(sum[j]);
    inverse.store(p.s_scale + 16 * j);
    scale[j] = V::set1(1.0f) / inverse;
  }
  const float* state = p.s;
  uint32_t* packed = p.s16;
  for (int64_t g = 0; g < Kp; g += 32)
    for (int64_t m = 0; m < 16; ++m) {
      const float* s = state + (g + Operand::channel(m)) * W;
      uint32_t* out = packed + (g / 2 + m) * W;
      for (int64_t j = 0; j < 2; ++j)
        _mm512_storeu_si512(out + 16 * j, Operand::pair(V::load(s + 16 * j), V::load(s + W + 16 * j), scale[j]));
    }
}

// R rows of `a` [C, Kp/2] times the panel's state: result(r, j, value) with value unscaled by rows.
template <class Operand, int64_t R, class F>
KDELTA_INLINE void times_state(const uint32_t* a, const Panel& p, int64_t Kp, F&& result) {
  typename Operand::Acc acc[R][2];
  for (int64_t r = 0; r < R; ++r) acc[r][0] = acc[r][1] = Operand::zero();
  const int64_t pairs = Kp / 2;
  const uint32_t* state = p.s16;
  const V s_scale[2] = {V::load(p.s_scale), V::load(p.s_scale + 16)};
  for (int64_t m = 0; m < pairs; ++m) {
    const __m512i s0 = _mm512_loadu_si512(state + m * W), s1 = _mm512_loadu_si512(state + m * W + 16);
    for (int64_t r = 0; r < R; ++r) {
      const __m512i f = _mm512_set1_epi32(static_cast<int>(a[r * pairs + m]));
      acc[r][0] = Operand::dot(acc[r][0], f, s0);
      acc[r][1] = Operand::dot(acc[r][1], f, s1);
    }
  }
  for (int64_t r = 0; r < R; ++r)
    for (int64_t j = 0; j < 2; ++j) result(r, j, Operand::value(acc[r][j]) * s_scale[j]);
}

// u = b (v - kd S) and out = qd S; rows of v and out are Vp apart.
template <class Operand>
KDELTA_INLINE void read_state(const Tokens& x, const Block& b, const Panel& p, int64_t t, const float* v, float* u,
                              float* out) {
  constexpr int64_t R = 8;
  for (int64_t i = 0; i < C; i += R) {
    times_state<Operand, R>(b.kd + i * x.Kp / 2, p, x.Kp, [&](int64_t r, int64_t j, V y) {
      const V read = y * V::set1(b.kd_scale[i + r]);
      (V::set1(x.beta[t + i + r]) * (V::load(v + (i + r) * x.Vp + 16 * j) - read)).store(u + (i + r) * W + 16 * j);
    });
    times_state<Operand, R>(b.qd + i * x.Kp / 2, p, x.Kp, [&](int64_t r, int64_t j, V y) {
      (y * V::set1(b.qd_scale[i + r])).store(out + (i + r) * x.Vp + 16 * j);
    });
  }
}

// Forward substitution (I - low) u = u in place, and out += mix u, four rows at a time: what comes from earlier rows
// first, then the triangle.
KDELTA_INLINE void substitute(const Block& b, float* u, float* out, int64_t out_stride) {
  const float *low = b.low, *mix = b.mix;
  for (int64_t i = 0; i < C; i += 4) {
    V y[4][2], o[4][2];
    for (int64_t r = 0; r < 4; ++r)
      for (int64_t j = 0; j < 2; ++j)
        y[r][j] = V::load(u + (i + r) * W + 16 * j), o[r][j] = V::load(out + (i + r) * out_stride + 16 * j);
    auto add = [&](int64_t r, int64_t column, V u0, V u1) {
      const V l = V::set1(low[(i + r) * C + column]);
      y[r][0] = V::fma(l, u0, y[r][0]);
      y[r][1] = V::fma(l, u1, y[r][1]);
    };
    auto add_out = [&](int64_t r, int64_t column, V u0, V u1) {
      const V m = V::set1(mix[(i + r) * C + column]);
      o[r][0] = V::fma(m, u0, o[r][0]);
      o[r][1] = V::fma(m, u1, o[r][1]);
    };
    for (int64_t c = 0; c < i; ++c) {
      const V u0 = V::load(u + c * W), u1 = V::load(u + c * W + 16);
      for (int64_t r = 0; r < 4; ++r) add(r, c, u0, u1), add_out(r, c, u0, u1);
    }
    for (int64_t e = 0; e < 4; ++e) {
      for (int64_t r = e; r < 4; ++r) add_out(r, i + e, y[e][0], y[e][1]);
      for (int64_t r = e + 1; r < 4; ++r) add(r, i + e, y[e][0], y[e][1]);
    }
    for (int64_t r = 0; r < 4; ++r)
      for (int64_t j = 0; j < 2; ++j)
        y[r][j].store(u + (i + r) * W + 16 * j), o[r][j].store(out + (i + r) * out_stride + 16 * j);
  }
}

// S <- P_last S + kg^T U, then its 16-bit copy. The pairs of U stay in 16 registers while all channels pass.
template <class Operand>
KDELTA_INLINE void write_state(const Block& b, const float* u, const Panel& p, int64_t Kp) {
  const uint32_t* kg = b.kg;  // locals: the compiler must assume that a store to the state changes the structs
  const float *decay = b.decay, *kg_scale = b.kg_scale;
  float* state = p.s;
  __m512i pairs[C / 2][2];
  V inverse[2], sum[2] = {V::zero(), V::zero()};
  for (int64_t j = 0; j < 2; ++j) {
    V s = V::zero();
    for (int64_t i = 0; Operand::kScaled && i < C; ++i)
      s = V::fma(V::load(u + i * W + 16 * j), V::load(u + i * W + 16 * j), s);
    inverse[j] = Operand::inverse(s);
    const V scale = V::set1(1.0f) / inverse[j];
    for (int64_t i = 0; i < C; i += 2)
      pairs[i / 2][j] = Operand::pair(V::load(u + i * W + 16 * j), V::load(u + (i + 1) * W + 16 * j), scale);
  }
  constexpr int64_t R = 4;
  for (int64_t d = 0; d < Kp; d += R) {
    typename Operand::Acc acc[R][2];
    for (int64_t r = 0; r < R; ++r) acc[r][0] = acc[r][1] = Operand::zero();
    for (int64_t i = 0; i < C / 2; ++i)
      for (int64_t r = 0; r < R; ++r) {
        const __m512i f = _mm512_set1_epi32(static_cast<int>(kg[i * Kp + d + r]));
        for (int64_t j = 0; j < 2; ++j) acc[r][j] = Operand::dot(acc[r][j], f, pairs[i][j]);
      }
    for (int64_t r = 0; r < R; ++r) {
      const V kept = V::set1(decay[d + r]), scale = V::set1(kg_scale[d + r]);
      for (int64_t j = 0; j < 2; ++j) {
        float* s = state + (d + r) * W + 16 * j;
        const V y = V::fma(Operand::value(acc[r][j]) * inverse[j], scale, V::load(s) * kept);
        y.store(s);
        sum[j] = V::fma(y, y, sum[j]);
      }
    }
  }
  pack_scaled<Operand>(p, Kp, sum);
}

// Products with the state by vector instructions on one 16-bit operand format.
template <class Operand>
struct VectorForm {
  struct Session {};
  static KDELTA_INLINE void read_factors(const Tokens& x, int64_t t, float* rows, Block& b) {
    kda_chunk::read_factors(x, t, rows, [&](int64_t i, const float* kd, const float* qd) {
      b.kd_scale[i] = pack_row<Operand>(kd, x.Kp, b.kd + i * x.Kp / 2);
      b.qd_scale[i] = pack_row<Operand>(qd, x.Kp, b.qd + i * x.Kp / 2);
    });
  }
  static KDELTA_INLINE void write_factors(const Tokens& x, int64_t t, int64_t count, Block& b) {
    kda_chunk::write_factors(x, t, count, b.decay, [&](int64_t d, const V* kg) {
      V sum = V::zero();
      for (int64_t i = C - 1; Operand::kScaled && i >= 0; --i) sum = V::fma(kg[i], kg[i], sum);
      const V inverse = Operand::inverse(sum), scale = V::set1(1.0f) / inverse;
      inverse.store(b.kg_scale + d);
      for (int64_t i = 0; i < C; i += 2)
        _mm512_storeu_si512(b.kg + i / 2 * x.Kp + d, Operand::pair(kg[i], kg[i + 1], scale));
    });
  }
  static KDELTA_INLINE void pack_state(const Panel& p, int64_t Kp) {
    V sum[2] = {V::zero(), V::zero()};
    for (int64_t d = 0; Operand::kScaled && d < Kp; ++d)
      for (int64_t j = 0; j < 2; ++j)
        sum[j] = V::fma(V::load(p.s + d * W + 16 * j), V::load(p.s + d * W + 16 * j), sum[j]);
    pack_scaled<Operand>(p, Kp, sum);
  }
  static KDELTA_INLINE void read_state(const Tokens& x, const Block& b, const Panel& p, int64_t t, const float* v,
                                       float* u, float* out) {
    kda_chunk::read_state<Operand>(x, b, p, t, v, u, out);
  }
  static KDELTA_INLINE void write_state(const Block& b, const float* u, const Panel& p, int64_t Kp, Scratch&) {
    kda_chunk::write_state<Operand>(b, u, p, Kp);
  }
};

}  // namespace KDELTA_KDA_ISA
}  // namespace kdelta::kda_chunk
