// kda_decode on Hopper, K = V = 128: a block takes some value rows of one head of one sequence, the blocks of a head
// are a thread-block cluster. All blocks of a head prepare its q and k; their sums for the norm of its output meet in
// cluster memory, and the barrier of that lies between the last read of the old window and the first write of the new.
// Every rounding and every order of a sum is that of short_conv.cu, cuda_step.cu and gated_norm.cu.
#include <algorithm>

#include "kdelta/ops/common/cuda/async.cuh"
#include "kdelta/ops/common/cuda/launch.cuh"
#include "kdelta/ops/common/cuda/math.cuh"
#include "kdelta/ops/kda/cuda_step.cuh"
#include "kdelta/ops/kda/decode_variants.h"

namespace kdelta::kda_cuda {
namespace {

constexpr int kTaps = 4;

struct Decode {
  Args a;  // all but q, k and v
  const bf16* qkv;
  int64_t qkv_token;
  const float* taps;  // [kTaps, channels]
  int64_t taps_row;
  bf16* window;  // [slots, rows, channels]
  int64_t window_slot, channels;
  Operand gate;
  const float* norm_weight;
  float norm_eps;
};

// Four channels of the convolution of one sequence: what its inputs were, and are.
struct Convolved {
  uint2 past[kTaps - 1], now;
  __device__ __forceinline__ void load(const Decode& p, const Row& r, int64_t c) {
    now = __ldg(reinterpret_cast<const uint2*>(p.qkv + r.begin * p.qkv_token + c));
    const bf16* rows = p.window + r.first * p.window_slot + c;
#pragma unroll
    for (int j = 0; j < kTaps - 1; ++j)
      past[j] = r.is_fresh ? make_uint2(0, 0) : *reinterpret_cast<const uint2*>(rows + j * p.channels);
  }
  // The window behind it, to memory or to where it waits for the other blocks of the head.
  __device__ __forceinline__ uint2 next(int row) const {
    return row < kTaps - 2 ? past[row + 1] : now;
  }
  // SiLU of the sums, rounded.
  __device__ __forceinline__ float4 result(const float4 (&taps)[kTaps]) const {
    float y[4] = {};
#pragma unroll
    for (int j = 0; j < kTaps; ++j) {
      const uint2 x = j < kTaps - 1 ? past[j] : now;
      y[0] = fmaf(taps[j].x, cuda::low_bf16(x.x), y[0]), y[1] = fmaf(taps[j].y, cuda::high_bf16(x.x), y[1]);
      y[2] = fmaf(taps[j].z, cuda::low_bf16(x.y), y[2]), y[3] = fmaf(taps[j].w, cuda::high_bf16(x.y), y[3]);
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) y[e] = y[e] * cuda::sigmoid_flushed(y[e]);
    const uint32_t low = cuda::pack_bf16(y[0], y[1]), high = cuda::pack_bf16(y[2], y[3]);
    return make_float4(cuda::low_bf16(low), cuda::high_bf16(low), cuda::low_bf16(high), cuda::high_bf16(high));
  }
};
__device__ __forceinline__ uint2* window_at(const Decode& p, const Row& r, int row, int64_t c) {
  return reinterpret_cast<uint2*>(p.window + r.first * p.window_slot + row * p.channels + c);
}
__device__ __forceinline__ void load_taps(const Decode& p, int64_t c, float4 (&taps)[kTaps]) {
#pragma unroll
  for (int j = 0; j < kTaps; ++j) taps[j] = __ldg(reinterpret_cast<const float4*>(p.taps + j * p.taps_row + c));
}

__device__ __forceinline__ void arrive_at_head() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void wait_for_head() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ __forceinline__ void put_in_block(float* place, int block, float x) {
  uint32_t at;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(cuda::shared_address(place)), "r"(block));
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(at), "f"(x) : "memory");
}

template <int kRows>
struct alignas(16) Shared {
  float q[128], k[128], decay[128], v[kRows];
  float out[kRows], gate[kRows];
  float squares[16];  // of eight outputs each, of the whole head
  uint2 window[2][kTaps - 1][32], v_window[kTaps - 1][kRows / 4];
  float qk, beta;
};

template <int kSplit>
constexpr int kThreads = kSplit == 1 ? 256 : 128;

