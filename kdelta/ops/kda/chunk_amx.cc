// The chunk schedule with its state products on AMX tiles of bf16. In two parts (upper half of the fp32 bits, rest
// rounded to bf16) three tile products give what int16 operands give; in one part it is the cheap form. Tile rows: kd
// and qd by token, kg by key channel; the state and U lie in pairs, which is the layout tiles want on their right side.
#include "kdelta/ops/kda/chunk_run.h"

namespace kdelta {
namespace kda_chunk {
namespace {

// Tile loads are assembly that names no memory to the compiler: stores before them and loads after them must not move
// across.
KDELTA_INLINE void memory_fence() {
  __asm__ volatile("" ::: "memory");
}

// Owns the thread's tile registers while one task runs.
class TileSession {
 public:
  TileSession() {
    struct alignas(64) Config {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {};
      uint8_t rows[16] = {};
    } config;
    for (int t = 0; t < 8; ++t) config.row_bytes[t] = 64, config.rows[t] = 16;
    memory_fence();  // g++ 12 drops the stores above otherwise
    _tile_loadconfig(&config);
  }
  ~TileSession() { _tile_release(); }
  TileSession(const TileSession&) = delete;
  TileSession& operator=(const TileSession&) = delete;
};

KDELTA_INLINE V bits_and(V x, uint32_t mask) {
  return {_mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(x.v), _mm512_set1_epi32(static_cast<int>(mask))))};
}
// What the upper half of x leaves; a NaN stays in the first part. rest() is the same, rounded so that its upper half is
// the nearest bf16.
KDELTA_INLINE V below(V x) {
  return x - bits_and(x, 0xffff0000u);
}
KDELTA_INLINE V rest(V x) {
  const V r = below(x);
  return {_mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(r.v), _mm512_set1_epi32(0x8000)))};
}
// The upper halves of two rows' lanes as pairs, and of two vectors of one row in order.
KDELTA_INLINE __m512i pair_halves(V even, V odd) {
  return _mm512_mask_blend_epi16(0xaaaaaaaau, _mm512_srli_epi32(_mm512_castps_si512(even.v), 16),
                                 _mm512_castps_si512(odd.v));
}
KDELTA_INLINE __m512i row_halves(V a, V b) {
  const __m512i lanes = _mm512_set_epi32(0x3f003d, 0x3b0039, 0x370035, 0x330031, 0x2f002d, 0x2b0029, 0x270025, 0x230021,
                                         0x1f001d, 0x1b0019, 0x170015, 0x130011, 0xf000d, 0xb0009, 0x70005, 0x30001);
  return _mm512_permutex2var_epi16(_mm512_castps_si512(a.v), lanes, _mm512_castps_si512(b.v));
}

template <int kParts>
struct TileForm {
  using Session = TileSession;

  static KDELTA_INLINE void pack_row(const float* x, int64_t Kp, V factor, uint32_t* out) {
    for (int64_t d = 0; d < Kp; d += 32) {
      const V a = V::load(x + d) * factor, b = V::load(x + d + 16) * factor;
      _mm512_storeu_si512(out + d / 2, kParts == 1 ? Bfloat::row(a, b, a) : row_halves(a, b));
      if (kParts == 2) _mm512_storeu_si512(out + (C * Kp + d) / 2, row_halves(rest(a), rest(b)));
    }
  }
  static KDELTA_INLINE void pack_rows(const Rows& x, int64_t i, __m256, Block& b) {
    for (int64_t r = 0; r < kGroup; ++r) {
      pack_row(x.kd + r * x.Kp, x.Kp, V::set1(x.k_factor[i + r]), b.kd + (i + r) * x.Kp / 2);
      pack_row(x.qd + r * x.Kp, x.Kp, V::set1(x.q_factor[i + r]), b.qd + (i + r) * x.Kp / 2);
    }
  }
  // kg [Kp, C]: eight pairs of tokens, then their second parts; behind it the third parts. Two parts of kg let the
  // state drift by 1.5e-6 a token along what a repeated key's rounding leaves out (6e-3 after 4096 tokens); errors of U
  // have no such direction.
  static KDELTA_INLINE void pack_keys(const Rows& x, Block& b) {
    for (int64_t d = 0; d < x.Kp; d += 16) {
      __m512i r[16], third[16];
      for (int i = 0; i < 8; ++i) {
        const V even = V::load(x.keys + 2 * i * x.Kp + d), odd = V::load(x.keys + (2 * i + 1) * x.Kp + d);
        const V even1 = below(even), odd1 = below(odd);
        r[i] = kParts == 1 ? Bfloat::pair(even, odd, even) : pair_halves(even, odd);
        r[8 + i] = kParts == 1 ? _mm512_setzero_si512() : pair_halves(even1, odd1);
        third[i] = pair_halves(rest(even1), rest(odd1));
        third[8 + i] = _mm512_setzero_si512();
      }
      transpose16(r);
      for (int64_t i = 0; i < 16; ++i) _mm512_storeu_si512(b.kg + (d + i) * C, r[i]);
      if (kParts == 1) continue;
      transpose16(third);
      for (int64_t i = 0; i < 16; ++i) _mm512_storeu_si512(b.kg + (x.Kp + d + i) * C, third[i]);
    }
  }
  static KDELTA_INLINE void pack_state(const Panel& p, int64_t Kp) {
    for (int64_t m = 0; m < Kp / 2; ++m)
      for (int64_t j = 0; j < W; j += 16) {
        const V even = V::load(p.s + 2 * m * W + j), odd = V::load(p.s + (2 * m + 1) * W + j);
        _mm512_storeu_si512(p.s16 + m * W + j, kParts == 1 ? Bfloat::pair(even, odd, even) : pair_halves(even, odd));
        if (kParts == 2) _mm512_storeu_si512(p.s16 + (Kp / 2 + m) * W + j, pair_halves(rest(even), rest(odd)));
      }
  }
  static KDELTA_INLINE void read_state(const Block& b, const Panel& p, int64_t Kp, const Values& x, const Changes& c,
                                       float* read);
  static KDELTA_INLINE void write_state(const Block& b, const Changes& c, const Panel& p, int64_t Kp);
};

