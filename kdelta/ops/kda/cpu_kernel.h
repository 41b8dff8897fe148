// Shares the sequences and heads of a call over the threads: prefill sequences run the schedule that the instruction
// set's file picks, decode rows the step schedule. Nothing a thread does depends on what the others have.
#pragma once

#include "kdelta/ops/common/cpu/parallel.h"
#include "kdelta/ops/kda/cpu_scan.h"
#include "kdelta/ops/kda/cpu_step.h"

namespace kdelta::kda_cpu {
inline namespace KDELTA_KDA_ISA {

// A prefill schedule: its scratch and its entry, over the vector type Vec.
template <class Vec>
struct Scan {
  using Scratch = ScanScratch;
  template <class S>
  static void run(const KdaArgs& a, const Task& task, Scratch& w) {
    scan_sequence<Vec, S>(a, task, w);
  }
};

// Counters of heads that several tasks share; behind the scratch of all threads.
KDELTA_INLINE int64_t counter_bytes(const KdaDesc& d) {
  return d.records > 0 ? align64(d.N * d.H * static_cast<int64_t>(sizeof(int32_t))) : 0;
}

// Of one thread, for the larger of its prefill and its step schedule.
template <class PrefillScratch>
KDELTA_INLINE int64_t thread_bytes(int64_t K, int64_t V) {
  Carver prefill, step;
  PrefillScratch{}.carve(prefill, K, V);
  StepScratch{}.carve(step, K, V);
  return prefill.used > step.used ? prefill.used : step.used;
}

template <class T>
KDELTA_INLINE void zero_rows(const AnyView& out, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t)
    for (int64_t h = 0; h < out.dim(1); ++h)
      std::memset(out.at<T>(t, h), 0, static_cast<size_t>(out.dim(2)) * sizeof(T));
}

// Rows that no live sequence covers.
KDELTA_INLINE void zero_rows_of_nobody(const KdaArgs& a) {
  auto zero = [&](int64_t begin, int64_t end) {
    if (a.out.dtype == DType::f32)
      zero_rows<float>(a.out, begin, end);
    else
      zero_rows<bf16>(a.out, begin, end);
  };
  const int32_t* cu = a.seq.cu.data;
  for (int64_t n = 0; n < a.seq.n_prefill + a.seq.n_decode; ++n)
    if (*a.seq.slot.at(n, 0) == -1) zero(cu[n], cu[n + 1]);
  zero(cu[a.seq.count()], a.out.dim(0));
}

template <class Vec, class Prefill, class S>
void run_task(const KdaArgs& a, const Task& task, char* scratch, int32_t* parts_left) {
  if (a.seq.cu.data[task.n + 1] == a.seq.cu.data[task.n] || *a.seq.slot.at(task.n, 0) == -1) return;
  Carver carver{scratch};
  const bool records = !a.records.null();
  if (task.n < a.seq.n_prefill) {
    typename Prefill::Scratch w;
    w.carve(carver, a.q.dim(2), task.v_end - task.v_begin);
    if (records && pending(a, task).count > 0) {
      S* own = own_rows<S>(a, task);
      replay<Vec, S>(pending(a, task), task.v_begin, task.v_end - task.v_begin, own, own);
    }
    Prefill::template run<S>(a, task, w);
  } else {
    StepScratch w;
    w.carve(carver, a.q.dim(2), task.v_end - task.v_begin);
    const int64_t len = a.seq.cu.data[task.n + 1] - a.seq.cu.data[task.n];
    if (records && (len > 1 || pending(a, task).count > 0))
      step_sequence_recorded<Vec, S>(a, task, w, parts_left);
    else
      step_sequence<Vec, S>(a, task, w);
  }
}

template <class Vec, class Prefill, class S>
void run_all(const Exec& ex, const KdaArgs& a, const KdaDesc& d, void* scratch) {
  const int64_t live = a.seq.n_prefill + a.seq.n_decode, heads = live * d.H,
                bytes = thread_bytes<typename Prefill::Scratch>(d.K, d.V);
  // With fewer heads than threads a head's value channels are split; 64 at least, or preparing the tokens outweighs the
  // rest.
  int64_t split = heads == 0 ? 1 : (ex.threads->size() + heads - 1) / heads;
  const int64_t most = (d.V + 63) / 64;
  if (split > most) split = most;
  const int64_t width = ((d.V + split - 1) / split + 63) / 64 * 64;
  split = (d.V + width - 1) / width;
  auto* parts_left = reinterpret_cast<int32_t*>(static_cast<char*>(scratch) + ex.threads->size() * bytes);
  const bool shared = split > 1 && !a.records.null();  // heads whose records several tasks write
  for (int64_t i = 0; shared && i < heads; ++i) parts_left[i] = static_cast<int32_t>(split);
  parallel_for_ranked(ex, heads * split, 1, [&](int rank, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t part = i % split, head = i / split, v_end = (part + 1) * width;
      const Task task{head / d.H, head % d.H, part * width, v_end < d.V ? v_end : d.V};
      run_task<Vec, Prefill, S>(a, task, static_cast<char*>(scratch) + rank * bytes,
                                shared ? parts_left + head : nullptr);
    }
  });
}

template <class Vec, class Prefill>
void run(const Exec& ex, const KdaArgs& a, const KdaDesc& d, void* scratch) {
  zero_rows_of_nobody(a);
  if (a.state.dtype == DType::f32)
    run_all<Vec, Prefill, float>(ex, a, d, scratch);
  else
    run_all<Vec, Prefill, bf16>(ex, a, d, scratch);
}

}  // namespace KDELTA_KDA_ISA
}  // namespace kdelta::kda_cpu