template <class S, int kSplit>
__global__ void __launch_bounds__(kThreads<kSplit>, kSplit == 1 ? 2 : 4)
    decode_kernel(const __grid_constant__ Decode p, int resident) {
  using P = Pieces<S>;
  constexpr int kRows = 128 / kSplit, kWarps = kThreads<kSplit> / 32, kTurns = kRows / kWarps / 4;
  cuda::pdl_trigger();
  const Args& a = p.a;
  const int blocks = a.n_decode * a.H * kSplit, id = static_cast<int>(blockIdx.x);
  if (id >= blocks) return zero_tail(a, id - blocks, kTailBlocks);
  if constexpr (kSplit > 1) arrive_at_head();
  auto leave = [] {
    if constexpr (kSplit > 1) wait_for_head();
  };
  const int part = id % kSplit, h = id / kSplit % a.H, n = id / (kSplit * a.H);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, group = lane & 7;
  const Row r = read_row(a, n);
  if (r.len <= 0 && r.is_sound) return leave();
  if (r.first == -1 || !r.is_sound) {
    if (r.first != -1) raise_row(a, n);
    if (r.begin >= 0 && r.len > 0 && r.begin + r.len <= a.T) zero_out(a, r.begin, r.len, h, part * kRows, kRows);
    return leave();
  }

  const int own_row = warp * (kTurns * 4) + (lane >> 3);
  auto place = [&](int turn, int piece) {
    const int64_t at =
        r.first * a.state_slot + (static_cast<int64_t>(h) * 128 + part * kRows + own_row + turn * 4) * 128;
    return reinterpret_cast<uint4*>(static_cast<S*>(a.state) + at + piece * 8 * P::kWidth + group * P::kWidth);
  };
  uint4 raw[kTurns][P::kCount];
#pragma unroll
  for (int u = 0; u < kTurns; ++u)
#pragma unroll
    for (int i = 0; i < P::kCount; ++i) raw[u][i] = r.is_fresh ? make_uint4(0, 0, 0, 0) : __ldcs(place(u, i));
  const bool met = n > 0 && meets_lower_row(a, n, r);

  // Warp 0 makes q and k, the next ones v, the decays and the output's gate, four channels a lane.
  __shared__ Shared<kRows> shared;
  const int64_t in_head = h * 128 + lane * 4;
  const int64_t q_channel = in_head, k_channel = a.H * 128 + in_head,
                v_channel = (2 * a.H + h) * int64_t{128} + part * kRows + lane * 4;
  if (warp == 0) {
    Convolved for_q, for_k;
    for_q.load(p, r, q_channel), for_k.load(p, r, k_channel);
    float4 taps[kTaps], more_taps[kTaps];
    load_taps(p, q_channel, taps), load_taps(p, k_channel, more_taps);
    const float4 q = for_q.result(taps), k = for_k.result(more_taps);
#pragma unroll
    for (int j = 0; j < kTaps - 1; ++j)
      shared.window[0][j][lane] = for_q.next(j), shared.window[1][j][lane] = for_k.next(j);
    float kk = (k.x * k.x + k.y * k.y) + (k.z * k.z + k.w * k.w);
    float qq = (q.x * q.x + q.y * q.y) + (q.z * q.z + q.w * q.w);
    float qk = (q.x * k.x + q.y * k.y) + (q.z * k.z + q.w * k.w);
#pragma unroll
    for (int m = 1; m < 32; m <<= 1) {
      kk += __shfl_xor_sync(~0u, kk, m);
      qq += __shfl_xor_sync(~0u, qq, m);
      qk += __shfl_xor_sync(~0u, qk, m);
    }
    const Norms norms = norms_of(a, kk, qq, qk);
    *reinterpret_cast<float4*>(shared.q + lane * 4) =
        make_float4(q.x * norms.q, q.y * norms.q, q.z * norms.q, q.w * norms.q);
    *reinterpret_cast<float4*>(shared.k + lane * 4) =
        make_float4(k.x * norms.k, k.y * norms.k, k.z * norms.k, k.w * norms.k);
    if (lane == 0) shared.qk = norms.qk;
  } else if (warp == 1) {
    if (lane * 4 < kRows) {
      Convolved for_v;
      for_v.load(p, r, v_channel);
      float4 taps[kTaps];
      load_taps(p, v_channel, taps);
      *reinterpret_cast<float4*>(shared.v + lane * 4) = for_v.result(taps);
#pragma unroll
      for (int j = 0; j < kTaps - 1; ++j) shared.v_window[j][lane] = for_v.next(j);
    }
  } else if (warp == 2) {
    const float A = __expf(__ldg(a.a_log + h));
    const float4 bias = __ldg(reinterpret_cast<const float4*>(a.dt_bias + h * a.dt_head) + lane);
    const float4 z = four_of(a.gate, r.begin, h, lane * 4);
    *reinterpret_cast<float4*>(shared.decay + lane * 4) =
        make_float4(__expf(log_decay(a, A, z.x + bias.x)), __expf(log_decay(a, A, z.y + bias.y)),
                    __expf(log_decay(a, A, z.z + bias.z)), __expf(log_decay(a, A, z.w + bias.w)));
  } else if (warp == 3) {
    if (lane == 0) shared.beta = beta_of(a, r.begin, h);
    if (lane * 4 < kRows) {
      const float4 g = four_of(p.gate, r.begin, h, part * kRows + lane * 4);
      *reinterpret_cast<float4*>(shared.gate + lane * 4) =
          make_float4(cuda::sigmoid_flushed(g.x), cuda::sigmoid_flushed(g.y), cuda::sigmoid_flushed(g.z),
                      cuda::sigmoid_flushed(g.w));
    }
  } else if (kSplit == 1 && warp == 7 && lane == 0 && id + resident < blocks) {
    // All blocks of a wave read at once: the state of a block of the next comes while this one calculates.
    const int next = (id + resident) / a.H;
    const Row of_next = read_row(a, next);
    if (of_next.is_sound && of_next.first != -1 && of_next.len > 0 && !of_next.is_fresh)
      cuda::bulk_prefetch(static_cast<const S*>(a.state) + of_next.first * a.state_slot +
                              static_cast<int64_t>((id + resident) % a.H) * 128 * 128,
                          128 * 128 * static_cast<int>(sizeof(S)));
  }
  if (__syncthreads_or(met)) {
    raise_row(a, n);
    zero_out(a, r.begin, r.len, h, part * kRows, kRows);
    return leave();
  }
  if (warp == 1 && lane * 4 < kRows)  // nobody else reads these channels of the window
#pragma unroll
    for (int j = 0; j < kTaps - 1; ++j) *window_at(p, r, j, v_channel) = shared.v_window[j][lane];

  float f[kTurns][kKeys], k[kKeys], kept[kTurns] = {}, seen[kTurns] = {};
#pragma unroll
  for (int u = 0; u < kTurns; ++u)
#pragma unroll
    for (int i = 0; i < P::kCount; ++i) P::unpack(raw[u][i], f[u] + i * P::kWidth);
  read_keys<S>(shared.k, group, k);
#pragma unroll
  for (int j = 0; j < kKeys; j += 4) {
    const float4 q = four_keys<S>(shared.q, group, j), decay = four_keys<S>(shared.decay, group, j);
    const float qs[4] = {q.x, q.y, q.z, q.w}, decays[4] = {decay.x, decay.y, decay.z, decay.w};
#pragma unroll
    for (int e = 0; e < 4; ++e)
#pragma unroll
      for (int u = 0; u < kTurns; ++u) {
        f[u][j + e] *= decays[e];
        kept[u] = fmaf(k[j + e], f[u][j + e], kept[u]), seen[u] = fmaf(qs[e], f[u][j + e], seen[u]);
      }
  }
  // Lane `own` of a row's eight ends with the sums of turn `own`.
  const int v_row = own_row + group % kTurns * 4;
  const float change = shared.beta * (shared.v[v_row] - sum_of_turn(kept, lane)), q_sum = sum_of_turn(seen, lane);
  if (group < kTurns) shared.out[v_row] = cuda::to_f32(cuda::from_f32<bf16>(fmaf(shared.qk, change, q_sum)));
#pragma unroll
  for (int u = 0; u < kTurns; ++u) {
    const float c = kTurns == 1 ? change : __shfl_sync(~0u, change, u, 8);
#pragma unroll
    for (int j = 0; j < kKeys; ++j) f[u][j] = fmaf(k[j], c, f[u][j]);
#pragma unroll
    for (int i = 0; i < P::kCount; ++i) __stcs(place(u, i), P::pack(f[u] + i * P::kWidth));
  }
  leave();  // all its blocks run, so their shared memory is there
  __syncthreads();
  const int t = static_cast<int>(threadIdx.x);
  if (t < 16) {  // kSplit copies of the sums of this block's eights
    const int eight = t / kSplit;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) sum = fmaf(shared.out[eight * 8 + i], shared.out[eight * 8 + i], sum);
    if constexpr (kSplit > 1)
      put_in_block(shared.squares + part * (kRows / 8) + eight, t % kSplit, sum);
    else
      shared.squares[eight] = sum;
  }
  if constexpr (kSplit > 1) {
    __syncwarp();
    arrive_at_head();
    wait_for_head();
  } else {
    __syncthreads();
  }
  const float sum = cuda::warp_sum<16>(shared.squares[lane & 15]);
  if (t < kRows) {
    const int row = part * kRows + t;
    const float scale = rsqrtf(sum / 128.0f + p.norm_eps);
    const float y = fmaf(shared.out[t] * scale, __ldg(p.norm_weight + row), 0.0f);
    put_out(a, r.begin, h, row, y * shared.gate[t]);
  }
  if (warp < 2 && part == 0)
