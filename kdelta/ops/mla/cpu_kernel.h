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

// Adds the chunks among the tasks [first, end) that did not begin their rows to those before them, in order.
template <class V>
void mla_merge_parts(const Exec& ex, const MlaDesc& d, const MlaPlan& plan, const MlaBatch& batch,
                     const MlaTasks& tasks, int64_t first, int64_t end, void* scratch) {
  const MlaSums sums = plan.sums(d, scratch);
  parallel_for(ex, tasks.groups, 1, [&](int64_t group, int64_t last_group) {
    for (int64_t i = first; i < end; ++i) {
      const MlaTask task = tasks.at(i);
      if (task.chunk == 0 || task.head < group * tasks.heads || task.head >= last_group * tasks.heads) continue;
      const MlaRun& run = tasks.runs.run[task.run];
      const MlaSums part = plan.part(d, scratch, i - first, task.heads);
      for (int64_t t = 0; t < run.tokens; ++t)
        for (int64_t h = 0; h < task.heads && run.length + t > task.chunk * kMlaChunk; ++h)
          mla_merge<V>(sums, (run.first - batch.first + t) * d.heads + task.head + h, part, t * task.heads + h,
                       plan.width.latent);
    }
  });
}

template <class V, class C>
void mla_attend_batch(const Exec& ex, const MlaArgs& a, const MlaDesc& d, const MlaPlan& plan, const MlaBatch& batch,
                      void* scratch) {
  const MlaTasks tasks = mla_tasks(a.seq, batch, d);
  const MlaSums sums = plan.sums(d, scratch);
  const float* absorbed = plan.absorbed(scratch);
  const bool parts = tasks.count() > tasks.runs.count * tasks.groups;
  const int64_t wave = parts ? plan.parts : tasks.count();
  for (int64_t first = 0; first < tasks.count(); first += wave) {
    const int64_t end = tasks.count() - first < wave ? tasks.count() : first + wave;
    parallel_for_ranked(ex, end - first, 1, [&](int rank, int64_t begin, int64_t last) {
      const MlaDecodeWork w = plan.decode(scratch, rank);
      for (int64_t i = begin; i < last; ++i) {
        const MlaTask task = tasks.at(first + i);
        const MlaRun& run = tasks.runs.run[task.run];
        const int64_t row = (run.first - batch.first) * d.heads + task.head;
        mla_attend<V, C>(a, plan, run, task.chunk, task.heads, absorbed + row * plan.width.cache,
                         task.chunk == 0 ? sums.from(row, plan.width.latent) : plan.part(d, scratch, i, task.heads), w);
      }
    });
    if (parts) mla_merge_parts<V>(ex, d, plan, batch, tasks, first, end, scratch);
  }
}

template <class V, class X, class C>
void mla_decode_batch(const Exec& ex, const MlaArgs& a, const MlaDesc& d, const MlaPlan& plan, const MlaBatch& batch,
                      void* scratch) {
  float* absorbed = plan.absorbed(scratch);
  parallel_for_ranked(ex, d.heads, 1, [&](int rank, int64_t begin, int64_t end) {
    for (int64_t h = begin; h < end; ++h)
      mla_absorb<V, X>(a, plan, batch, h, absorbed, plan.decode(scratch, rank).weight);
  });
  mla_attend_batch<V, C>(ex, a, d, plan, batch, scratch);
  const MlaSums sums = plan.sums(d, scratch);
  parallel_for_ranked(ex, d.heads, 1, [&](int rank, int64_t begin, int64_t end) {
    for (int64_t h = begin; h < end; ++h) mla_project<V, X>(a, plan, batch, h, sums, plan.decode(scratch, rank).weight);
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
