// What device code of every op shares: conversions, 16-byte accesses, reductions, faults, and the order of dependent
// launches.
#pragma once

#include <cuda_runtime.h>

#include "kdelta/core/dtype.h"
#include "kdelta/core/fault.h"
#include "kdelta/core/tensor.h"

namespace kdelta::cuda {

// From here on the next kernel of the stream may begin (it waits for this one's end by itself).
__device__ __forceinline__ void pdl_trigger() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
// Everything enqueued before this kernel has ended and is visible.
__device__ __forceinline__ void pdl_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ void raise(uint32_t* faults, Fault fault) {
  if (faults != nullptr) atomicOr(faults, static_cast<uint32_t>(fault));
}

__device__ __forceinline__ float to_f32(float x) {
  return x;
}
__device__ __forceinline__ float to_f32(bf16 x) {
  return __uint_as_float(static_cast<uint32_t>(x.bits) << 16);
}
// Round to nearest, ties to even; NaN stays NaN.
template <class T>
__device__ __forceinline__ T from_f32(float x) {
  if constexpr (sizeof(T) == 4) {
    return x;
  } else {
    uint16_t bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return T{bits};
  }
}
// Two numbers in one word, the first in the low half.
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  uint32_t out;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  return out;
}
__device__ __forceinline__ float low_bf16(uint32_t pair) {
  return __uint_as_float(pair << 16);
}
__device__ __forceinline__ float high_bf16(uint32_t pair) {
  return __uint_as_float(pair & 0xffff0000u);
}

// Elements of one 16-byte access.
template <class T>
inline constexpr int kLanes = 16 / static_cast<int>(sizeof(T));

// N elements at p, to fp32. With kAligned p is 16-byte aligned and N a multiple of kLanes<T>.
template <bool kAligned, int N, class T>
__device__ __forceinline__ void load(const T* p, float (&x)[N]) {
  if constexpr (!kAligned) {
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] = to_f32(p[i]);
  } else if constexpr (sizeof(T) == 4) {
#pragma unroll
    for (int i = 0; i < N; i += 4) {
      const float4 v = *reinterpret_cast<const float4*>(p + i);
      x[i] = v.x, x[i + 1] = v.y, x[i + 2] = v.z, x[i + 3] = v.w;
    }
  } else {
#pragma unroll
    for (int i = 0; i < N; i += 8) {
      const uint4 v = *reinterpret_cast<const uint4*>(p + i);
      x[i] = low_bf16(v.x), x[i + 1] = high_bf16(v.x), x[i + 2] = low_bf16(v.y), x[i + 3] = high_bf16(v.y);
      x[i + 4] = low_bf16(v.z), x[i + 5] = high_bf16(v.z), x[i + 6] = low_bf16(v.w), x[i + 7] = high_bf16(v.w);
    }
  }
}

template <bool kAligned, int N, class T>
__device__ __forceinline__ void store(T* p, const float (&x)[N]) {
  if constexpr (!kAligned) {
#pragma unroll
    for (int i = 0; i < N; ++i) p[i] = from_f32<T>(x[i]);
  } else if constexpr (sizeof(T) == 4) {
#pragma unroll
    for (int i = 0; i < N; i += 4) *reinterpret_cast<float4*>(p + i) = make_float4(x[i], x[i + 1], x[i + 2], x[i + 3]);
  } else {
#pragma unroll
    for (int i = 0; i < N; i += 8)
      *reinterpret_cast<uint4*>(p + i) = make_uint4(pack_bf16(x[i], x[i + 1]), pack_bf16(x[i + 2], x[i + 3]),
                                                    pack_bf16(x[i + 4], x[i + 5]), pack_bf16(x[i + 6], x[i + 7]));
  }
}

// Butterflies: every lane gets the same bits.
template <int kWidth = 32>
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int offset = kWidth / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
  return x;
}
template <int kWidth = 32>
__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
  for (int offset = kWidth / 2; offset > 0; offset /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, offset));
  return x;
}

// Sums of N numbers over a block of kThreads; every thread gets the same bits. `shared` holds N * kThreads/32 floats
// and is free again behind the next barrier.
template <int kThreads, int N>
__device__ __forceinline__ void block_sums(float (&x)[N], float* shared) {
  constexpr int kWarps = kThreads / 32;
#pragma unroll
  for (int i = 0; i < N; ++i) x[i] = warp_sum(x[i]);
  if constexpr (kWarps > 1) {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    if (threadIdx.x % 32 == 0)
#pragma unroll
      for (int i = 0; i < N; ++i) shared[i * kWarps + warp] = x[i];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < N; ++i) {
      float sum = shared[i * kWarps];
#pragma unroll
      for (int w = 1; w < kWarps; ++w) sum += shared[i * kWarps + w];
      x[i] = sum;
    }
  }
}

}  // namespace kdelta::cuda
