// The decode schedule of mla over any V of simd.h, in batches of 16 tokens: absorb W_UK into q, attend over latents as
// they lie in the cache, apply W_UV. kv_b is read once a batch. A token of a head is its own chain over absolute blocks
// of 64 positions, so neither the batch, nor the grouping of heads, nor the threads show in its bits.
#pragma once

#include "kdelta/ops/mla/cpu_prefill.h"

namespace kdelta {

// qa[l] += sum of 8 rows of W_UK times their q, for every token: the rows stream through once, in order.
template <class V, class W>
KDELTA_INLINE void mla_absorb_rows(const W* weight, int64_t ld, int64_t rows, int64_t L, const float* q, float* qa) {
  constexpr int64_t lanes = V::kLanes;
  int64_t l = 0;
  for (; l + lanes <= L; l += lanes) {
    V sum = V::load(qa + l);
    for (int64_t r = 0; r < rows; ++r) sum = V::fma(V::set1(q[r]), V::load(weight + r * ld + l), sum);
    sum.store(qa + l);
  }
  if (l < L) {
    V sum = V::load_n(qa + l, L - l);
    for (int64_t r = 0; r < rows; ++r) sum = V::fma(V::set1(q[r]), V::load_n(weight + r * ld + l, L - l), sum);
    sum.store_n(qa + l, L - l);
  }
}

// out[r] = W_UV[r] . lat for up to 4 rows; four chains hide the latency of the FMA.
template <class V, class W>
KDELTA_INLINE void mla_project_rows(const W* weight, int64_t ld, int64_t rows, int64_t L, const float* lat,
                                    float* out) {
  constexpr int64_t lanes = V::kLanes;
  V sum[4] = {V::zero(), V::zero(), V::zero(), V::zero()};
  const int64_t last = rows - 1;
  const W* row[4] = {weight, weight + (last < 1 ? last : 1) * ld, weight + (last < 2 ? last : 2) * ld,
                     weight + last * ld};
  int64_t l = 0;
  for (; l + lanes <= L; l += lanes) {
    const V x = V::load(lat + l);
    for (int r = 0; r < 4; ++r) sum[r] = V::fma(x, V::load(row[r] + l), sum[r]);
  }
  if (l < L) {
    const V x = V::load_n(lat + l, L - l);
    for (int r = 0; r < 4; ++r) sum[r] = V::fma(x, V::load_n(row[r] + l, L - l), sum[r]);
  }
  for (int64_t r = 0; r < rows; ++r) out[r] = sum[r].sum();
}

// f(rows, leading dimension) with `count` rows of kv_b from `row` on, as f32 or bf16; MX rows pass through scratch.
template <class F>
KDELTA_INLINE void mla_with_rows(const Matrix& m, int64_t row, int64_t count, float* scratch, F&& f) {
  if (m.dtype == DType::bf16) return f(reinterpret_cast<const bf16*>(m.row(row)), m.row_bytes / 2);
  if (m.dtype == DType::f32) return f(reinterpret_cast<const float*>(m.row(row)), m.row_bytes / 4);
  for (int64_t r = 0; r < count; ++r) dequantize_row(m, row + r, scratch + r * m.cols);
  f(static_cast<const float*>(scratch), m.cols);
}

// q' and the untouched rope part of one head for the batch, zeros in the padding.
template <class V, class X>
void mla_absorb(const MlaArgs& a, const MlaPlan& plan, const MlaBatch& batch, int64_t head, float* absorbed,
                float* scratch) {
  const int64_t L = a.latent, ld = plan.width.cache, H = a.q.dim(1), rows = a.nope + a.value;
  for (int64_t t = 0; t < batch.rows; ++t) {
    float* qa = absorbed + (t * H + head) * ld;
    const X* q = a.q.template at<const X>(batch.first + t, head) + a.nope;
    for (int64_t l = 0; l < ld; ++l) qa[l] = l >= L && l < L + a.rope ? to_float(q[l - L]) : 0;
  }
  for (int64_t r = 0; r < a.nope; r += 8) {
    const int64_t count = a.nope - r < 8 ? a.nope - r : 8;
    mla_with_rows(a.kv_b, head * rows + r, count, scratch, [&](auto* weight, int64_t row_stride) {
      for (int64_t t = 0; t < batch.rows; ++t) {
        float x[8];
        for (int64_t i = 0; i < count; ++i) x[i] = to_float(a.q.template at<const X>(batch.first + t, head)[r + i]);
        mla_absorb_rows<V>(weight, row_stride, count, L, x, absorbed + (t * H + head) * ld);
      }
    });
  }
}

template <class V, class X>
void mla_project(const MlaArgs& a, const MlaPlan& plan, const MlaBatch& batch, int64_t head, const float* lat,
                 float* scratch) {
  const int64_t H = a.q.dim(1), rows = a.nope + a.value;
  for (int64_t r = 0; r < a.value; r += 4) {
    const int64_t count = a.value - r < 4 ? a.value - r : 4;
    mla_with_rows(a.kv_b, head * rows + a.nope + r, count, scratch, [&](auto* weight, int64_t row_stride) {
      for (int64_t t = 0; t < batch.rows; ++t) {
        float y[4];
        mla_project_rows<V>(weight, row_stride, count, a.latent, lat + (t * H + head) * plan.width.latent, y);
        X* out = a.out.template at<X>(batch.first + t, head) + r;
        for (int64_t i = 0; i < count; ++i) out[i] = from_float<X>(y[i]);
      }
    });
  }
}

// kHeads x kPositions dot products of width ld (padding is zero on both sides).
template <class V, int kHeads, int kPositions>
KDELTA_INLINE void mla_dots(const float* qa, const float* c, int64_t ld, float* score) {
  V sum[kHeads][kPositions];
  for (int h = 0; h < kHeads; ++h)
    for (int s = 0; s < kPositions; ++s) sum[h][s] = V::zero();
  for (int64_t l = 0; l < ld; l += V::kLanes) {
    V x[kPositions];
    for (int s = 0; s < kPositions; ++s) x[s] = V::load(c + s * ld + l);
    for (int h = 0; h < kHeads; ++h) {
      const V q = V::load(qa + h * ld + l);
      for (int s = 0; s < kPositions; ++s) sum[h][s] = V::fma(q, x[s], sum[h][s]);
    }
  }
  for (int h = 0; h < kHeads; ++h)
    for (int s = 0; s < kPositions; ++s) score[h * kMlaBlock + s] = sum[h][s].sum();
}

// kHeads heads against the positions [begin, end).
template <class V, int kHeads, int kPositions>
KDELTA_INLINE void mla_score_heads(const float* qa, const float* c, int64_t begin, int64_t end, int64_t ld,
                                   float* score) {
  int64_t s = begin;
  for (; s + kPositions <= end; s += kPositions) mla_dots<V, kHeads, kPositions>(qa, c + s * ld, ld, score + s);
  for (; s < end; ++s) mla_dots<V, kHeads, 1>(qa, c + s * ld, ld, score + s);
}

// Scores of every head against the positions [begin, end). Each tile keeps 8 or 16 sums in flight, also when one head
// is left.
template <class V>
void mla_scores(const float* qa, int64_t heads, const float* c, int64_t begin, int64_t end, int64_t ld, float* score) {
  constexpr int kPositions = V::kLanes == 16 ? 4 : 2;
  int64_t h = 0;
  for (; h + 4 <= heads; h += 4)
    mla_score_heads<V, 4, kPositions>(qa + h * ld, c, begin, end, ld, score + h * kMlaBlock);
  for (; h + 2 <= heads; h += 2) mla_score_heads<V, 2, 4>(qa + h * ld, c, begin, end, ld, score + h * kMlaBlock);
  if (h < heads) mla_score_heads<V, 1, 8>(qa + h * ld, c, begin, end, ld, score + h * kMlaBlock);
}

// One head's scores to probabilities; positions from count on count as minus infinity and add exact zeros.
template <class V>
KDELTA_INLINE void mla_decode_softmax(float* score, int64_t count, float factor, float* max, float* sum, float* scale) {
  const V f = V::set1(factor);
  for (int64_t s = count; s < kMlaBlock; ++s) score[s] = -__builtin_inff();
  V best = V::set1(*max);
  for (int64_t s = 0; s < kMlaBlock; s += V::kLanes) {
    const V x = V::load(score + s) * f;
    x.store(score + s);
    best = V::max(best, x);
  }
  const float old = *max;
  *max = best.max_lane();
  V total = V::zero();
  for (int64_t s = 0; s < kMlaBlock; s += V::kLanes) {
    const V p = simd::exp(V::load(score + s) - V::set1(*max));
    p.store(score + s);
    total = total + p;
  }
  float lanes[V::kLanes];
  simd::exp(V::set1(old - *max)).store(lanes);
  *scale = lanes[0];
  *sum = *sum * *scale + total.sum();
}

// lat[h, l..] = lat * scale + sum_s p[h, s] c[s, l..] over kVectors vectors of columns.
template <class V, int kHeads, int kVectors>
KDELTA_INLINE void mla_mix(const float* p, const float* c, int64_t count, int64_t ld, const float* scale, float* lat,
                           int64_t lat_ld) {
  constexpr int64_t L = V::kLanes;
  V sum[kHeads][kVectors];
  for (int h = 0; h < kHeads; ++h)
    for (int v = 0; v < kVectors; ++v) sum[h][v] = V::load(lat + h * lat_ld + v * L) * V::set1(scale[h]);
  for (int64_t s = 0; s < count; ++s) {
    V x[kVectors];
    for (int v = 0; v < kVectors; ++v) x[v] = V::load(c + s * ld + v * L);
    for (int h = 0; h < kHeads; ++h) {
      const V weight = V::set1(p[h * kMlaBlock + s]);
      for (int v = 0; v < kVectors; ++v) sum[h][v] = V::fma(weight, x[v], sum[h][v]);
    }
  }
  for (int h = 0; h < kHeads; ++h)
    for (int v = 0; v < kVectors; ++v) sum[h][v].store(lat + h * lat_ld + v * L);
}

// kHeads heads over all columns.
template <class V, int kHeads, int kVectors>
KDELTA_INLINE void mla_mix_columns(const MlaDecodeWork& w, int64_t h, int64_t count, const MlaWidths& width,
                                   float* lat) {
  constexpr int64_t L = V::kLanes;
  const float *p = w.score + h * kMlaBlock, *scale = w.scale + h;
  float* row = lat + h * width.latent;
  int64_t l = 0;
  for (; l + kVectors * L <= width.latent; l += kVectors * L)
    mla_mix<V, kHeads, kVectors>(p, w.block + l, count, width.cache, scale, row + l, width.latent);
  for (; l < width.latent; l += L)
    mla_mix<V, kHeads, 1>(p, w.block + l, count, width.cache, scale, row + l, width.latent);
}

template <class V>
void mla_mix_heads(const MlaDecodeWork& w, int64_t heads, int64_t count, const MlaWidths& width, float* lat) {
  int64_t h = 0;
  if constexpr (V::kLanes == 16)
    for (; h + 8 <= heads; h += 8) mla_mix_columns<V, 8, 2>(w, h, count, width, lat);
  for (; h + 4 <= heads; h += 4) mla_mix_columns<V, 4, V::kLanes == 16 ? 4 : 2>(w, h, count, width, lat);
  for (; h + 2 <= heads; h += 2) mla_mix_columns<V, 2, 4>(w, h, count, width, lat);
  if (h < heads) mla_mix_columns<V, 1, 8>(w, h, count, width, lat);
}

// Latents and kr of [begin, begin + count) as fp32, zeros in the padding.
template <class V, class C>
void mla_load_rows(const MlaArgs& a, int64_t n, int64_t begin, int64_t count, int64_t ld, float* block) {
  const int64_t used = a.latent + a.rope;
  for (int64_t s = 0; s < count; ++s) {
    mla_widen<V>(cache_row(static_cast<const C*>(a.cache.data), a.seq, a.cache.dim(1), used, n, begin + s), used,
                 block + s * ld);
    for (int64_t l = used; l < ld; ++l) block[s * ld + l] = 0;
  }
}

// The scores of one token in a block, on `seen` positions: probabilities, then the sums.
template <class V>
void mla_update(const MlaDecodeWork& w, int64_t heads, int64_t seen, float factor, const MlaWidths& width, float* lat) {
  for (int64_t h = 0; h < heads; ++h)
    mla_decode_softmax<V>(w.score + h * kMlaBlock, seen, factor, w.max + h, w.sum + h, w.scale + h);
  mla_mix_heads<V>(w, heads, seen, width, lat);
}

// Some heads of a run; qa and lat point at the first head of its first token. Every token skips what it does not see.
template <class V, class C>
void mla_attend(const MlaArgs& a, const MlaPlan& plan, const MlaRun& run, int64_t heads, const float* qa, float* lat,
                const MlaDecodeWork& w) {
  const MlaWidths& width = plan.width;
  const int64_t qa_step = a.q.dim(1) * width.cache, lat_step = a.q.dim(1) * width.latent,
                last = run.length + run.tokens - 1;
  for (int64_t r = 0; r < run.tokens * heads; ++r) {
    w.max[r] = -__builtin_inff();
    w.sum[r] = 0;
  }
  for (int64_t t = 0; t < run.tokens; ++t)
    for (int64_t i = 0; i < heads * width.latent; ++i) lat[t * lat_step + i] = 0;
  for (int64_t begin = 0; begin < last; begin += kMlaBlock) {
    const int64_t count = last - begin < kMlaBlock ? last - begin : kMlaBlock;
    // 16 positions stay in L1 from their conversion until every head has its score.
    for (int64_t s = 0; s < count; s += 16) {
      const int64_t end = count - s < 16 ? count : s + 16;
      mla_load_rows<V, C>(a, run.n, begin + s, end - s, width.cache, w.block + s * width.cache);
      for (int64_t t = 0; t < run.tokens; ++t) {
        const int64_t seen = run.length + t - begin;
        mla_scores<V>(qa + t * qa_step, heads, w.block, s, seen < end ? seen : end, width.cache,
                      w.rows(t * heads).score);
      }
    }
    for (int64_t t = 0; t < run.tokens; ++t) {
      const int64_t seen = run.length + t - begin;
      if (seen > 0)
        mla_update<V>(w.rows(t * heads), heads, seen < count ? seen : count, a.scale, width, lat + t * lat_step);
    }
  }
  for (int64_t t = 0; t < run.tokens; ++t)
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t l = 0; l < width.latent; ++l) lat[t * lat_step + h * width.latent + l] /= w.sum[t * heads + h];
}

}  // namespace kdelta