// Tiles 0, 1: kd S; 2, 3: qd S; 4, 5: rows; 6, 7: the two columns of the panel.
template <int kParts>
KDELTA_INLINE void TileForm<kParts>::read_state(const Block& b, const Panel& p, int64_t Kp, const Values& x,
                                                const Changes& c, float* read) {
  const int64_t half = Kp / 2, row = half * 4, line = W * 4;
  memory_fence();
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  auto multiply = [&](const uint32_t* kd, const uint32_t* qd, const uint32_t* s) {
    _tile_loadd(4, kd, row);
    _tile_loadd(5, qd, row);
    _tile_loadd(6, s, line);
    _tile_loadd(7, s + 16, line);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  };
  for (int64_t g = 0; g < half; g += 16) {
    multiply(b.kd + g, b.qd + g, p.s16 + g * W);
    if (kParts == 1) continue;
    multiply(b.kd + g, b.qd + g, p.s16 + (half + g) * W);
    multiply(b.kd + C * half + g, b.qd + C * half + g, p.s16 + g * W);
  }
  float* read_q = read + C * W;
  _tile_stored(0, read, line);
  _tile_stored(1, read + 16, line);
  _tile_stored(2, read_q, line);
  _tile_stored(3, read_q + 16, line);
  memory_fence();
  solve(
      b, x, c,
      [&](int64_t i, Half& y) KDELTA_FLAT {
        unroll<kHalf>([&](auto r) KDELTA_FLAT {
          unroll<2>([&](auto j) KDELTA_FLAT {
            const V v = V::load(x.v + (i + r) * x.v_stride + 16 * j);
            y.v[r][j] = V::set1(b.beta[i + r]) * (v - V::load(read + (i + r) * W + 16 * j));
          });
        });
      },
      [&](int64_t i, Half& o) KDELTA_FLAT {
        unroll<kHalf>([&](auto r) KDELTA_FLAT {
          unroll<2>([&](auto j) KDELTA_FLAT { o.v[r][j] = V::load(read_q + (i + r) * W + 16 * j); });
        });
      });
}

// Tiles 0, 1: the state of 16 key channels; 2: their kg, two parts side by side; 3: its third part beside zeros; 4, 5:
// the first part of U twice, one under the other; 6, 7: its second part likewise.
template <int kParts>
KDELTA_INLINE void TileForm<kParts>::write_state(const Block& b, const Changes& c, const Panel& p, int64_t Kp) {
  const float* u = c.u;
  uint32_t *first = c.pairs, *second = c.pairs + C * W;
  for (int64_t i = 0; i < C / 2; ++i)
    for (int64_t j = 0; j < W; j += 16) {
      const V even = V::load(u + 2 * i * W + j), odd = V::load(u + (2 * i + 1) * W + j);
      const __m512i upper = kParts == 1 ? Bfloat::pair(even, odd, even) : pair_halves(even, odd);
      _mm512_storeu_si512(first + i * W + j, upper);
      _mm512_storeu_si512(first + (C / 2 + i) * W + j, upper);
      const __m512i lower = pair_halves(rest(even), rest(odd));
      _mm512_storeu_si512(second + i * W + j, lower);
      _mm512_storeu_si512(second + (C / 2 + i) * W + j, lower);
    }
  for (int64_t d = 0; d < Kp; ++d)
    for (int64_t j = 0; j < W; j += 16) (V::load(p.s + d * W + j) * V::set1(b.decay[d])).store(p.s + d * W + j);
  const int64_t line = W * 4;
  memory_fence();
  _tile_loadd(4, first, line);
  _tile_loadd(5, first + 16, line);
  _tile_loadd(6, second, line);
  _tile_loadd(7, second + 16, line);
  for (int64_t d = 0; d < Kp; d += 16) {
    float* s = p.s + d * W;
    _tile_loadd(2, b.kg + d * C, C * 4);
    _tile_loadd(0, s, line);
    _tile_loadd(1, s + 16, line);
    _tile_dpbf16ps(0, 2, 4);
    _tile_dpbf16ps(1, 2, 5);
    if (kParts == 2) {
      _tile_loadd(3, b.kg + (Kp + d) * C, C * 4);
      _tile_dpbf16ps(0, 2, 6);
      _tile_dpbf16ps(1, 2, 7);
      _tile_dpbf16ps(0, 3, 4);
      _tile_dpbf16ps(1, 3, 5);
    }
    _tile_stored(0, s, line);
    _tile_stored(1, s + 16, line);
  }
  memory_fence();
  pack_state(p, Kp);
}

}  // namespace
}  // namespace kda_chunk

void kda_chunk_amx(const Exec& ex, const KdaArgs& args, const KdaDesc& d, void* scratch) {
  kda_cpu::run<simd::Avx512, kda_chunk::Chunk<kda_chunk::TileForm<2>>>(ex, args, d, scratch);
}

void kda_chunk_amx_bf16(const Exec& ex, const KdaArgs& args, const KdaDesc& d, void* scratch) {
  kda_cpu::run<simd::Avx512, kda_chunk::Chunk<kda_chunk::TileForm<1>>>(ex, args, d, scratch);
}

}  // namespace kdelta
