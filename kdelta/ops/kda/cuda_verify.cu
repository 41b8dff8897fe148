// Decode rows that may have drafts, K = V = 128. A block takes all or some value rows of one head of one sequence: it
// replays the records that the row starts from, prepares eight tokens side by side and takes them one after the other
// with the state in registers.
#include "kdelta/ops/common/cuda/async.cuh"
#include "kdelta/ops/common/cuda/launch.cuh"
#include "kdelta/ops/kda/cuda_step.cuh"

namespace kdelta::kda_cuda {
namespace {

constexpr int kGroup = 8;  // tokens, or records, that are in shared memory together

// Where a head is one block, eight warps share the preparation of its tokens; where it is eight, four are enough.
template <int kSplit>
constexpr int kThreads = kSplit == 1 ? 256 : 128;

template <int kRows>
struct alignas(16) Shared {
  struct alignas(16) Token {
    float q[128], k[128], decay[128], v[kRows];
    float qk, beta;
  } token[kGroup];
  struct alignas(16) Record {
    float decay[128], k[128], u[kRows];
  } record[kGroup];
};

// The barrier of the blocks that share a head, in two halves.
__device__ __forceinline__ void arrive_at_head() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void wait_for_head() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

__device__ __forceinline__ float4 operator*(const float4& x, const float4& y) {
  return make_float4(x.x * y.x, x.y * y.y, x.z * y.z, x.w * y.w);
}
__device__ __forceinline__ float4 operator*(const float4& x, float y) {
  return make_float4(x.x * y, x.y * y, x.z * y, x.w * y);
}
__device__ __forceinline__ float sum4(const float4& x) {
  return (x.x + x.y) + (x.z + x.w);
}

// A warp prepares kOwn of a group's tokens, every lane four channels of each.
template <int kOwn>
struct Raw {
  Four q[kOwn], k[kOwn], gate[kOwn], v[kOwn];
  uint32_t beta[kOwn];
};

template <int kSplit>
struct Block {
  static constexpr int kRows = 128 / kSplit, kWarps = kThreads<kSplit> / 32, kOwn = kGroup / kWarps;
  const Args& a;
  Shared<kRows>& shared;
  int h, part;
  float A;
  float4 bias;

  __device__ __forceinline__ void copy_records(int slot, int first, int count) const {
    constexpr int kPieces = 64 + kRows / 4;  // decays and keys lie behind one another, here as there
    for (int i = threadIdx.x; i < count * kPieces; i += kThreads<kSplit>) {
      const int j = i / kPieces, piece = i % kPieces;
      const float* record = record_of(a, slot, first + j, h);
      cuda::copy16(cuda::shared_address(shared.record[j].decay + piece * 4),
                   piece < 64 ? record + piece * 4 : record + 256 + part * kRows + (piece - 64) * 4);
    }
  }
  // Decays and keys of the drafts among the tokens first, first + 1, ... of the row: every block of the head takes its
  // share.
  __device__ __forceinline__ void write_keys(int slot, int first, int count) const {
    const int skip = first == 0 ? 1 : 0;
    for (int i = part * kThreads<kSplit> + threadIdx.x; i < (count - skip) * 64; i += kSplit * kThreads<kSplit>) {
      const int j = i / 64 + skip, piece = i % 64;
      const float* from = piece < 32 ? shared.token[j].decay + piece * 4 : shared.token[j].k + (piece - 32) * 4;
      reinterpret_cast<float4*>(record_of(a, slot, first + j - 1, h))[piece] = *reinterpret_cast<const float4*>(from);
    }
  }
  __device__ __forceinline__ Raw<kOwn> load(int64_t t, int count) const {
    Raw<kOwn> x;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int64_t own = t + min(warp + i * kWarps, count - 1);  // what lies behind the last is not used
      x.q[i] = load_four(a.q, own, h, lane * 4), x.k[i] = load_four(a.k, own, h, lane * 4);
      x.gate[i] = load_four(a.gate, own, h, lane * 4);
      x.v[i] = load_four(a.v, own, h, part * kRows + lane * 4 % kRows);
      x.beta[i] = load_bits(a.beta, own, 0, h);
    }
    return x;
  }
  __device__ __forceinline__ void prepare(const Raw<kOwn>& x, int count) const {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    float4 q[kOwn], k[kOwn];
    float kk[kOwn], qq[kOwn], qk[kOwn];
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      q[i] = widen(a.q, x.q[i]), k[i] = widen(a.k, x.k[i]);
      kk[i] = sum4(k[i] * k[i]), qq[i] = sum4(q[i] * q[i]), qk[i] = sum4(q[i] * k[i]);
    }
#pragma unroll
    for (int m = 1; m < 32; m <<= 1)
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        kk[i] += __shfl_xor_sync(~0u, kk[i], m);
        qq[i] += __shfl_xor_sync(~0u, qq[i], m);
        qk[i] += __shfl_xor_sync(~0u, qk[i], m);
      }
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      if (warp + i * kWarps >= count) break;
      auto& to = shared.token[warp + i * kWarps];
      const Norms norms = norms_of(a, kk[i], qq[i], qk[i]);
      const float4 gate = widen(a.gate, x.gate[i]);
      const auto at = [&](float* array) { return reinterpret_cast<float4*>(array + lane * 4); };
      *at(to.q) = q[i] * norms.q, *at(to.k) = k[i] * norms.k;
      *at(to.decay) = make_float4(__expf(log_decay(a, A, gate.x + bias.x)), __expf(log_decay(a, A, gate.y + bias.y)),
                                  __expf(log_decay(a, A, gate.z + bias.z)), __expf(log_decay(a, A, gate.w + bias.w)));
      if (lane * 4 < kRows) *at(to.v) = widen(a.v, x.v[i]);
      if (lane == 0) {
        const float b = kda_cuda::widen(a.beta, x.beta[i]);
        to.qk = norms.qk, to.beta = a.beta_raw ? sigmoid(b) : b;
      }
    }
  }
};

