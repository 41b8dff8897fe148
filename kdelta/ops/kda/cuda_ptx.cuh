// What the chunk schedule uses beside the instructions of ops/common/cuda: operands of either 16-bit type, and wgmma
// with fp16.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "kdelta/ops/common/cuda/async.cuh"
#include "kdelta/ops/common/cuda/device.cuh"
#include "kdelta/ops/common/cuda/fragments.cuh"
#include "kdelta/ops/common/cuda/math.cuh"
#include "kdelta/ops/common/cuda/wgmma.cuh"

namespace kdelta::kda_cuda {

__device__ __forceinline__ void named_barrier(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// The type of an in-block operand.
enum class Half { bf16, f16 };

template <Half kType>
__device__ __forceinline__ uint32_t pack(float low, float high) {
  uint32_t r;
  if constexpr (kType == Half::bf16)
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
template <Half kType>
__device__ __forceinline__ void unpack(uint32_t x, float& low, float& high) {
  if constexpr (kType == Half::bf16) {
    low = __uint_as_float(x << 16), high = __uint_as_float(x & 0xffff0000u);
  } else {
    const float2 f = __half22float2(*reinterpret_cast<const __half2*>(&x));
    low = f.x, high = f.y;
  }
}

template <Half kType>
__device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (kType == Half::bf16)
    cuda::mma_bf16(d, a, b0, b1);
  else
    cuda::mma_f16(d, a, b0, b1);
}

// A tile of 128-byte rows with the 128-byte swizzle, as wgmma's descriptor wants it: addresses in units of 16 bytes.
// kLead separates 64-column halves where a tile is read transposed.
template <int kLead>
__device__ __forceinline__ uint64_t tile_descriptor(uint32_t at16) {
  constexpr uint64_t kFixed =
      static_cast<uint64_t>(kLead >> 4) << 16 | static_cast<uint64_t>(1024 >> 4) << 32 | static_cast<uint64_t>(1) << 62;
  return kFixed + at16;
}
// d (m64n64, fp32) = a (m64k16 fp16, registers) b, or += . kTransposed: b lies as [k][n], otherwise as [n][k].
template <bool kAdd, bool kTransposed>
__device__ __forceinline__ void wgmma_n64(float (&d)[32], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                          uint64_t b) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%"
      "30,"
      "%31}, {%32,%33,%34,%35}, %36, p, 1, 1, %38;\n}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
        "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
        "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "n"(kAdd ? 1 : 0), "n"(kTransposed ? 1 : 0));
}

}  // namespace kdelta::kda_cuda