#pragma unroll
    for (int j = 0; j < kTaps - 1; ++j)
      *window_at(p, r, j, warp == 0 ? q_channel : k_channel) = shared.window[warp][j][lane];
}

template <class S, int kSplit>
void launch_decode(const Exec& ex, const Decode& p) {
  static_assert(kTailBlocks % kSplit == 0, "a cluster has blocks of one kind");
  const int64_t blocks = static_cast<int64_t>(p.a.n_decode) * p.a.H * kSplit + kTailBlocks;
  cuda::launch(ex, "kda_decode", {.grid = static_cast<unsigned>(blocks), .block = kThreads<kSplit>, .cluster = kSplit},
               decode_kernel<S, kSplit>, p, 2 * target_of(ex).multiprocessors);
}

// The fewer the heads the more blocks for each: all of them prepare q and k, and a cluster's barriers are not free.
template <class S>
void launch_decode(const Exec& ex, const Decode& p) {
  const int64_t heads = static_cast<int64_t>(p.a.n_decode) * p.a.H;
  if (heads <= 32)
    launch_decode<S, 8>(ex, p);
  else if (heads <= 256)
    launch_decode<S, 4>(ex, p);
  else
    launch_decode<S, 1>(ex, p);
}

}  // namespace
}  // namespace kdelta::kda_cuda

