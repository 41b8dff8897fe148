// The decode schedule of mla over any V of simd.h, in batches of 16 tokens: absorb W_UK into q, attend over latents as
// they lie in the cache, apply W_UV. kv_b is read once a batch. A token of a head is its own chain over absolute blocks
// of 64 positions and absolute chunks of 512, so neither the batch, nor the grouping of heads, nor the threads show in
// its bits.
#pragma once

#include "kdelta/ops/mla/cpu_prefill.h"

namespace kdelta {

// Tokens and vectors of a tile of absorb and project: what the registers hold, so that a weight is widened once for
// several tokens.
template <class V>
inline constexpr int kMlaTile = V::kLanes == 16 ? 4 : 2;

// One step reads each row of kv_b once, so each of its lines is asked for this many rows before it is needed: 1 KB
// apart, rows are more streams than the processor follows by itself. Past the end nothing happens.
inline constexpr int64_t kMlaRowsAhead = 8;

// `count` elements of what lies kMlaRowsAhead rows behind.
template <class W>
KDELTA_INLINE void mla_fetch_weights(const W* row, int64_t ld, int64_t count) {
  const uintptr_t ahead = reinterpret_cast<uintptr_t>(row) + static_cast<uintptr_t>(kMlaRowsAhead * ld) * sizeof(W);
  for (uintptr_t i = 0; i < static_cast<uintptr_t>(count) * sizeof(W); i += 64)
    __builtin_prefetch(reinterpret_cast<const void*>(ahead + i), 0, 3);
}

// qa[t, l..] += sum_r q[t, r] weight[r, l..] over up to 8 rows of W_UK in order; kVectors vectors of columns, the last
// with n lanes.
template <class V, int kTokens, int kVectors, class W>
KDELTA_INLINE void mla_absorb_tile(const W* weight, int64_t ld, int64_t rows, int64_t n, const float (*q)[8], float* qa,
                                   int64_t qa_step) {
  constexpr int64_t L = V::kLanes;
  V sum[kTokens][kVectors];
  for (int t = 0; t < kTokens; ++t)
    for (int v = 0; v < kVectors; ++v) sum[t][v] = simd::load_lanes<V>(qa + t * qa_step + v * L, n);
  for (int64_t r = 0; r < rows; ++r) {
    V x[kVectors];
    for (int v = 0; v < kVectors; ++v) x[v] = simd::load_lanes<V>(weight + r * ld + v * L, n);
    mla_fetch_weights(weight + r * ld, ld, kVectors * L);
    for (int t = 0; t < kTokens; ++t)
      for (int v = 0; v < kVectors; ++v) sum[t][v] = V::fma(V::set1(q[t][r]), x[v], sum[t][v]);
  }
  for (int t = 0; t < kTokens; ++t)
    for (int v = 0; v < kVectors; ++v) simd::store_lanes(sum[t][v], qa + t * qa_step + v * L, n);
}

template <class V, int kTokens, class W>
KDELTA_INLINE void mla_absorb_rows(const W* weight, int64_t ld, int64_t rows, int64_t L, const float (*q)[8], float* qa,
                                   int64_t qa_step) {
  constexpr int64_t lanes = V::kLanes;
  constexpr int kVectors = kTokens == 1 ? 2 * kMlaTile<V> : kMlaTile<V>;  // eight chains at least
  int64_t l = 0;
  for (; l + kVectors * lanes <= L; l += kVectors * lanes)
    mla_absorb_tile<V, kTokens, kVectors>(weight + l, ld, rows, lanes, q, qa + l, qa_step);
  for (; l < L; l += lanes)
    mla_absorb_tile<V, kTokens, 1>(weight + l, ld, rows, L - l < lanes ? L - l : lanes, q, qa + l, qa_step);
}

// out[t, r] = W_UV[r] . lat[t] for up to 4 rows.
template <class V, int kTokens, class W>
KDELTA_INLINE void mla_project_rows(const W* weight, int64_t ld, int64_t rows, int64_t L, const float* lat,
                                    int64_t lat_step, float (*out)[4]) {
  constexpr int64_t lanes = V::kLanes;
  V sum[kTokens][4];
  for (int t = 0; t < kTokens; ++t)
    for (int r = 0; r < 4; ++r) sum[t][r] = V::zero();
  const int64_t last = rows - 1;
  const W* row[4] = {weight, weight + (last < 1 ? last : 1) * ld, weight + (last < 2 ? last : 2) * ld,
                     weight + last * ld};
  const auto step = [&](int64_t l, int64_t n) __attribute__((always_inline)) {
    V w[4];
    for (int r = 0; r < 4; ++r) w[r] = simd::load_lanes<V>(row[r] + l, n);
    for (int r = 0; r < 4; ++r) mla_fetch_weights(row[r] + l, ld, lanes);
    for (int t = 0; t < kTokens; ++t) {
      const V x = simd::load_lanes<V>(lat + t * lat_step + l, n);
      for (int r = 0; r < 4; ++r) sum[t][r] = V::fma(x, w[r], sum[t][r]);
    }
  };
  int64_t l = 0;
  for (; l + lanes <= L; l += lanes) step(l, lanes);
  if (l < L) step(l, L - l);
  for (int t = 0; t < kTokens; ++t)
    for (int64_t r = 0; r < rows; ++r) out[t][r] = sum[t][r].sum();
}

// f(rows, leading dimension) with `count` rows of kv_b from `row` on, as f32 or bf16; MX rows pass through scratch.
template <class F>
KDELTA_INLINE void mla_with_rows(const Matrix& m, int64_t row, int64_t count, float* scratch, F&& f) {
  if (m.dtype == DType::bf16) return f(reinterpret_cast<const bf16*>(m.row(row)), m.row_bytes / 2);
  if (m.dtype == DType::f32) return f(reinterpret_cast<const float*>(m.row(row)), m.row_bytes / 4);
  for (int64_t r = 0; r < count; ++r) dequantize_row(m, row + r, scratch + r * m.cols);
  f(static_cast<const float*>(scratch), m.cols);
}

// f(first, integral constant of tokens) for tiles of the batch.
template <class V, class F>
KDELTA_INLINE void mla_token_tiles(int64_t rows, F&& f) {
  constexpr int kTokens = kMlaTile<V>;
  int64_t t = 0;
  for (; t + kTokens <= rows; t += kTokens) f(t, std::integral_constant<int, kTokens>{});
  for (; t < rows; ++t) f(t, std::integral_constant<int, 1>{});
}

// q' and the untouched rope part of one head for the batch, zeros in the padding.
template <class V, class X>
void mla_absorb(const MlaArgs& a, const MlaPlan& plan, const MlaBatch& batch, int64_t head, float* absorbed,
                float* scratch) {
  const int64_t L = a.latent, ld = plan.width.cache, H = a.q.dim(1), rows = a.nope + a.value;
  for (int64_t t = 0; t < batch.rows; ++t) {
    float* qa = absorbed + (t * H + head) * ld;
    const X* q = a.q.template at<const X>(batch.first + t, head) + a.nope;
    for (int64_t l = 0; l < L; ++l) qa[l] = 0;
    for (int64_t l = 0; l < a.rope; ++l) qa[L + l] = to_float(q[l]);
    for (int64_t l = L + a.rope; l < ld; ++l) qa[l] = 0;
  }
  for (int64_t r = 0; r < a.nope; r += 8) {
    const int64_t count = a.nope - r < 8 ? a.nope - r : 8;
    float x[kMlaDecodeRows][8];
    for (int64_t t = 0; t < batch.rows; ++t)
      for (int64_t i = 0; i < count; ++i) x[t][i] = to_float(a.q.template at<const X>(batch.first + t, head)[r + i]);
    mla_with_rows(a.kv_b, head * rows + r, count, scratch, [&](auto* weight, int64_t row_stride) {
      mla_token_tiles<V>(
          batch.rows, [&](int64_t t, auto tokens) __attribute__((always_inline)) {
            mla_absorb_rows<V, decltype(tokens)::value>(weight, row_stride, count, L, x + t,
                                                        absorbed + (t * H + head) * ld, H * ld);
          });
    });
  }
}

// The head's weighted latents, which are divided by their sums here, through W_UV.
template <class V, class X>
void mla_project(const MlaArgs& a, const MlaPlan& plan, const MlaBatch& batch, int64_t head, const MlaSums& sums,
                 float* scratch) {
  const int64_t rows = a.nope + a.value, step = sums.step * plan.width.latent;
  float* lat = sums.lat + head * plan.width.latent;
  for (int64_t t = 0; t < batch.rows; ++t) {
    const V sum = V::set1(sums.sum[t * sums.step + head]);
    for (int64_t l = 0; l < plan.width.latent; l += V::kLanes)
      (V::load(lat + t * step + l) / sum).store(lat + t * step + l);
  }
  for (int64_t r = 0; r < a.value; r += 4) {
    const int64_t count = a.value - r < 4 ? a.value - r : 4;
    mla_with_rows(a.kv_b, head * rows + a.nope + r, count, scratch, [&](auto* weight, int64_t row_stride) {
      mla_token_tiles<V>(
          batch.rows, [&](int64_t first, auto tokens) __attribute__((always_inline)) {
            float y[decltype(tokens)::value][4];
            mla_project_rows<V, decltype(tokens)::value>(weight, row_stride, count, a.latent, lat + first * step, step,
                                                         y);
            for (int t = 0; t < tokens; ++t) {
              X* out = a.out.template at<X>(batch.first + first + t, head) + r;
              for (int64_t i = 0; i < count; ++i) out[i] = from_float<X>(y[t][i]);
            }
          });
    });
  }
}

// Positions of a block: widened to fp32 with zeros in the padding, when a row is no whole number of vectors ...
struct MlaWideRows {
  const float* block;
  int64_t ld;
  KDELTA_INLINE const float* operator()(int64_t s) const { return block + s * ld; }
  KDELTA_INLINE void fetch(int64_t, int64_t, int64_t) const {}
};

// ... or as they lie in the cache: neither written nor read again at twice the size. `row` continues with those of the
// next block, which are fetched while memory is idle.
template <class C>
struct MlaCacheRows {
  const C* const* row;
  KDELTA_INLINE const C* operator()(int64_t s) const { return row[s]; }
  // `count` elements from column l on of what lies a block behind position s.
  KDELTA_INLINE void fetch(int64_t s, int64_t l, int64_t count) const {
    constexpr auto kLine = static_cast<int64_t>(64 / sizeof(C));
    for (int64_t i = 0; i < count; i += kLine) __builtin_prefetch(row[s + kMlaBlock] + l + i, 0, 2);
  }
};

// kHeads x kPositions dot products of width ld (padding is zero on both sides).
template <class V, int kHeads, int kPositions, class Rows>
KDELTA_INLINE void mla_dots(const float* qa, const Rows& c, int64_t s, int64_t ld, float* score) {
  V sum[kHeads][kPositions];
  decltype(c(0)) row[kPositions];
  for (int i = 0; i < kPositions; ++i) row[i] = c(s + i);
  for (int h = 0; h < kHeads; ++h)
    for (int i = 0; i < kPositions; ++i) sum[h][i] = V::zero();
  for (int64_t l = 0; l < ld; l += V::kLanes) {
    V x[kPositions];
    for (int i = 0; i < kPositions; ++i) x[i] = V::load(row[i] + l);
    for (int h = 0; h < kHeads; ++h) {
      const V q = V::load(qa + h * ld + l);
      for (int i = 0; i < kPositions; ++i) sum[h][i] = V::fma(q, x[i], sum[h][i]);
    }
  }
  for (int h = 0; h < kHeads; ++h)
    for (int i = 0; i < kPositions; ++i) score[h * kMlaBlock + s + i] = sum[h][i].sum();
}

// kHeads heads against the positions [begin, end).
template <class V, int kHeads, int kPositions, class Rows>
KDELTA_INLINE void mla_score_heads(const float* qa, const Rows& c, int64_t begin, int64_t end, int64_t ld,
                                   float* score) {
  int64_t s = begin;
  for (; s + kPositions <= end; s += kPositions) mla_dots<V, kHeads, kPositions>(qa, c, s, ld, score);
  for (; s < end; ++s) mla_dots<V, kHeads, 1>(qa, c, s, ld, score);
}

// Scores of every head against the positions [begin, end). Each tile keeps 8 or 16 sums in flight, also when one head
// is left.
template <class V, class Rows>
void mla_scores(const float* qa, int64_t heads, const Rows& c, int64_t begin, int64_t end, int64_t ld, float* score) {
  constexpr bool kWide = V::kLanes == 16;
  int64_t h = 0;
  for (; h + 4 <= heads; h += 4)
    mla_score_heads<V, 4, kWide ? 4 : 2>(qa + h * ld, c, begin, end, ld, score + h * kMlaBlock);
  for (; h + 2 <= heads; h += 2)
    mla_score_heads<V, 2, kWide ? 8 : 4>(qa + h * ld, c, begin, end, ld, score + h * kMlaBlock);
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
template <class V, int kHeads, int kVectors, class Rows>
KDELTA_INLINE void mla_mix(const float* p, const Rows& c, int64_t l, int64_t count, const float* scale, float* lat,
                           int64_t lat_ld) {
  constexpr int64_t L = V::kLanes;
  V sum[kHeads][kVectors];
  for (int h = 0; h < kHeads; ++h)
    for (int v = 0; v < kVectors; ++v) sum[h][v] = V::load(lat + h * lat_ld + l + v * L) * V::set1(scale[h]);
  for (int64_t s = 0; s < count; ++s) {
    const auto* row = c(s) + l;
    V x[kVectors];
    for (int v = 0; v < kVectors; ++v) x[v] = V::load(row + v * L);
    c.fetch(s, l, kVectors * L);
    for (int h = 0; h < kHeads; ++h) {
      const V weight = V::set1(p[h * kMlaBlock + s]);
      for (int v = 0; v < kVectors; ++v) sum[h][v] = V::fma(weight, x[v], sum[h][v]);
    }
  }
  for (int h = 0; h < kHeads; ++h)
    for (int v = 0; v < kVectors; ++v) sum[h][v].store(lat + h * lat_ld + l + v * L);
}

// kHeads heads over all columns.
template <class V, int kHeads, int kVectors, class Rows>
KDELTA_INLINE void mla_mix_columns(const float* p, const Rows& c, int64_t count, const float* scale, float* lat,
                                   int64_t width) {
  constexpr int64_t L = V::kLanes;
  int64_t l = 0;
  for (; l + kVectors * L <= width; l += kVectors * L) mla_mix<V, kHeads, kVectors>(p, c, l, count, scale, lat, width);
  for (; l < width; l += L) mla_mix<V, kHeads, 1>(p, c, l, count, scale, lat, width);
}

template <class V, class Rows>
void mla_mix_heads(const float* p, int64_t heads, const Rows& c, int64_t count, const float* scale, float* lat,
                   int64_t width) {
  constexpr bool kWide = V::kLanes == 16;
  int64_t h = 0;
  if constexpr (kWide)
    for (; h + 8 <= heads; h += 8)
      mla_mix_columns<V, 8, 2>(p + h * kMlaBlock, c, count, scale + h, lat + h * width, width);
  for (; h + 4 <= heads; h += 4)
    mla_mix_columns<V, 4, kWide ? 4 : 2>(p + h * kMlaBlock, c, count, scale + h, lat + h * width, width);
  for (; h + 2 <= heads; h += 2)
    mla_mix_columns<V, 2, kWide ? 8 : 4>(p + h * kMlaBlock, c, count, scale + h, lat + h * width, width);
  if (h < heads) mla_mix_columns<V, 1, 8>(p + h * kMlaBlock, c, count, scale + h, lat + h * width, width);
}

// Where positions lie: row[i] = position begin + i for i < 128. Those past the last one repeat it.
template <class C>
KDELTA_INLINE void mla_find_rows(const MlaArgs& a, int64_t n, int64_t begin, int64_t last, const C** row) {
  const int64_t G = a.cache.dim(1), used = a.latent + a.rope;
  int64_t page = begin / G, at = begin % G, i = 0;
  const int64_t found = last - begin < 2 * kMlaBlock ? last - begin : 2 * kMlaBlock;
  while (i < found) {
    const C* first = static_cast<const C*>(a.cache.data) + static_cast<int64_t>(*a.seq.pages.at(n, page)) * G * used;
    for (; at < G && i < found; ++at, ++i) row[i] = first + at * used;
    ++page, at = 0;
  }
  for (; i < 2 * kMlaBlock; ++i) row[i] = row[found - 1];
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

// The `count` positions from `begin` on: scores of all tokens, then probabilities and sums. Every token skips what it
// does not see. prepare(s, end) comes before the positions [s, end) are read.
template <class V, class Rows, class F>
KDELTA_INLINE void mla_block(const MlaRun& run, int64_t begin, int64_t count, int64_t heads, const MlaWidths& width,
                             float factor, const float* qa, int64_t qa_step, const Rows& rows, const MlaSums& sums,
                             const MlaDecodeWork& w, F&& prepare) {
  // 16 positions stay in L1 until every head has its score.
  for (int64_t s = 0; s < count; s += 16) {
    const int64_t end = count - s < 16 ? count : s + 16;
    prepare(s, end);
    for (int64_t t = 0; t < run.tokens; ++t) {
      const int64_t seen = run.length + t - begin;
      mla_scores<V>(qa + t * qa_step, heads, rows, s, seen < end ? seen : end, width.cache,
                    w.score + t * heads * kMlaBlock);
    }
  }
  for (int64_t t = 0; t < run.tokens; ++t) {
    const int64_t seen = run.length + t - begin, visible = seen < count ? seen : count, row = t * sums.step;
    float* score = w.score + t * heads * kMlaBlock;
    if (visible <= 0) continue;
    for (int64_t h = 0; h < heads; ++h)
      mla_decode_softmax<V>(score + h * kMlaBlock, visible, factor, sums.max + row + h, sums.sum + row + h,
                            w.scale + h);
    mla_mix_heads<V>(score, heads, rows, visible, w.scale, sums.lat + row * width.latent, width.latent);
  }
}

// Sums of some heads of a run over one chunk of the context; qa and sums point at the first head of the first token.
template <class V, class C>
void mla_attend(const MlaArgs& a, const MlaPlan& plan, const MlaRun& run, int64_t chunk, int64_t heads, const float* qa,
                const MlaSums& sums, const MlaDecodeWork& w) {
  const MlaWidths& width = plan.width;
  const int64_t qa_step = a.q.dim(1) * width.cache, first = chunk * kMlaChunk, all = run.length + run.tokens - 1;
  const int64_t last = all - first < kMlaChunk ? all : first + kMlaChunk;
  for (int64_t t = 0; t < run.tokens; ++t)
    for (int64_t h = 0; h < heads; ++h) sums.clear(t * sums.step + h, width.latent);
  const bool in_place = width.cache == a.latent + a.rope && width.latent == a.latent;
  for (int64_t begin = first; begin < last; begin += kMlaBlock) {
    const int64_t count = last - begin < kMlaBlock ? last - begin : kMlaBlock;
    if (in_place) {
      const C* row[2 * kMlaBlock];
      mla_find_rows(a, run.n, begin, last, row);
      mla_block<V>(run, begin, count, heads, width, a.scale, qa, qa_step, MlaCacheRows<C>{row}, sums, w,
                   [](int64_t, int64_t) {});
    } else {
      mla_block<V>(run, begin, count, heads, width, a.scale, qa, qa_step, MlaWideRows{w.block, width.cache}, sums, w,
                   [&](int64_t s, int64_t end) {
                     mla_load_rows<V, C>(a, run.n, begin + s, end - s, width.cache, w.block + s * width.cache);
                   });
    }
  }
}

// total += part for one head of one token: the sums of the chunk that comes next.
template <class V>
KDELTA_INLINE void mla_merge(const MlaSums& total, int64_t row, const MlaSums& part, int64_t part_row, int64_t width) {
  const float old = total.max[row], next = part.max[part_row], max = next > old ? next : old;
  const V a = simd::exp(V::set1(old - max)), b = simd::exp(V::set1(next - max));
  float *lat = total.lat + row * width, *more = part.lat + part_row * width, lanes[2 * V::kLanes];
  for (int64_t l = 0; l < width; l += V::kLanes) V::fma(V::load(more + l), b, V::load(lat + l) * a).store(lat + l);
  a.store(lanes), b.store(lanes + V::kLanes);
  total.max[row] = max;
  total.sum[row] = total.sum[row] * lanes[0] + part.sum[part_row] * lanes[V::kLanes];
}

}  // namespace kdelta
