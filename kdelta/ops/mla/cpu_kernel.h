// Work of the vector kernels of mla over the threads: prefill tasks first, then decode in batches. Who does which piece
// never changes a bit, every reduction stays inside one task.
#pragma once

#include "kdelta/ops/common/cpu/parallel.h"
#include "kdelta/ops/common/dispatch.h"
#include "kdelta/ops/mla/cpu_decode.h"

namespace kdelta {

template <class V, class X, class C>
void mla_prefill(const Exec& ex, const MlaArgs& a, const MlaDesc& d, const MlaPlan& plan, void* scratch) {
  const int64_t rows = mla_task_rows(plan, d, a.seq.n_prefill), pieces = (d.max_len + rows - 1) / rows;
  parallel_for_ranked(ex, a.seq.n_prefill * d.heads * pieces, 1, [&](int rank, int64_t begin, int64_t end) {
    const MlaPrefillWork w = plan.prefill(d, scratch, rank);
    for (int64_t i = begin; i < end; ++i) {
      MlaPrefillTask task{
          .n = i / pieces / d.heads, .head = i / pieces % d.heads, .first = i % pieces * rows, .rows = 0};
      const int64_t left = a.seq.cu.data[task.n + 1] - a.seq.cu.data[task.n] - task.first;
      task.rows = left < rows ? left : rows;
      if (task.rows > 0) mla_prefill_task<V, X, C>(a, plan, task, w);
    }
  });
}

template <class V, class X, class C>
void mla_decode_batch(const Exec& ex, const MlaArgs& a, const MlaDesc& d, const MlaPlan& plan, const MlaBatch& batch,
                      void* scratch) {
  float *absorbed = plan.absorbed(scratch), *lat = plan.lat(d, scratch);
  parallel_for_ranked(ex, d.heads, 1, [&](int rank, int64_t begin, int64_t end) {
    for (int64_t h = begin; h < end; ++h)
      mla_absorb<V, X>(a, plan, batch, h, absorbed, plan.decode(scratch, rank).weight);
  });
  const int64_t heads = mla_task_heads(d, mla_runs(a.seq, batch, batch.rows).count);
  const int64_t groups = (d.heads + heads - 1) / heads;
  const MlaRuns runs = mla_runs(a.seq, batch, kMlaHeads / heads);
  parallel_for_ranked(ex, runs.count * groups, 1, [&](int rank, int64_t begin, int64_t end) {
    const MlaDecodeWork w = plan.decode(scratch, rank);
    for (int64_t i = begin; i < end; ++i) {
      const MlaRun& run = runs.run[i / groups];
      const int64_t head = i % groups * heads, row = (run.first - batch.first) * d.heads + head;
      mla_attend<V, C>(a, plan, run, head + heads < d.heads ? heads : d.heads - head, absorbed + row * plan.width.cache,
                       lat + row * plan.width.latent, w);
    }
  });
  parallel_for_ranked(ex, d.heads, 1, [&](int rank, int64_t begin, int64_t end) {
    for (int64_t h = begin; h < end; ++h) mla_project<V, X>(a, plan, batch, h, lat, plan.decode(scratch, rank).weight);
  });
}

template <class V>
void mla_cpu(const Exec& ex, const MlaArgs& a, const MlaDesc& d, void* scratch) {
  const MlaPlan plan = mla_plan(d);
  const int32_t* cu = a.seq.cu.data;
  const int64_t decode_begin = cu[a.seq.n_prefill], decode_end = cu[a.seq.n_prefill + a.seq.n_decode];
  dispatch_activation(a.q.dtype, [&](auto x) {
    dispatch_activation(a.cache.dtype, [&](auto c) {
      using X = decltype(x);
      using C = decltype(c);
      if (decode_begin > 0) mla_prefill<V, X, C>(ex, a, d, plan, scratch);
      for (int64_t t = decode_begin; t < decode_end; t += plan.decode_rows) {
        const MlaBatch batch{t, decode_end - t < plan.decode_rows ? decode_end - t : plan.decode_rows};
        mla_decode_batch<V, X, C>(ex, a, d, plan, batch, scratch);
      }
      for (int64_t t = decode_end; t < d.tokens; ++t)
        for (int64_t h = 0; h < d.heads; ++h)
          __builtin_memset(a.out.template at<X>(t, h), 0, static_cast<size_t>(a.value) * sizeof(X));
    });
  });
}

}  // namespace kdelta
