// What the kernels of decode rows share, K = V = 128: a row of the state is held by eight lanes, 16 keys each, from its
// load to its last store; a block's 128 threads prepare one key channel each.
#pragma once

#include "kdelta/ops/kda/cuda_args.cuh"

namespace kdelta::kda_cuda {

constexpr int kStepThreads = 128, kKeys = 16;

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

// Eight lanes' sum, the same bits in each.
__device__ __forceinline__ float sum8(float x) {
#pragma unroll
  for (int m = 1; m < 8; m <<= 1) x += __shfl_xor_sync(~0u, x, m);
  return x;
}

// The same for a number of each turn: a lane gets the sum of turn lane % kTurns, with the bits of sum8.
template <int kTurns>
__device__ __forceinline__ float sum_of_turn(float (&x)[kTurns], int lane) {
#pragma unroll
  for (int m = 1, left = kTurns; m < 8; m <<= 1) {
    if (left == 1) {
      x[0] += __shfl_xor_sync(~0u, x[0], m);
      continue;
    }
    left /= 2;
    const bool odd = (lane & m) != 0;
#pragma unroll
    for (int u = 0; u < left; ++u) {
      const float sent = odd ? x[2 * u] : x[2 * u + 1];
      x[u] = (odd ? x[2 * u + 1] : x[2 * u]) + __shfl_xor_sync(~0u, sent, m);
    }
  }
  return x[0];
}

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

// Four channels of a row as they come from memory, at once.
struct Four {
  uint4 bits;  // of bf16 the first half
};
__device__ __forceinline__ Four load_four(const Operand& x, int64_t t, int h, int d) {
  const int64_t at = t * x.token + h * x.head + d;
  if (!x.is_bf16) return {__ldg(reinterpret_cast<const uint4*>(static_cast<const float*>(x.data) + at))};
  const uint2 y = __ldg(reinterpret_cast<const uint2*>(static_cast<const uint16_t*>(x.data) + at));
  return {make_uint4(y.x, y.y, 0, 0)};
}
__device__ __forceinline__ float4 widen(const Operand& x, const Four& y) {
  if (!x.is_bf16)
    return make_float4(__uint_as_float(y.bits.x), __uint_as_float(y.bits.y), __uint_as_float(y.bits.z),
                       __uint_as_float(y.bits.w));
  return make_float4(__uint_as_float(y.bits.x << 16), __uint_as_float(y.bits.x & 0xffff0000u),
                     __uint_as_float(y.bits.y << 16), __uint_as_float(y.bits.y & 0xffff0000u));
}
__device__ __forceinline__ float4 four_of(const Operand& x, int64_t t, int h, int d) {
  return widen(x, load_four(x, t, h, d));
}

// Sums of k k, q q and q k over a warp's channels.
__device__ __forceinline__ float3 warp_sums(float q, float k) {
  float kk = k * k, qq = q * q, qk = q * k;
#pragma unroll
  for (int m = 1; m < 32; m <<= 1) {
    kk += __shfl_xor_sync(~0u, kk, m);
    qq += __shfl_xor_sync(~0u, qq, m);
    qk += __shfl_xor_sync(~0u, qk, m);
  }
  return make_float3(kk, qq, qk);
}
// What brings k and q to their norms, and the product q k of a token that has been brought there.
struct Norms {
  float k, q, qk;
};
__device__ __forceinline__ Norms norms_of(const Args& a, float kk, float qq, float qk) {
  Norms n;
  n.k = a.l2 ? rsqrtf(kk + 1e-6f) : 1.0f, n.q = a.l2 ? a.scale * rsqrtf(qq + 1e-6f) : a.scale;
  n.qk = qk * (n.k * n.q);
  return n;
}
// Of the sums of four warps, in the order in which one warp with four channels a lane would come by them.
__device__ __forceinline__ Norms norms_of(const Args& a, const float4 (&sums)[4]) {
  const float4 w0 = sums[0], w1 = sums[1], w2 = sums[2], w3 = sums[3];
  const float kk = (w0.x + w1.x) + (w2.x + w3.x), qq = (w0.y + w1.y) + (w2.y + w3.y);
  return norms_of(a, kk, qq, (w0.z + w1.z) + (w2.z + w3.z));
}

// One token on a lane's 16 keys of one value row: f becomes the row behind it; returns the change and the output.
struct Stepped {
  float change, out;
};
__device__ __forceinline__ Stepped step_row(float (&f)[kKeys], const float (&q)[kKeys], const float (&k)[kKeys],
                                            const float (&decay)[kKeys], float qk, float beta, float v) {
  float kept = 0, seen = 0;
#pragma unroll
  for (int j = 0; j < kKeys; ++j) {
    f[j] *= decay[j];
    kept = fmaf(k[j], f[j], kept);
    seen = fmaf(q[j], f[j], seen);
  }
  kept = sum8(kept), seen = sum8(seen);
  const float change = beta * (v - kept);
#pragma unroll
  for (int j = 0; j < kKeys; ++j) f[j] = fmaf(k[j], change, f[j]);
  return {change, fmaf(qk, change, seen)};  // q.S_new = q.(D S) + (q.k) change
}

// Of 128 numbers in shared memory a lane's 16, as they lie in a row of the state: four of them from its j-th on, or
// all.
template <class S>
__device__ __forceinline__ float4 four_keys(const float* from, int group, int j) {
  constexpr int kWidth = Pieces<S>::kWidth;
  return *reinterpret_cast<const float4*>(from + j / kWidth * 8 * kWidth + group * kWidth + j % kWidth);
}
template <class S>
__device__ __forceinline__ void read_keys(const float* from, int group, float (&to)[kKeys]) {
#pragma unroll
  for (int j = 0; j < kKeys; j += 4) *reinterpret_cast<float4*>(to + j) = four_keys<S>(from, group, j);
}

}  // namespace kdelta::kda_cuda
