// Decode rows of one token and one column, K = V = 128: a state row is unpacked, updated and stored in one go. A block
// takes some value rows of one head of one sequence.
#include "kdelta/ops/common/cuda/launch.cuh"
#include "kdelta/ops/kda/cuda_step.cuh"

namespace kdelta::kda_cuda {
namespace {

struct Token {
  float q[128], k[128], decay[128];
  float4 sums[4];  // one of each warp
};

template <class S, int kSplit>
__global__ void __launch_bounds__(kStepThreads, kSplit == 8      ? 5
                                                : sizeof(S) == 2 ? 4
                                                                 : 3) step_kernel(const __grid_constant__ Args a) {
  using P = Pieces<S>;
  constexpr int kRows = 128 / kSplit, kTurns = kRows / 16;
  const int blocks = a.n_decode * a.H * kSplit, id = static_cast<int>(blockIdx.x);
  if (id >= blocks) return zero_tail(a, id - blocks, kTailBlocks);
  const int part = id % kSplit, h = id / kSplit % a.H, n = a.n_prefill + id / (kSplit * a.H), d = threadIdx.x;
  const float A = __expf(__ldg(a.a_log + h)), bias = __ldg(a.dt_bias + h * a.dt_head + d);
  const Row r = read_row(a, n);
  if (r.len <= 0 && r.is_sound) return;
  if (r.first == -1 || !r.is_sound) {
    if (r.first != -1) raise_row(a, n);
    if (r.begin >= 0 && r.len > 0 && r.begin + r.len <= a.T) zero_out(a, r.begin, r.len, h, part * kRows, kRows);
    return;
  }

  const int lane = threadIdx.x & 31, group = lane & 7;
  const int row0 = part * kRows + static_cast<int>(threadIdx.x >> 5) * (kRows / 4) + (lane >> 3);
  auto place = [&](int slot, int turn, int piece) {
    const int64_t at = slot * a.state_slot + (static_cast<int64_t>(h) * 128 + row0 + turn * 4) * 128;
    return reinterpret_cast<uint4*>(static_cast<S*>(a.state) + at + piece * 8 * P::kWidth + group * P::kWidth);
  };
  // Bits are widened only when used, so that no load waits for another; these are needed first.
  const uint32_t raw_q = load_bits(a.q, r.begin, h, d), raw_k = load_bits(a.k, r.begin, h, d),
                 raw_gate = load_bits(a.gate, r.begin, h, d), raw_beta = load_bits(a.beta, r.begin, 0, h);
  uint32_t raw_v[kTurns];
#pragma unroll
  for (int u = 0; u < kTurns; ++u) raw_v[u] = load_bits(a.v, r.begin, h, row0 + u * 4);
  uint4 raw[kTurns][P::kCount];
#pragma unroll
  for (int i = 0; i < kTurns; ++i)
#pragma unroll
    for (int p = 0; p < P::kCount; ++p) raw[i][p] = r.is_fresh ? make_uint4(0, 0, 0, 0) : __ldcs(place(r.source, i, p));
  const bool met = n > 0 && meets_lower_row(a, n, r);

  __shared__ Token token;
  const float own_q = widen(a.q, raw_q), own_k = widen(a.k, raw_k);
  token.q[d] = own_q, token.k[d] = own_k;
  token.decay[d] = __expf(log_decay(a, A, widen(a.gate, raw_gate) + bias));
  const float3 sums = warp_sums(own_q, own_k);
  if (lane == 0) token.sums[d / 32] = make_float4(sums.x, sums.y, sums.z, 0);
  if (__syncthreads_or(met)) {
    raise_row(a, n);
    return zero_out(a, r.begin, r.len, h, part * kRows, kRows);
  }
  const Norms norms = norms_of(a, token.sums);
  const float b = widen(a.beta, raw_beta), beta = a.beta_raw ? sigmoid(b) : b;
  float q[kKeys], k[kKeys], decay[kKeys];
  read_keys<S>(token.q, group, q), read_keys<S>(token.k, group, k), read_keys<S>(token.decay, group, decay);
#pragma unroll
  for (int j = 0; j < kKeys; ++j) q[j] *= norms.q, k[j] *= norms.k;
#pragma unroll
  for (int u = 0; u < kTurns; ++u) {
    float f[kKeys];
#pragma unroll
    for (int p = 0; p < P::kCount; ++p) P::unpack(raw[u][p], f + p * P::kWidth);
    const Stepped x = step_row(f, q, k, decay, norms.qk, beta, widen(a.v, raw_v[u]));
#pragma unroll
    for (int p = 0; p < P::kCount; ++p) __stcs(place(r.first, u, p), P::pack(f + p * P::kWidth));
    if (group == 0) put_out(a, r.begin, h, row0 + u * 4, x.out);
  }
}

template <class S, int kSplit>
void launch_split(const Exec& ex, const Args& a) {
  const int64_t blocks = static_cast<int64_t>(a.n_decode) * a.H * kSplit + kTailBlocks;
  cuda::launch(ex, "kda", {.grid = static_cast<unsigned>(blocks), .block = kStepThreads}, step_kernel<S, kSplit>, a);
}

}  // namespace

// Few heads in all: eight blocks a head spread the latency. Many: two keep the most bytes in flight.
void launch_step(const Exec& ex, const Args& a) {
  if (a.columns > 1) return launch_verify(ex, a);
  const bool few = static_cast<int64_t>(a.n_decode) * a.H <= 256;
  if (a.state_bf16)
    few ? launch_split<__nv_bfloat16, 8>(ex, a) : launch_split<__nv_bfloat16, 2>(ex, a);
  else
    few ? launch_split<float, 8>(ex, a) : launch_split<float, 2>(ex, a);
}

}  // namespace kdelta::kda_cuda
