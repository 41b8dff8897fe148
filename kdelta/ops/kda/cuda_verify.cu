// Decode rows that may have drafts, K = V = 128. A block takes some value rows of one head of one sequence: it replays
// the records that the row starts from, prepares eight tokens side by side and takes them one after the other with the
// state in registers.
#include "kdelta/ops/common/cuda/launch.cuh"
#include "kdelta/ops/kda/cuda_step.cuh"

namespace kdelta::kda_cuda {
namespace {

constexpr int kGroup = 8;  // tokens, or records, that are in shared memory together

template <int kRows>
struct alignas(16) Shared {
  struct alignas(16) Token {
    float q[128], k[128], decay[128], v[kRows];
    float qk, beta;
  } token[kGroup];
  struct alignas(16) Record {
    float decay[128], k[128], u[kRows];
  } record[kGroup];
  float4 sums[kGroup][4];
};

__device__ __forceinline__ void copy_word(float* to, const float* from) {
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(at), "l"(from) : "memory");
}
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}
// The barrier of the blocks that share a head, in two halves.
__device__ __forceinline__ void arrive_at_head() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void wait_for_head() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// The thread's channel of up to eight tokens as it comes from memory.
struct Channel {
  uint32_t q[kGroup], k[kGroup], gate[kGroup], v[kGroup], beta;
};

template <int kRows>
struct Block {
  const Args& a;
  Shared<kRows>& shared;
  int h, part;
  float A, bias;

  __device__ __forceinline__ void copy_records(int slot, int first, int count) const {
    const int d = threadIdx.x;
    for (int i = 0; i < count; ++i) {
      const float* record = record_of(a, slot, first + i, h);
      auto& to = shared.record[i];
      copy_word(to.decay + d, record + d), copy_word(to.k + d, record + 128 + d);
      if (d < kRows) copy_word(to.u + d, record + 256 + part * kRows + d);
    }
  }
  __device__ __forceinline__ Channel load(int64_t t, int count) const {
    Channel x{};
    const int d = threadIdx.x;
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      if (i >= count) break;
      x.q[i] = load_bits(a.q, t + i, h, d), x.k[i] = load_bits(a.k, t + i, h, d);
      x.gate[i] = load_bits(a.gate, t + i, h, d);
      if (d < kRows) x.v[i] = load_bits(a.v, t + i, h, part * kRows + d);
    }
    if (d < count) x.beta = load_bits(a.beta, t + d, 0, h);
    return x;
  }
  // In two halves with a barrier between and behind them.
  __device__ __forceinline__ void sum(const Channel& x, int count) const {
    const int d = threadIdx.x;
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      if (i >= count) break;
      const float3 s = warp_sums(widen(a.q, x.q[i]), widen(a.k, x.k[i]));
      if ((d & 31) == 0) shared.sums[i][d / 32] = make_float4(s.x, s.y, s.z, 0);
    }
  }
  __device__ __forceinline__ void prepare(const Channel& x, int count) const {
    const int d = threadIdx.x;
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      if (i >= count) break;
      auto& to = shared.token[i];
      const Norms norms = norms_of(a, shared.sums[i]);
      to.q[d] = widen(a.q, x.q[i]) * norms.q, to.k[d] = widen(a.k, x.k[i]) * norms.k;
      to.decay[d] = __expf(log_decay(a, A, widen(a.gate, x.gate[i]) + bias));
      if (d < kRows) to.v[d] = widen(a.v, x.v[i]);
      if (d == i) {
        const float b = widen(a.beta, x.beta);
        to.qk = norms.qk, to.beta = a.beta_raw ? sigmoid(b) : b;
      }
    }
  }
};

