// Decode and verify, K = V = 128. A block takes some value rows of one head of one sequence; a row of the state is held
// by eight lanes, 16 keys each, from its load to its last store. Every thread prepares one key channel of the token
// (gate, decay, squares for the norms) and hands it over in shared memory.
#include "kdelta/ops/common/cuda/launch.cuh"
#include "kdelta/ops/kda/cuda_args.cuh"

namespace kdelta::kda_cuda {
namespace {

constexpr int kThreads = 128, kKeys = 16;

// How a lane's 16 keys lie in a row, and their 16-byte pieces.
template <class S>
struct Pieces;
template <>
struct Pieces<float> {
  static constexpr int kCount = 4, kWidth = 4;
  static __device__ __forceinline__ void unpack(const uint4& x, float* f) {
    f[0] = __uint_as_float(x.x), f[1] = __uint_as_float(x.y), f[2] = __uint_as_float(x.z), f[3] = __uint_as_float(x.w);
  }
  static __device__ __forceinline__ uint4 pack(float* f) {
    return {__float_as_uint(f[0]), __float_as_uint(f[1]), __float_as_uint(f[2]), __float_as_uint(f[3])};
  }
};
template <>
struct Pieces<__nv_bfloat16> {
  static constexpr int kCount = 2, kWidth = 8;
  static __device__ __forceinline__ void unpack(const uint4& x, float* f) {
    const uint32_t w[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int i = 0; i < 4; ++i)
      f[2 * i] = __uint_as_float(w[i] << 16), f[2 * i + 1] = __uint_as_float(w[i] & 0xffff0000u);
  }
  // Rounds f too: the next token continues from what was stored.
  static __device__ __forceinline__ uint4 pack(float* f) {
    uint32_t w[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(w[i]) : "f"(f[2 * i + 1]), "f"(f[2 * i]));
      f[2 * i] = __uint_as_float(w[i] << 16), f[2 * i + 1] = __uint_as_float(w[i] & 0xffff0000u);
    }
    return {w[0], w[1], w[2], w[3]};
  }
};

struct Token {
  float q[128], k[128], decay[128];
  float4 sums[4];  // of k k, q q and q k, one of each warp
};

// Eight lanes' sum, the same bits in each.
__device__ __forceinline__ float sum8(float x) {
#pragma unroll
  for (int m = 1; m < 8; m <<= 1) x += __shfl_xor_sync(~0u, x, m);
  return x;
}

// One token's operands as they come from memory: the thread's key channel, its value rows. Bits are widened only when
// used, so that no load waits for another.
template <int kTurns>
struct Raw {
  uint32_t q, k, gate, beta, v[kTurns];
};
__device__ __forceinline__ uint32_t load_bits(const Operand& x, int64_t t, int h, int d) {
  const int64_t at = t * x.token + h * x.head + d;
  uint32_t bits;
  if (x.is_bf16)
    bits = __ldg(static_cast<const uint16_t*>(x.data) + at);
  else
    bits = __ldg(static_cast<const uint32_t*>(x.data) + at);
  return bits;
}
__device__ __forceinline__ float widen(const Operand& x, uint32_t bits) {
  return __uint_as_float(x.is_bf16 ? bits << 16 : bits);
}
template <int kTurns>
__device__ __forceinline__ Raw<kTurns> load_token(const Args& a, int64_t t, int h, int row0) {
  Raw<kTurns> x;
  const int d = threadIdx.x;
  x.q = load_bits(a.q, t, h, d), x.k = load_bits(a.k, t, h, d), x.gate = load_bits(a.gate, t, h, d);
  x.beta = load_bits(a.beta, t, 0, h);
#pragma unroll
  for (int u = 0; u < kTurns; ++u) x.v[u] = load_bits(a.v, t, h, row0 + u * 4);
  return x;
}

__device__ __forceinline__ void share(const Args& a, float q, float k, float gate, float A, Token& out) {
  const int d = threadIdx.x;
  out.q[d] = q, out.k[d] = k;
  out.decay[d] = __expf(log_decay(a, A, gate));
  float kk = k * k, qq = q * q, qk = q * k;
#pragma unroll
  for (int m = 16; m > 0; m >>= 1) {
    kk += __shfl_xor_sync(~0u, kk, m);
    qq += __shfl_xor_sync(~0u, qq, m);
    qk += __shfl_xor_sync(~0u, qk, m);
  }
  if ((d & 31) == 0) out.sums[d / 32] = make_float4(kk, qq, qk, 0);
}

// kOne: rows have one token and one column, so a state row is unpacked, updated and stored in one go.
template <class S, int kSplit, bool kOne>
__global__ void __launch_bounds__(kThreads, kSplit == 8              ? 5
                                            : kOne && sizeof(S) == 2 ? 4
                                                                     : 3) step_kernel(const __grid_constant__ Args a) {
  using P = Pieces<S>;
  constexpr int kRows = 128 / kSplit, kTurns = kRows / 16;
  const int blocks = a.n_decode * a.H * kSplit, id = static_cast<int>(blockIdx.x);
  if (id >= blocks) return zero_tail(a, id - blocks, kTailBlocks);
  const int part = id % kSplit, h = id / kSplit % a.H, n = a.n_prefill + id / (kSplit * a.H);
  const float A = __expf(__ldg(a.a_log + h)), bias = __ldg(a.dt_bias + h * a.dt_head + threadIdx.x);
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
  Raw<kTurns> x = load_token<kTurns>(a, r.begin, h, row0);  // ahead of the state: it is needed first
  uint4 raw[kTurns][P::kCount];
#pragma unroll
  for (int i = 0; i < kTurns; ++i)
#pragma unroll
    for (int p = 0; p < P::kCount; ++p) raw[i][p] = r.is_fresh ? make_uint4(0, 0, 0, 0) : __ldcs(place(r.source, i, p));
  const bool met = n > 0 && meets_lower_row(a, n, r);

  __shared__ Token tokens[2];
  share(a, widen(a.q, x.q), widen(a.k, x.k), widen(a.gate, x.gate) + bias, A, tokens[0]);
  if (__syncthreads_or(met)) {
    raise_row(a, n);
    return zero_out(a, r.begin, r.len, h, part * kRows, kRows);
  }
  float s[kOne ? 1 : kTurns][kKeys];
  if constexpr (!kOne)
#pragma unroll
    for (int u = 0; u < kTurns; ++u)
#pragma unroll
      for (int p = 0; p < P::kCount; ++p) P::unpack(raw[u][p], s[u] + p * P::kWidth);
#pragma unroll 1
  for (int i = 0; i < (kOne ? 1 : r.len); ++i) {
    if (i > 0) __syncthreads();
    const int64_t t = r.begin + i;
    const Token& token = tokens[i & 1];
    const float4 w0 = token.sums[0], w1 = token.sums[1], w2 = token.sums[2], w3 = token.sums[3];
    const float kk = w0.x + w1.x + w2.x + w3.x, qq = w0.y + w1.y + w2.y + w3.y;
    const float fk = a.l2 ? rsqrtf(kk + 1e-6f) : 1.0f, fq = a.l2 ? a.scale * rsqrtf(qq + 1e-6f) : a.scale;
    const float qk = (w0.z + w1.z + w2.z + w3.z) * (fk * fq), raw_beta = widen(a.beta, x.beta),
                beta = a.beta_raw ? sigmoid(raw_beta) : raw_beta;
    float q[kKeys], k[kKeys], decay[kKeys];
#pragma unroll
    for (int p = 0; p < P::kCount; ++p)
#pragma unroll
      for (int e = 0; e < P::kWidth; e += 4) {
        const int d = p * 8 * P::kWidth + group * P::kWidth + e, j = p * P::kWidth + e;
        *reinterpret_cast<float4*>(q + j) = *reinterpret_cast<const float4*>(token.q + d);
        *reinterpret_cast<float4*>(k + j) = *reinterpret_cast<const float4*>(token.k + d);
        *reinterpret_cast<float4*>(decay + j) = *reinterpret_cast<const float4*>(token.decay + d);
      }
#pragma unroll
    for (int j = 0; j < kKeys; ++j) q[j] *= fq, k[j] *= fk;
    const int slot = kOne ? r.first : slot_of(a, n, i);
#pragma unroll
    for (int u = 0; u < kTurns; ++u) {
      float(&f)[kKeys] = s[kOne ? 0 : u];
      if constexpr (kOne)
#pragma unroll
        for (int p = 0; p < P::kCount; ++p) P::unpack(raw[u][p], f + p * P::kWidth);
      float kept = 0, seen = 0;
#pragma unroll
      for (int j = 0; j < kKeys; ++j) {
        f[j] *= decay[j];
        kept = fmaf(k[j], f[j], kept);
        seen = fmaf(q[j], f[j], seen);
      }
      kept = sum8(kept), seen = sum8(seen);
      const float delta = beta * (widen(a.v, x.v[u]) - kept);
#pragma unroll
      for (int j = 0; j < kKeys; ++j) f[j] = fmaf(k[j], delta, f[j]);
#pragma unroll
      for (int p = 0; p < P::kCount; ++p) __stcs(place(slot, u, p), P::pack(f + p * P::kWidth));
      if (group == 0) put_out(a, t, h, row0 + u * 4, fmaf(qk, delta, seen));  // q.S_new = q.(D S) + (q.k) delta
    }
    if (!kOne && i + 1 < r.len) {  // nobody reads the other token: all are past token i - 1
      x = load_token<kTurns>(a, t + 1, h, row0);
      share(a, widen(a.q, x.q), widen(a.k, x.k), widen(a.gate, x.gate) + bias, A, tokens[(i + 1) & 1]);
    }
  }
}

template <class S, int kSplit>
void launch_split(const Exec& ex, const Args& a) {
  const int64_t blocks = static_cast<int64_t>(a.n_decode) * a.H * kSplit + kTailBlocks;
  const auto kernel = a.columns == 1 ? step_kernel<S, kSplit, true> : step_kernel<S, kSplit, false>;
  cuda::launch(ex, "kda", {.grid = static_cast<unsigned>(blocks), .block = kThreads}, kernel, a);
}

}  // namespace

// Few heads in all: eight blocks a head spread the latency. Many: two keep the most bytes in flight.
void launch_step(const Exec& ex, const Args& a) {
  const bool few = static_cast<int64_t>(a.n_decode) * a.H <= 256;
  if (a.state_bf16)
    few ? launch_split<__nv_bfloat16, 8>(ex, a) : launch_split<__nv_bfloat16, 2>(ex, a);
  else
    few ? launch_split<float, 8>(ex, a) : launch_split<float, 2>(ex, a);
}

}  // namespace kdelta::kda_cuda