namespace kdelta {

void kda_decode_cuda(const Exec& ex, const KdaDecodeArgs& x, const KdaDecodeDesc& d, void*) {
  using namespace kda_cuda;
  Decode p{.a = arguments(ex,
                          {.q = x.qkv,
                           .k = x.qkv,
                           .v = x.qkv,
                           .gate = x.decay,
                           .beta = x.beta,
                           .a_log = x.a_log,
                           .dt_bias = x.dt_bias,
                           .gate_kind = x.gate_kind,
                           .lower_bound = x.lower_bound,
                           .beta_kind = x.beta_kind,
                           .norm_kind = x.norm_kind,
                           .scale = x.scale,
                           .seq = x.seq,
                           .state = x.state,
                           .out = x.out},
                          {.T = d.T, .H = d.H, .K = d.K, .V = d.V}),
           .qkv = static_cast<const bf16*>(x.qkv.data),
           .qkv_token = x.qkv.stride[0],
           .taps = x.conv_weight.data,
           .taps_row = x.conv_weight.stride[0],
           .window = static_cast<bf16*>(x.window.data),
           .window_slot = x.window.stride[0],
           .channels = x.qkv.dim(1),
           .gate = operand(x.gate),
           .norm_weight = x.norm_weight.data,
           .norm_eps = x.norm_eps};
  p.a.slots = std::min(p.a.slots, x.window.dim(0));
  if (p.a.state_bf16)
    launch_decode<__nv_bfloat16>(ex, p);
  else
    launch_decode<float>(ex, p);
}

}  // namespace kdelta