// kRecords: drafts leave records, and the blocks of a head are one cluster.
template <class S, int kSplit, bool kRecords>
__global__ void __launch_bounds__(kStepThreads, kSplit == 8 ? 4 : 3) verify_kernel(const __grid_constant__ Args a) {
  using P = Pieces<S>;
  constexpr int kRows = 128 / kSplit, kTurns = kRows / 16;
  const int blocks = a.n_decode * a.H * kSplit, id = static_cast<int>(blockIdx.x);
  if (id >= blocks) return zero_tail(a, id - blocks, kTailBlocks);
  const int part = id % kSplit, h = id / kSplit % a.H, n = a.n_prefill + id / (kSplit * a.H), d = threadIdx.x;
  __shared__ Shared<kRows> shared;
  const Block<kRows> block{a, shared, h, part, __expf(__ldg(a.a_log + h)), __ldg(a.dt_bias + h * a.dt_head + d)};
  const Row r = read_row(a, n);
  if (r.len <= 0 && r.is_sound) return;
  if (r.first == -1 || !r.is_sound) {
    if (r.first != -1) raise_row(a, n);
    if (r.begin >= 0 && r.len > 0 && r.begin + r.len <= a.T) zero_out(a, r.begin, r.len, h, part * kRows, kRows);
    return;
  }

  // All that the first tokens need is asked for before any of it is used.
  const int lane = threadIdx.x & 31, group = lane & 7;
  const int own_row = static_cast<int>(threadIdx.x >> 5) * (kRows / 4) + (lane >> 3), row0 = part * kRows + own_row;
  auto place = [&](int slot, int turn, int piece) {
    const int64_t at = slot * a.state_slot + (static_cast<int64_t>(h) * 128 + row0 + turn * 4) * 128;
    return reinterpret_cast<uint4*>(static_cast<S*>(a.state) + at + piece * 8 * P::kWidth + group * P::kWidth);
  };
  const int replayed = kRecords ? r.replayed : 0;
  if (kRecords) block.copy_records(r.first, 0, min(replayed, kGroup));
  Channel x = block.load(r.begin, min(r.len, kGroup));
  float s[kTurns][kKeys];
  {
    uint4 raw[kTurns][P::kCount];
#pragma unroll
    for (int u = 0; u < kTurns; ++u)
#pragma unroll
      for (int p = 0; p < P::kCount; ++p)
        raw[u][p] = r.is_fresh ? make_uint4(0, 0, 0, 0) : __ldcs(place(r.source, u, p));
#pragma unroll
    for (int u = 0; u < kTurns; ++u)
#pragma unroll
      for (int p = 0; p < P::kCount; ++p) P::unpack(raw[u][p], s[u] + p * P::kWidth);
  }
  const bool met = n > 0 && meets_lower_row(a, n, r);
  block.sum(x, min(r.len, kGroup));
  if (kRecords) wait_for_copies();
  if (__syncthreads_or(met)) {
    raise_row(a, n);
    return zero_out(a, r.begin, r.len, h, part * kRows, kRows);
  }
  block.prepare(x, min(r.len, kGroup));

  const bool takes_turns = kRecords && replayed > 0 && r.len > 1;  // others may have yet to read what is written here
  if constexpr (kRecords) {
    for (int first = 0; first < replayed; first += kGroup) {
      const int count = min(replayed - first, kGroup);
      if (first > 0) {
        __syncthreads();
        block.copy_records(r.first, first, count);
        wait_for_copies();
        __syncthreads();
      }
#pragma unroll 1
      for (int i = 0; i < count; ++i) {
        const auto& record = shared.record[i];
        float decay[kKeys], k[kKeys];
        read_keys<S>(record.decay, group, decay), read_keys<S>(record.k, group, k);
#pragma unroll
        for (int u = 0; u < kTurns; ++u) {
          const float change = record.u[own_row + u * 4];
#pragma unroll
          for (int j = 0; j < kKeys; ++j) s[u][j] = fmaf(k[j], change, s[u][j] * decay[j]);
#pragma unroll
          for (int p = 0; p < P::kCount; ++p) P::pack(s[u] + p * P::kWidth);  // rounds to the pool's dtype
        }
      }
    }
    if (takes_turns) arrive_at_head();
  }
  __syncthreads();  // the tokens are prepared

  for (int first = 0; first < r.len; first += kGroup) {
    const int count = min(r.len - first, kGroup);
    if (first > 0) {
      x = block.load(r.begin + first, count);
      block.sum(x, count);
      __syncthreads();  // and nobody reads the tokens before
      block.prepare(x, count);
      __syncthreads();
    }
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      const int at = first + i;
      const auto& token = shared.token[i];
      const bool draft = kRecords && at > 0;
      float q[kKeys], k[kKeys], decay[kKeys];
      read_keys<S>(token.q, group, q), read_keys<S>(token.k, group, k), read_keys<S>(token.decay, group, decay);
      const int slot = kRecords ? r.first : slot_of(a, n, at);
      float* record = draft ? record_of(a, r.first, at - 1, h) : nullptr;
      if (takes_turns && at == 1) wait_for_head();
      if (draft && at % kSplit == part) record[d] = token.decay[d], record[128 + d] = token.k[d];
#pragma unroll
      for (int u = 0; u < kTurns; ++u) {
        const Stepped y = step_row(s[u], q, k, decay, token.qk, token.beta, token.v[own_row + u * 4]);
#pragma unroll
        for (int p = 0; p < P::kCount; ++p) {
          const uint4 bits = P::pack(s[u] + p * P::kWidth);
          if (!draft) __stcs(place(slot, u, p), bits);
        }
        if (group == 0) put_out(a, r.begin + at, h, row0 + u * 4, y.out);
        if (draft && group == 0) record[256 + row0 + u * 4] = y.change;
      }
    }
  }
}

template <class S, int kSplit>
void launch_split(const Exec& ex, const Args& a) {
  static_assert(kTailBlocks % kSplit == 0, "a cluster has blocks of one kind");
  const int64_t blocks = static_cast<int64_t>(a.n_decode) * a.H * kSplit + kTailBlocks;
  const bool records = a.records != nullptr;
  cuda::launch(ex, "kda",
               {.grid = static_cast<unsigned>(blocks), .block = kStepThreads, .cluster = records ? kSplit : 1},
               records ? verify_kernel<S, kSplit, true> : verify_kernel<S, kSplit, false>, a);
}

}  // namespace

void launch_verify(const Exec& ex, const Args& a) {
  const bool few = static_cast<int64_t>(a.n_decode) * a.H <= 256;
  if (a.state_bf16)
    few ? launch_split<__nv_bfloat16, 8>(ex, a) : launch_split<__nv_bfloat16, 2>(ex, a);
  else
    few ? launch_split<float, 8>(ex, a) : launch_split<float, 2>(ex, a);
}

}  // namespace kdelta::kda_cuda
