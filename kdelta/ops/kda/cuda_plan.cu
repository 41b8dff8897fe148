// The first kernel of a prefill: lists chunks, segments and scan items from the lengths on the device, refuses faulty
// rows, links snapshots to chunks and zeroes the rows of out that belong to nobody.
#include "kdelta/ops/common/cuda/launch.cuh"
#include "kdelta/ops/kda/cuda_plan.cuh"
#include "kdelta/ops/kda/cuda_ptx.cuh"

namespace kdelta::kda_cuda {
namespace {

constexpr int kThreads = 512;
enum : int { kPad = -1, kFault = -2, kEmpty = -3 };  // SequenceSlots::first

__device__ Prefix add(Prefix a, Prefix b) {
  return {a.chunks + b.chunks, a.segments + b.segments, a.scans + b.scans, 0};
}

// Exclusive sums over the block's threads; *total receives the sum of all.
__device__ Prefix block_sum(Prefix x, Prefix* total) {
  __shared__ Prefix warp_total[kThreads / 32];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  Prefix sum = x;
  for (int m = 1; m < 32; m <<= 1) {
    const Prefix o = {__shfl_up_sync(~0u, sum.chunks, m), __shfl_up_sync(~0u, sum.segments, m),
                      __shfl_up_sync(~0u, sum.scans, m), 0};
    if (lane >= m) sum = add(sum, o);
  }
  __syncthreads();
  if (lane == 31) warp_total[warp] = sum;
  __syncthreads();
  Prefix before = {}, all = {};
  for (int w = 0; w < kThreads / 32; ++w) {
    if (w == warp) before = all;
    all = add(all, warp_total[w]);
  }
  *total = all;
  return {before.chunks + sum.chunks - x.chunks, before.segments + sum.segments - x.segments,
          before.scans + sum.scans - x.scans, 0};
}

// Last n with prefix[n].member <= i; sequences without items of the kind are passed over.
template <class F>
__device__ int owner(int n, int i, F prefix) {
  int low = 0, high = n;  // prefix(low) <= i < prefix(high)
  while (high - low > 1) {
    const int mid = (low + high) / 2;
    (prefix(mid) <= i ? low : high) = mid;
  }
  return low;
}

// Padded, faulty and live rows. What a row claims counts for higher rows even when it is faulty itself.
__device__ void classify(const Args& a, const Workspace& w) {
  for (int n = threadIdx.x; n < a.n_prefill; n += kThreads) {
    const Row r = read_row(a, n);
    w.sequence[n] = {r.len == 0      ? kEmpty
                     : r.first == -1 ? kPad
                     : r.is_sound    ? r.first
                                     : kFault,
                     r.is_fresh ? 0 : r.source};
    const bool claims = r.len != 0 && r.first != -1;
    w.prefix[n] = {claims ? r.first : -1, claims && !r.is_fresh && r.source != r.first ? r.source : -1, 0, 0};
  }
  __syncthreads();
  for (int n = threadIdx.x; n < a.n_prefill; n += kThreads) {
    SequenceSlots mine = w.sequence[n];
    if (mine.first == kPad || mine.first == kEmpty) continue;
    bool met = false;
    for (int m = 0; m < n; ++m) {
      const Prefix claim = w.prefix[m];
      met |= claim.chunks == mine.first || claim.segments == mine.first ||
             (mine.source > 0 && (claim.chunks == mine.source || claim.segments == mine.source));
    }
    if (!met && mine.first != kFault) continue;
    w.sequence[n].first = kFault;
    if (a.faults != nullptr) atomicOr(a.faults, faults_of_row(a, n, 0, 1));
  }
  __syncthreads();
}

__device__ Plan count(const Args& a, const Workspace& w) {
  Prefix before = {};
  for (int base = 0; base < a.n_prefill; base += kThreads) {
    const int n = base + static_cast<int>(threadIdx.x);
    Prefix mine = {};
    if (n < a.n_prefill) {
      const int state = w.sequence[n].first, begin = __ldg(a.cu + n), end = __ldg(a.cu + n + 1), len = end - begin;
      if (state >= 1) {
        mine.chunks = (len + kChunkTokens - 1) / kChunkTokens;
        mine.segments = (mine.chunks + w.per_segment - 1) / w.per_segment;
        mine.scans = mine.segments > 1 ? 2 * mine.segments - 3 : 0;
      } else if (state != kEmpty && len > 0 && begin >= 0 && end <= a.T) {
        mine.segments = 1;
      }
    }
    Prefix total;
    const Prefix at = add(before, block_sum(mine, &total));
    if (n < a.n_prefill) w.prefix[n] = at;
    before = add(before, total);
  }
  if (threadIdx.x == 0) w.prefix[a.n_prefill] = before;
  __syncthreads();
  return {before.chunks, before.segments, before.scans, 0};
}

// A snapshot (n, i, slot) hangs on the last whole chunk before i, or on the sequence when i lies in the first chunk.
// The chain is short, and its order does not matter.
__device__ void link_snapshots(const Args& a, const Workspace& w, int chunks) {
  for (int c = threadIdx.x; c < chunks; c += kThreads) w.chunk_snapshot[c] = -1;
  for (int n = threadIdx.x; n < a.n_prefill; n += kThreads) w.sequence_snapshot[n] = -1;
  __syncthreads();
  for (int s = threadIdx.x; s < a.snapshots; s += kThreads) {
    const int32_t* x = a.snapshot + s * a.snapshot_row;
    const int n = x[0], position = x[1];
    w.snapshot_next[s] = kNotTaken;
    const uint32_t bits = faults_of_snapshot(a, s);
    if (bits != 0 && a.faults != nullptr) atomicOr(a.faults, bits);
    if (x[2] == -1 || bits != 0 || w.sequence[n].first < 1) continue;
    const int whole = position / kChunkTokens;
    int* head = whole == 0 ? w.sequence_snapshot + n : w.chunk_snapshot + w.prefix[n].chunks + whole - 1;
    w.snapshot_next[s] = atomicExch(head, s);
  }
  __syncthreads();
}

// First chunk of segment i of `count` that share `total` chunks. The outputs of a segment begin when its start state
// has been composed of all segments between the first and itself, one after the other, each in the time of 13/8 chunks:
// so later segments are shorter. The first two fifths are alike, because the scan waits for the longest.
__device__ int segment_begin(int i, int count, int total) {
  constexpr int kUnits = 8, kCompose = 13;  // a chunk's time, a composition's
  if (i == count) return total;
  const int alike = max(2, (2 * count + 2) / 5), later = count - alike;
  if (later <= 0) return static_cast<int>(static_cast<int64_t>(i) * total / count);
  // Segment j is step * max(0, j - alike + 1) units shorter than the first; the last keeps a chunk at least.
  const auto steps = [](int n) { return n * (n + 1) / 2; };
  const int most = kUnits * (total - count) / (later * count - steps(later));
  const int step = min(kCompose, most);
  const int64_t first = static_cast<int64_t>(kUnits) * total + step * steps(later);  // times count
  return static_cast<int>((i * first / count - step * steps(max(0, i - alike))) / kUnits);
}

__device__ bool has_snapshots(const Workspace& w, int n, int index, int chunk, int chunks) {
  bool any = index == 0 && w.sequence_snapshot[n] >= 0;
  for (int c = 0; c < chunks; ++c) any |= w.chunk_snapshot[chunk + c] >= 0;
  return any;
}

__device__ void list(const Args& a, const Workspace& w, const Plan& plan) {
  for (int c = threadIdx.x; c < plan.chunks; c += kThreads) {
    const int n = owner(a.n_prefill, c, [&](int m) { return w.prefix[m].chunks; });
    const int i = c - w.prefix[n].chunks, begin = __ldg(a.cu + n) + i * kChunkTokens;
    w.chunk[c] = {n, begin, min(kChunkTokens, __ldg(a.cu + n + 1) - begin), 0};
  }
  for (int s = threadIdx.x; s < plan.segments; s += kThreads) {
    const int n = owner(a.n_prefill, s, [&](int m) { return w.prefix[m].segments; });
    const Prefix first = w.prefix[n], next = w.prefix[n + 1];
    Segment x = {.sequence = n, .index = s - first.segments, .count = next.segments - first.segments};
    const int total = next.chunks - first.chunks;
    const int from = segment_begin(x.index, x.count, total), to = segment_begin(x.index + 1, x.count, total);
    x.chunk = first.chunks + from, x.chunks = to - from;
    x.begin = __ldg(a.cu + n), x.len = __ldg(a.cu + n + 1) - x.begin;
    if (w.sequence[n].first < 1)
      x.flags = kZero;
    else if (a.snapshots > 0 && has_snapshots(w, n, x.index, x.chunk, x.chunks))
      x.flags = kSnapshots;
    w.segment[s] = x;
  }
  // Segment 0 needs h only, the last is not scanned, the others need both.
  for (int i = threadIdx.x; i < plan.scans; i += kThreads) {
    const int n = owner(a.n_prefill, i, [&](int m) { return w.prefix[m].scans; });
    const int j = i - w.prefix[n].scans;
    w.scan[i] = {w.prefix[n].segments + (j + 1) / 2, j > 0 && j % 2 == 0 ? 1 : 0};
  }
}

__global__ void __launch_bounds__(kThreads)
    plan_kernel(const __grid_constant__ Args a, const __grid_constant__ Workspace w) {
  if (blockIdx.x > 0) return zero_tail(a, static_cast<int>(blockIdx.x) - 1, kTailBlocks);
  cuda::pdl_trigger();
  classify(a, w);
  Plan plan = count(a, w);
  if (a.snapshots > 0) link_snapshots(a, w, plan.chunks);
  list(a, w, plan);
  for (int i = threadIdx.x; i < a.n_prefill * a.H * 2; i += kThreads) w.repaired[i] = 0;
  if (threadIdx.x == 0) *w.plan = plan;
}

}  // namespace

void launch_plan(const Exec& ex, const Args& a, const Workspace& w) {
  const unsigned tail = a.n_decode > 0 ? 0 : kTailBlocks;  // the step kernel does it otherwise
  cuda::launch(ex, "kda", {.grid = 1 + tail, .block = kThreads}, plan_kernel, a, w);
}

}  // namespace kdelta::kda_cuda
