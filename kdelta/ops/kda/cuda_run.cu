// kda on CUDA: a call's arguments for the kernels, and the order of launches.
#include <algorithm>

#include "kdelta/ops/kda/cuda_plan.cuh"
#include "kdelta/ops/kda/variants.h"

namespace kdelta::kda_cuda {

Operand operand(const AnyConstView& x) {
  return {x.data, x.stride[0], x.shape.rank == 3 ? x.stride[1] : 0, x.dtype == DType::bf16};
}

Args arguments(const Exec& ex, const KdaArgs& a, const KdaDesc& d) {
  Args x{};
  x.q = operand(a.q), x.k = operand(a.k), x.v = operand(a.v), x.gate = operand(a.gate), x.beta = operand(a.beta);
  x.a_log = a.a_log.data, x.dt_bias = a.dt_bias.data, x.dt_head = a.dt_bias.stride[0];
  x.out = a.out.data, x.out_token = a.out.stride[0], x.out_head = a.out.stride[1],
  x.out_bf16 = a.out.dtype == DType::bf16;
  x.state = a.state.data, x.state_slot = a.state.stride[0], x.state_bf16 = a.state.dtype == DType::bf16;
  if (!a.records.null())
    x.records = a.records.data, x.record_slot = a.records.stride[0], x.record_row = a.records.stride[1];
  x.seq = cuda::sequence_arrays(a.seq);
  x.cu = x.seq.cu, x.slot = x.seq.slot, x.slot_row = x.seq.slot_stride, x.accepted = x.seq.accepted,
  x.fresh = x.seq.fresh;
  x.snapshot = x.seq.snapshot, x.snapshot_row = x.seq.snapshot_stride, x.snapshots = x.seq.snapshots;
  x.count = x.seq.count, x.n_prefill = a.seq.n_prefill, x.n_decode = a.seq.n_decode, x.columns = x.seq.columns;
  x.slot_columns = a.records.null() ? x.columns : 1;
  x.T = d.T, x.slots = a.state.dim(0);
  x.H = static_cast<int>(d.H), x.K = static_cast<int>(d.K), x.V = static_cast<int>(d.V);
  x.bounded = a.gate_kind == KdaGate::bounded, x.beta_raw = a.beta_kind == KdaBeta::raw,
  x.l2 = a.norm_kind == KdaNorm::l2;
  x.lower_bound = a.lower_bound, x.scale = a.scale, x.faults = ex.faults;
  return x;
}

}  // namespace kdelta::kda_cuda

namespace kdelta {
namespace {

using namespace kda_cuda;

bool empty(const KdaDesc& d) {
  return d.T == 0 && d.N == 0;  // no row and nobody's: a launch would be all that such a call costs
}

void run(const Exec& ex, const KdaArgs& a, const KdaDesc& d, void* scratch, int segments) {
  if (empty(d)) return;
  const Args x = arguments(ex, a, d);
  if (x.n_prefill > 0) {
    Workspace w;
    layout_workspace(w, scratch, d.T, d.n_prefill, d.H, d.snapshots, segments);
    if (x.records != nullptr && x.columns > 1) launch_replay_prefill(ex, x);
    launch_plan(ex, x, w);
    launch_factors(ex, x, w, d.target.multiprocessors);
    if (divide_up(std::min(d.longest, d.T), kChunkTokens) > w.per_segment) launch_scan(ex, x, w);
    launch_outputs(ex, x, w, segments == 1);
    launch_finish(ex, x, w);
  }
  if (x.n_decode > 0 || x.n_prefill == 0) launch_step(ex, x);
}

}  // namespace

void kda_cuda_chunk(const Exec& ex, const KdaArgs& a, const KdaDesc& d, void* scratch) {
  run(ex, a, d, scratch, default_segments(d.H, d.T, d.target.multiprocessors));
}
void kda_cuda_chunk_serial(const Exec& ex, const KdaArgs& a, const KdaDesc& d, void* scratch) {
  run(ex, a, d, scratch, 1);
}
void kda_cuda_portable(const Exec& ex, const KdaArgs& a, const KdaDesc& d, void*) {
  if (!empty(d)) launch_portable(ex, arguments(ex, a, d));
}

}  // namespace kdelta
