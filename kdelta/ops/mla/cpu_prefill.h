// The prefill schedule of mla over any V of simd.h. A task is one head and up to 2048 queries of one sequence. For
// every block of 64 positions it expands k and v once and lets every query tile that sees the block use them. Queries
// run along the vector lanes: scores, softmax and sums need no reduction across lanes, and each query is its own chain
// of operations over absolute blocks, so neither tiles nor cuts nor neighbours show in its bits.
#pragma once

#include "kdelta/ops/common/cpu/simd_math.h"
#include "kdelta/ops/mla/cpu_plan.h"
#include "kdelta/ops/mla/paged.h"

namespace kdelta {

// Rows of the register tile: 2 vectors wide, so that 16 (of 32) or 8 (of 16) accumulators hide the latency of the FMA.
template <class V>
inline constexpr int kMlaRows = V::kLanes == 16 ? 8 : 4;

// c[i, j] = sum_u a[i, u] b[u, j] over u = 0..depth-1 in order; rows a multiple of 8, columns of 32.
template <class V>
void mla_product(const float* a, int64_t lda, const float* b, int64_t ldb, int64_t depth, float* c, int64_t ldc,
                 int64_t rows, int64_t columns) {
  constexpr int64_t L = V::kLanes;
  constexpr int kRows = kMlaRows<V>;
  for (int64_t j = 0; j < columns; j += 2 * L)
    for (int64_t i = 0; i < rows; i += kRows) {
      V s0[kRows], s1[kRows];
      for (int r = 0; r < kRows; ++r) s0[r] = s1[r] = V::zero();
      const float* ai = a + i * lda;
      const float* bj = b + j;
      for (int64_t u = 0; u < depth; ++u, bj += ldb) {
        const V b0 = V::load(bj), b1 = V::load(bj + L);
        for (int r = 0; r < kRows; ++r) {
          const V x = V::set1(ai[r * lda + u]);
          s0[r] = V::fma(x, b0, s0[r]);
          s1[r] = V::fma(x, b1, s1[r]);
        }
      }
      for (int r = 0; r < kRows; ++r) {
        s0[r].store(c + (i + r) * ldc + j);
        s1[r].store(c + (i + r) * ldc + j + L);
      }
    }
}

// acc[v, q] = acc[v, q] * scale[q] + sum_s v[s, v] p[s, q]. Masked: query q skips the positions from length[q] on, it
// does not multiply them by zero: a NaN of a later token must not reach it.
template <class V, bool kMasked>
void mla_weigh(const float* p, const float* v, int64_t values, int64_t positions, const MlaPrefillWork& w, float* acc) {
  constexpr int64_t L = V::kLanes;
  constexpr int kRows = kMlaRows<V>;
  for (int64_t j = 0; j < kMlaBlock; j += 2 * L) {
    const V scale0 = V::load(w.scale + j), scale1 = V::load(w.scale + j + L);
    const V length0 = V::load(w.length + j), length1 = V::load(w.length + j + L);
    for (int64_t i = 0; i < values; i += kRows) {
      V s0[kRows], s1[kRows];
      for (int r = 0; r < kRows; ++r) {
        s0[r] = V::load(acc + (i + r) * kMlaBlock + j) * scale0;
        s1[r] = V::load(acc + (i + r) * kMlaBlock + j + L) * scale1;
      }
      for (int64_t s = 0; s < positions; ++s) {
        const V p0 = V::load(p + s * kMlaBlock + j), p1 = V::load(p + s * kMlaBlock + j + L);
        const V position = V::set1(static_cast<float>(s));
        for (int r = 0; r < kRows; ++r) {
          const V x = V::set1(v[s * values + i + r]);
          const V y0 = V::fma(x, p0, s0[r]), y1 = V::fma(x, p1, s1[r]);
          s0[r] = kMasked ? V::select_gt(length0, position, y0, s0[r]) : y0;
          s1[r] = kMasked ? V::select_gt(length1, position, y1, s1[r]) : y1;
        }
      }
      for (int r = 0; r < kRows; ++r) {
        s0[r].store(acc + (i + r) * kMlaBlock + j);
        s1[r].store(acc + (i + r) * kMlaBlock + j + L);
      }
    }
  }
}

// Scores of a tile to probabilities relative to the running maximum; max, sum [64] move on and scale gets the factor of
// the past.
template <class V, bool kMasked>
void mla_softmax(float* score, int64_t positions, float factor, const MlaPrefillWork& w, float* max, float* sum) {
  constexpr int64_t L = V::kLanes;
  const V f = V::set1(factor), lowest = V::set1(-__builtin_inff());
  for (int64_t j = 0; j < kMlaBlock; j += L) {
    const V length = V::load(w.length + j), old = V::load(max + j);
    V best = old;
    for (int64_t s = 0; s < positions; ++s) {
      V x = V::load(score + s * kMlaBlock + j) * f;
      if constexpr (kMasked) x = V::select_gt(length, V::set1(static_cast<float>(s)), x, lowest);
      x.store(score + s * kMlaBlock + j);
      best = V::max(best, x);
    }
    V total = V::zero();
    for (int64_t s = 0; s < positions; ++s) {
      const V p = simd::exp(V::load(score + s * kMlaBlock + j) - best);
      p.store(score + s * kMlaBlock + j);
      total = total + p;
    }
    const V scale = simd::exp(old - best);
    scale.store(w.scale + j);
    V::fma(V::load(sum + j), scale, total).store(sum + j);
    best.store(max + j);
  }
}

// One head and the queries [first, first + rows) of sequence n.
struct MlaPrefillTask {
  int64_t n, head, first, rows;
};

// Queries transposed to [tile, Nn+R, 64]; the lanes past the last are zeros and never stored.
template <class V, class X>
void mla_load_queries(const MlaArgs& a, const MlaPrefillTask& task, const MlaPrefillWork& w) {
  const int64_t D = a.nope + a.rope;
  for (int64_t r = 0; r < mla_round_up(task.rows, kMlaBlock); ++r) {
    float* column = w.q + r / kMlaBlock * D * kMlaBlock + r % kMlaBlock;
    if (r >= task.rows) {
      for (int64_t d = 0; d < D; ++d) column[d * kMlaBlock] = 0;
      continue;
    }
    const X* q = a.q.template at<const X>(a.seq.cu.data[task.n] + task.first + r, task.head);
    for (int64_t d = 0; d < D; ++d) column[d * kMlaBlock] = to_float(q[d]);
  }
}

template <class V, class W>
KDELTA_INLINE void mla_transpose_rows(const W* const* row, int64_t rows, int64_t L, float* out, int64_t ld) {
  for (int64_t l = 0; l < L; ++l)
    for (int64_t r = 0; r < rows; ++r) {
      W x;  // a file promises no alignment
      __builtin_memcpy(&x, reinterpret_cast<const char*>(row[r]) + l * static_cast<int64_t>(sizeof(W)), sizeof(W));
      out[l * ld + r] = to_float(x);
    }
}

// One head of kv_b transposed to [L, Nn+V], zeros in the padding. Sixteen rows at a time fill whole cache lines.
template <class V>
void mla_load_weight(const MlaArgs& a, const MlaPlan& plan, int64_t head, const MlaPrefillWork& w) {
  const int64_t rows = a.nope + a.value, L = a.latent, ld = plan.width.kv;
  for (int64_t r0 = 0; r0 < rows; r0 += 16) {
    const int64_t count = rows - r0 < 16 ? rows - r0 : 16;
    const float* f32[16];
    const bf16* half[16];
    for (int64_t r = 0; r < count; ++r) {
      const int64_t row = head * rows + r0 + r;
      f32[r] = reinterpret_cast<const float*>(a.kv_b.row(row));
      half[r] = reinterpret_cast<const bf16*>(a.kv_b.row(row));
      if (a.kv_b.is_mx()) {
        // The block and kv scratch are free before the first block: 16 rows of L floats fit the 64 of the block.
        dequantize_row(a.kv_b, row, w.block + r * L);
        f32[r] = w.block + r * L;
      }
    }
    if (a.kv_b.dtype == DType::bf16)
      mla_transpose_rows<V>(half, count, L, w.weight + r0, ld);
    else
      mla_transpose_rows<V>(f32, count, L, w.weight + r0, ld);
  }
  for (int64_t l = 0; l < L; ++l)
    for (int64_t r = rows; r < ld; ++r) w.weight[l * ld + r] = 0;
}

template <class V, class C>
KDELTA_INLINE void mla_widen(const C* src, int64_t n, float* dst) {
  constexpr int64_t L = V::kLanes;
  int64_t i = 0;
  for (; i + L <= n; i += L) V::load(src + i).store(dst + i);
  if (i < n) V::load_n(src + i, n - i).store_n(dst + i, n - i);
}

// k and v of the positions [begin, begin + count). Rows up to the next multiple of 8 are computed from zeros.
template <class V, class C>
void mla_expand(const MlaArgs& a, const MlaPlan& plan, int64_t n, int64_t begin, int64_t count,
                const MlaPrefillWork& w) {
  const int64_t L = a.latent, rows = mla_round_up(count, 8);
  const MlaWidths& width = plan.width;
  for (int64_t s = 0; s < count; ++s) {
    const C* row = cache_row(static_cast<const C*>(a.cache.data), a.seq, a.cache.dim(1), L + a.rope, n, begin + s);
    mla_widen<V>(row, L, w.block + s * L);
    mla_widen<V>(row + L, a.rope, w.k + s * width.query + a.nope);
  }
  for (int64_t i = count * L; i < rows * L; ++i) w.block[i] = 0;
  for (int64_t s = count; s < rows; ++s)
    for (int64_t r = 0; r < a.rope; ++r) w.k[s * width.query + a.nope + r] = 0;
  mla_product<V>(w.block, L, w.weight, width.kv, L, w.kv, width.kv, rows, width.kv);
  for (int64_t s = 0; s < rows; ++s) {
    mla_widen<V>(w.kv + s * width.kv, a.nope, w.k + s * width.query);
    mla_widen<V>(w.kv + s * width.kv + a.nope, a.value, w.v + s * width.value);
    for (int64_t v = a.value; v < width.value; ++v) w.v[s * width.value + v] = 0;
  }
}

// One query tile against one expanded block. `seen` is how many of the block's positions the tile's first query may
// see; each next one sees one more.
template <class V>
void mla_tile(const MlaArgs& a, const MlaPlan& plan, int64_t tile, int64_t seen, int64_t count,
              const MlaPrefillWork& w) {
  const int64_t D = a.nope + a.rope, values = plan.width.value;
  for (int64_t q = 0; q < kMlaBlock; ++q) w.length[q] = static_cast<float>(seen + q);
  mla_product<V>(w.k, plan.width.query, w.q + tile * D * kMlaBlock, kMlaBlock, D, w.score, kMlaBlock,
                 mla_round_up(count, 8), kMlaBlock);
  float *max = w.max + tile * kMlaBlock, *sum = w.sum + tile * kMlaBlock, *acc = w.acc + tile * values * kMlaBlock;
  if (seen < count) {
    mla_softmax<V, true>(w.score, count, a.scale, w, max, sum);
    mla_weigh<V, true>(w.score, w.v, values, count, w, acc);
  } else {
    mla_softmax<V, false>(w.score, count, a.scale, w, max, sum);
    mla_weigh<V, false>(w.score, w.v, values, count, w, acc);
  }
}

template <class V, class X>
void mla_store_outputs(const MlaArgs& a, const MlaPlan& plan, const MlaPrefillTask& task, const MlaPrefillWork& w) {
  for (int64_t r = 0; r < task.rows; ++r) {
    const float* column = w.acc + r / kMlaBlock * plan.width.value * kMlaBlock + r % kMlaBlock;
    X* out = a.out.template at<X>(a.seq.cu.data[task.n] + task.first + r, task.head);
    for (int64_t v = 0; v < a.value; ++v) out[v] = from_float<X>(column[v * kMlaBlock] / w.sum[r]);
  }
}

template <class V, class X, class C>
void mla_prefill_task(const MlaArgs& a, const MlaPlan& plan, const MlaPrefillTask& task, const MlaPrefillWork& w) {
  const int64_t tiles = mla_round_up(task.rows, kMlaBlock) / kMlaBlock;
  const int64_t start = a.seq.context.data[task.n] + task.first, end = start + task.rows;
  mla_load_queries<V, X>(a, task, w);
  mla_load_weight<V>(a, plan, task.head, w);
  for (int64_t i = 0; i < tiles * kMlaBlock; ++i) {
    w.max[i] = -__builtin_inff();
    w.sum[i] = 0;
  }
  for (int64_t i = 0; i < tiles * plan.width.value * kMlaBlock; ++i) w.acc[i] = 0;
  for (int64_t begin = 0; begin < end; begin += kMlaBlock) {
    const int64_t count = end - begin < kMlaBlock ? end - begin : kMlaBlock;
    mla_expand<V, C>(a, plan, task.n, begin, count, w);
    for (int64_t tile = 0; tile < tiles; ++tile) {
      const int64_t first = start + tile * kMlaBlock;
      if (first + kMlaBlock > begin) mla_tile<V>(a, plan, tile, first - begin + 1, count, w);
    }
  }
  mla_store_outputs<V, X>(a, plan, task, w);
}

}  // namespace kdelta
