// The chunk schedule of prefill in 512-bit vectors. Blocks of C = 16 tokens; with P_i the product of the decays up to
// token i,
//   kd_i = k_i P_i   qd_i = q_i P_i   kg_j = k_j P_last / P_j (a product of the later decays, never a quotient)
//   A_ij = sum_d k_i k_j P_i / P_j,  M_ij likewise with q_i
//   (I + diag(b) A) U = b (V - kd S)    O = qd S + M U    S <- P_last S + kg^T U
// Products with the state run on 16-bit operands (chunk_operand.h); the scores, the forward substitution and M U are
// fp32, so a row depends on no later token, bit for bit. Every factor is at most 1: any gate is exact, and underflow is
// a true zero. Tokens that a block lacks are identities (k = q = v = beta = 0, decay 1). Why 16 and not 64: notes.md.
// This header holds what happens to one panel of the state; chunk_factors.h what all panels share.
#pragma once

#include "kdelta/ops/kda/chunk_factors.h"

namespace kdelta::kda_chunk {
inline namespace KDELTA_KDA_ISA {

// Half a block of one panel in registers: U or O.
inline constexpr int64_t kHalf = C / 2;
struct Half {
  V v[kHalf][2];
};

// The values and outputs of a block, W channels.
struct Values {
  const bf16* v;
  bf16* out;
  int64_t v_stride, out_stride;  // between tokens
};

// Forward substitution of rows [i, i + kHalf) of (I - low) u = y. What earlier rows give comes first, then the
// triangle.
template <int64_t i>
KDELTA_INLINE void substitute(const float* low, const float* u, Half& y) {
  for (int64_t c = 0; c < i; ++c) {
    const V u0 = V::load(u + c * W), u1 = V::load(u + c * W + 16);
    unroll<kHalf>([&](auto r) KDELTA_FLAT {
      const V l = V::set1(low[(i + r) * C + c]);
      y.v[r][0] = V::fma(l, u0, y.v[r][0]);
      y.v[r][1] = V::fma(l, u1, y.v[r][1]);
    });
  }
  unroll<kHalf>([&](auto e) KDELTA_FLAT {
    unroll<kHalf - 1 - e>([&](auto n) KDELTA_FLAT {
      constexpr int64_t r = e + 1 + n;
      const V l = V::set1(low[(i + r) * C + i + e]);
      y.v[r][0] = V::fma(l, y.v[e][0], y.v[r][0]);
      y.v[r][1] = V::fma(l, y.v[e][1], y.v[r][1]);
    });
  });
}

// o += rows [i, i + kHalf) of mix u.
template <int64_t i>
KDELTA_INLINE void mix_changes(const float* mix, const float* u, Half& o) {
  auto column = [&](int64_t c, auto first) KDELTA_FLAT {
    const V u0 = V::load(u + c * W), u1 = V::load(u + c * W + 16);
    unroll<kHalf - first>([&](auto n) KDELTA_FLAT {
      constexpr int64_t r = first + n;
      const V m = V::set1(mix[(i + r) * C + c]);
      o.v[r][0] = V::fma(m, u0, o.v[r][0]);
      o.v[r][1] = V::fma(m, u1, o.v[r][1]);
    });
  };
  for (int64_t c = 0; c < i; ++c) column(c, Index<0>{});
  unroll<kHalf>([&](auto e) KDELTA_FLAT { column(i + e, e); });
}

KDELTA_INLINE void store_changes(const Half& y, int64_t i, V (&sum)[2], float* u) {
  unroll<kHalf>([&](auto r) KDELTA_FLAT {
    unroll<2>([&](auto j) KDELTA_FLAT {
      y.v[r][j].store(u + (i + r) * W + 16 * j);
      sum[j] = V::fma(y.v[r][j], y.v[r][j], sum[j]);
    });
  });
}

// From kd S and qd S to U and O. read_u(i, y) and read_out(i, o) give rows [i, i + kHalf) of b (V - kd S) and qd S.
template <class ReadU, class ReadOut>
KDELTA_INLINE void solve(const Block& b, const Values& x, const Changes& c, ReadU&& read_u, ReadOut&& read_out) {
  const float *low = b.low, *mix = b.mix;  // locals: the compiler must assume that a store changes the structs
  float* u = c.u;
  Half y;
  V sum[2] = {V::zero(), V::zero()};
  read_u(int64_t{0}, y);
  substitute<0>(low, u, y);
  store_changes(y, 0, sum, u);
  read_u(kHalf, y);
  substitute<kHalf>(low, u, y);
  store_changes(y, kHalf, sum, u);
  for (int64_t j = 0; j < 2; ++j) sum[j].store(c.sum + 16 * j);
  bf16* out = x.out;
  const int64_t stride = x.out_stride;
  auto write = [&](int64_t i) KDELTA_FLAT {
    unroll<kHalf>([&](auto r) KDELTA_FLAT { V::store_pair(y.v[r][0], y.v[r][1], out + (i + r) * stride); });
  };
  read_out(int64_t{0}, y);
  mix_changes<0>(mix, u, y);
  write(0);
  read_out(kHalf, y);
  mix_changes<kHalf>(mix, u, y);
  write(kHalf);
}

// The 16-bit copy of a panel, scaled per value channel; `sum` holds the sums of squares over channels.
template <class Operand>
KDELTA_INLINE void pack_scaled(const Panel& p, int64_t Kp, const V sum[2]) {
  V scale[2];
  for (int64_t j = 0; j < 2; ++j) {
    scale[j] = Operand::scale(sum[j]);
    Operand::inverse(scale[j]).store(p.s_scale + 16 * j);
  }
  const float* s = p.s;
  uint32_t* packed = p.s16;
  for (int64_t g = 0; g < Kp; g += 32, s += 32 * W, packed += 16 * W)
    unroll<16>([&](auto m) KDELTA_FLAT {
      constexpr int64_t at = Operand::channel(m) * W;
      unroll<2>([&](auto j) KDELTA_FLAT {
        const V even = V::load(s + at + 16 * j), odd = V::load(s + at + W + 16 * j);
        _mm512_storeu_si512(packed + m * W + 16 * j, Operand::pair(even, odd, scale[j]));
      });
    });
}

// kHalf rows of `a` [C, Kp/2] times the panel's state: result(r, j, value) with value unscaled by rows.
template <class Operand, class F>
KDELTA_INLINE void times_state(const uint32_t* a, const Panel& p, int64_t Kp, F&& result) {
  typename Operand::Acc acc[kHalf][2];
  for (int64_t r = 0; r < kHalf; ++r) acc[r][0] = acc[r][1] = Operand::zero();
  const int64_t pairs = Kp / 2;
  const uint32_t* state = p.s16;
  const V s_scale[2] = {V::load(p.s_scale), V::load(p.s_scale + 16)};
  for (int64_t m = 0; m < pairs; ++m) {
    const __m512i s0 = _mm512_loadu_si512(state + m * W), s1 = _mm512_loadu_si512(state + m * W + 16);
    for (int64_t r = 0; r < kHalf; ++r) {
      const __m512i f = _mm512_set1_epi32(static_cast<int>(a[r * pairs + m]));
      acc[r][0] = Operand::dot(acc[r][0], f, s0);
      acc[r][1] = Operand::dot(acc[r][1], f, s1);
    }
  }
  unroll<kHalf>([&](auto r) KDELTA_FLAT {
    unroll<2>([&](auto j) KDELTA_FLAT { result(r, j, Operand::value(acc[r][j]) * s_scale[j]); });
  });
}

// S <- P_last S + kg^T U, then its 16-bit copy. The pairs of U stay in 16 registers while all channels pass.
template <class Operand>
KDELTA_INLINE void write_state(const Block& b, const Changes& c, const Panel& p, int64_t Kp) {
  const uint32_t* kg = b.kg;
  const float *decay = b.decay, *kg_scale = b.kg_scale, *u = c.u;
  float* state = p.s;
  __m512i pairs[C / 2][2];
  V inverse[2], sum[2] = {V::zero(), V::zero()};
  for (int64_t j = 0; j < 2; ++j) {
    const V scale = Operand::scale(V::load(c.sum + 16 * j));
    inverse[j] = Operand::inverse(scale);
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
  // Rows [i, i + kGroup) of kd and qd; squares: their sums.
  static KDELTA_INLINE void pack_rows(const Rows& x, int64_t i, __m256 squares, Block& b) {
    const V scale = Operand::scale({_mm512_castps256_ps512(squares)});
    float to[16], from[16];
    scale.store(to);
    Operand::inverse(scale).store(from);
    for (int64_t r = 0; r < kGroup; ++r) {
      b.kd_scale[i + r] = from[r] * x.k_factor[i + r];
      b.qd_scale[i + r] = from[kGroup + r] * x.q_factor[i + r];
      pack_row(x.kd + r * x.Kp, x.Kp, V::set1(to[r]), b.kd + (i + r) * x.Kp / 2);
      pack_row(x.qd + r * x.Kp, x.Kp, V::set1(to[kGroup + r]), b.qd + (i + r) * x.Kp / 2);
    }
  }
  static KDELTA_INLINE void pack_row(const float* x, int64_t Kp, V scale, uint32_t* out) {
    for (int64_t d = 0; d < Kp; d += 32)
      _mm512_storeu_si512(out + d / 2, Operand::row(V::load(x + d), V::load(x + d + 16), scale));
  }
  // Exactly scaled, C equal keys are 32760 / 4 each, a whole number; what a rounding left out of a repeated key would
  // add up, block after block, to a state that no key ever corrects (0.17 of it after 16384 tokens).
  static KDELTA_INLINE void pack_keys(const Rows& x, Block& b) {
    const int64_t Kp = x.Kp;
    const float* keys = x.keys;
    uint32_t* kg = b.kg;
    for (int64_t d = 0; d < Kp; d += 16) {
      V sum[4] = {V::zero(), V::zero(), V::zero(), V::zero()};
      for (int64_t i = 0; Operand::kScaled && i < C; ++i) {
        const V y = V::load(keys + i * Kp + d);
        sum[i % 4] = V::fma(y, y, sum[i % 4]);
      }
      const V scale = Operand::exact_scale((sum[0] + sum[1]) + (sum[2] + sum[3]));
      Operand::inverse(scale).store(b.kg_scale + d);
      for (int64_t i = 0; i < C; i += 2)
        _mm512_storeu_si512(kg + i / 2 * Kp + d,
                            Operand::pair(V::load(keys + i * Kp + d), V::load(keys + (i + 1) * Kp + d), scale));
    }
  }
  static KDELTA_INLINE void pack_state(const Panel& p, int64_t Kp) {
    V sum[2] = {V::zero(), V::zero()};
    for (int64_t d = 0; Operand::kScaled && d < Kp; ++d)
      for (int64_t j = 0; j < 2; ++j)
        sum[j] = V::fma(V::load(p.s + d * W + 16 * j), V::load(p.s + d * W + 16 * j), sum[j]);
    pack_scaled<Operand>(p, Kp, sum);
  }
  // U and O of a block.
  static KDELTA_INLINE void read_state(const Block& b, const Panel& p, int64_t Kp, const Values& x, const Changes& c,
                                       float*) {
    solve(
        b, x, c,
        [&](int64_t i, Half& y) KDELTA_FLAT {
          times_state<Operand>(b.kd + i * Kp / 2, p, Kp, [&](auto r, auto j, V read) KDELTA_FLAT {
            const V beta = V::set1(b.beta[i + r]), scale = V::set1(b.kd_scale[i + r]);
            y.v[r][j] = beta * (V::load(x.v + (i + r) * x.v_stride + 16 * j) - scale * read);
          });
        },
        [&](int64_t i, Half& o) KDELTA_FLAT {
          times_state<Operand>(b.qd + i * Kp / 2, p, Kp, [&](auto r, auto j, V read) KDELTA_FLAT {
            o.v[r][j] = V::set1(b.qd_scale[i + r]) * read;
          });
        });
  }
  static KDELTA_INLINE void write_state(const Block& b, const Changes& c, const Panel& p, int64_t Kp) {
    kda_chunk::write_state<Operand>(b, c, p, Kp);
  }
};

}  // namespace KDELTA_KDA_ISA
}  // namespace kdelta::kda_chunk