// What the block of one head will read first, if its row is one that will be worked on. A warp calls it.
template <class S>
__device__ __forceinline__ void prefetch_head(const Args& a, int id, int lane) {
  const int h = id % a.H, n = a.n_prefill + id / a.H;
  const Row r = read_row(a, n);
  if (!r.is_sound || r.first == -1 || r.len <= 0) return;
  if (lane == 0 && !r.is_fresh)
    cuda::bulk_prefetch(static_cast<const S*>(a.state) + r.source * a.state_slot + static_cast<int64_t>(h) * 128 * 128,
                        128 * 128 * static_cast<int>(sizeof(S)));
  if (lane < r.replayed) cuda::bulk_prefetch(record_of(a, r.first, lane, h), 384 * 4);
  const int t = lane / 4;
  if (t >= r.len) return;
  const Operand& x = lane % 4 == 0 ? a.q : lane % 4 == 1 ? a.k : lane % 4 == 2 ? a.v : a.gate;
  const int size = x.is_bf16 ? 2 : 4;
  cuda::bulk_prefetch(static_cast<const char*>(x.data) + ((r.begin + t) * x.token + h * x.head) * size, 128 * size);
}

// kRecords: drafts leave records, and the blocks of a head are one cluster.
template <class S, int kSplit, bool kRecords>
__global__ void __launch_bounds__(kThreads<kSplit>, kSplit == 1 ? 2 : 4)
    verify_kernel(const __grid_constant__ Args a, int resident) {
  using P = Pieces<S>;
  constexpr int kRows = 128 / kSplit, kWarps = kThreads<kSplit> / 32, kTurns = kRows / kWarps / 4;
  const int blocks = a.n_decode * a.H * kSplit, id = static_cast<int>(blockIdx.x);
  if (id >= blocks) return zero_tail(a, id - blocks, kTailBlocks);
  const int part = id % kSplit, h = id / kSplit % a.H, n = a.n_prefill + id / (kSplit * a.H);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, group = lane & 7;
  const Row r = read_row(a, n);
  if (r.len <= 0 && r.is_sound) return;
  if (r.first == -1 || !r.is_sound) {
    if (r.first != -1) raise_row(a, n);
    if (r.begin >= 0 && r.len > 0 && r.begin + r.len <= a.T) zero_out(a, r.begin, r.len, h, part * kRows, kRows);
    return;
  }

  // All that the first tokens need is asked for before any of it is used.
  __shared__ Shared<kRows> shared;
  const Block<kSplit> block{.a = a,
                            .shared = shared,
                            .h = h,
                            .part = part,
                            .A = __expf(__ldg(a.a_log + h)),
                            .bias = __ldg(reinterpret_cast<const float4*>(a.dt_bias + h * a.dt_head) + lane)};
  const int own_row = warp * (kTurns * 4) + (lane >> 3), row0 = part * kRows + own_row;
  auto place = [&](int slot, int turn, int piece) {
    const int64_t at = slot * a.state_slot + (static_cast<int64_t>(h) * 128 + row0 + turn * 4) * 128;
    return reinterpret_cast<uint4*>(static_cast<S*>(a.state) + at + piece * 8 * P::kWidth + group * P::kWidth);
  };
  const int replayed = kRecords ? r.replayed : 0;
  if (kRecords) block.copy_records(r.first, 0, min(replayed, kGroup));
  auto x = block.load(r.begin, min(r.len, kGroup));
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
  block.prepare(x, min(r.len, kGroup));
  if (kRecords) cuda::copies_wait_all();
  if (__syncthreads_or(met)) {
    raise_row(a, n);
    return zero_out(a, r.begin, r.len, h, part * kRows, kRows);
  }

  // All blocks of a wave read at once and then calculate at once: the next one's states come meanwhile.
  if (kRecords && kSplit == 1 && sizeof(S) == 4 && warp == 0 && id + resident < blocks)
    prefetch_head<S>(a, id + resident, lane);

  // Other blocks of the head may have yet to read what is written here.
  const bool takes_turns = kRecords && kSplit > 1 && replayed > 0 && r.len > 1;
  if constexpr (kRecords) {
    for (int first = 0; first < replayed; first += kGroup) {
      const int count = min(replayed - first, kGroup);
      if (first > 0) {
        __syncthreads();
        block.copy_records(r.first, first, count);
        cuda::copies_wait_all();
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

  // Lane `own` of a row's eight ends with the sums of turn `own`, and writes what comes of them.
  const int own = group % kTurns, v_row = own_row + own * 4;
  const bool writes = group < kTurns;
  auto* out = static_cast<__nv_bfloat16*>(a.out) + r.begin * a.out_token + h * a.out_head + part * kRows + v_row;
  // The state decays and the output of a token is written. Returns the change of the lane's turn.
  auto see = [&](int i, float(&k)[kKeys]) {
    const auto& token = shared.token[i];
    float kept[kTurns] = {}, seen[kTurns] = {};
    read_keys<S>(token.k, group, k);
#pragma unroll
    for (int j = 0; j < kKeys; j += 4) {
      const float4 q = four_keys<S>(token.q, group, j), decay = four_keys<S>(token.decay, group, j);
      const float qs[4] = {q.x, q.y, q.z, q.w}, decays[4] = {decay.x, decay.y, decay.z, decay.w};
#pragma unroll
      for (int e = 0; e < 4; ++e)
#pragma unroll
        for (int u = 0; u < kTurns; ++u) {
          s[u][j + e] *= decays[e];
          kept[u] = fmaf(k[j + e], s[u][j + e], kept[u]), seen[u] = fmaf(qs[e], s[u][j + e], seen[u]);
        }
    }
    const float change = token.beta * (token.v[v_row] - sum_of_turn(kept, lane)), sum = sum_of_turn(seen, lane);
    if (writes) *out = __float2bfloat16(fmaf(token.qk, change, sum));
    out += a.out_token;
    return change;
  };
  // The state takes it up, rounded to the pool's dtype.
  auto update = [&](const float(&k)[kKeys], float change) {
#pragma unroll
    for (int u = 0; u < kTurns; ++u) {
      const float c = kTurns == 1 ? change : __shfl_sync(~0u, change, u, 8);
#pragma unroll
      for (int j = 0; j < kKeys; ++j) s[u][j] = fmaf(k[j], c, s[u][j]);
#pragma unroll
      for (int p = 0; p < P::kCount; ++p) P::pack(s[u] + p * P::kWidth);
    }
  };
  auto store = [&](int slot) {
#pragma unroll
    for (int u = 0; u < kTurns; ++u)
#pragma unroll
      for (int p = 0; p < P::kCount; ++p) __stcs(place(slot, u, p), P::pack(s[u] + p * P::kWidth));
  };

  float* change_out = kRecords ? record_of(a, r.first, 0, h) + 256 + part * kRows + v_row : nullptr;
  for (int first = 0; first < r.len; first += kGroup) {
    const int count = min(r.len - first, kGroup);
    if (first > 0) {
      x = block.load(r.begin + first, count);
      __syncthreads();  // nobody reads the tokens before
      block.prepare(x, count);
      __syncthreads();
    }
    int i = 0;
    float k[kKeys];
    if (kRecords && first == 0) {
      update(k, see(i++, k));
      store(r.first);
      if (takes_turns) wait_for_head();
    }
#pragma unroll 1
    for (; i < count; ++i) {
      const float change = see(i, k);
      if constexpr (kRecords) {
        if (writes) *change_out = change;
        change_out += a.record_row;
        if (first + i + 1 == r.len) break;  // nobody reads the state behind the last draft
      }
      update(k, change);
      if constexpr (!kRecords) store(slot_of(a, n, first + i));
    }
    if (kRecords) block.write_keys(r.first, first, count);
  }
}

template <class S, int kSplit>
void launch_split(const Exec& ex, const Args& a) {
  static_assert(kTailBlocks % kSplit == 0, "a cluster has blocks of one kind");
  const int64_t blocks = static_cast<int64_t>(a.n_decode) * a.H * kSplit + kTailBlocks;
  const bool records = a.records != nullptr;
  cuda::launch(
      ex, "kda", {.grid = static_cast<unsigned>(blocks), .block = kThreads<kSplit>, .cluster = records ? kSplit : 1},
      records ? verify_kernel<S, kSplit, true> : verify_kernel<S, kSplit, false>, a, 2 * target_of(ex).multiprocessors);
}

}  // namespace

void launch_verify(const Exec& ex, const Args& a) {
  const bool few = static_cast<int64_t>(a.n_decode) * a.H <= 256;
  if (a.state_bf16)
    few ? launch_split<__nv_bfloat16, 8>(ex, a) : launch_split<__nv_bfloat16, 1>(ex, a);
  else
    few ? launch_split<float, 8>(ex, a) : launch_split<float, 1>(ex, a);
}

}  // namespace kdelta::kda_cuda
