// Elements of kv_b in fp32, whatever its format; equal to dequantize_row of core/matrix.h.
#pragma once

#include <cuda_fp16.h>

#include "kdelta/core/check.h"
#include "kdelta/core/matrix.h"
#include "kdelta/ops/common/cuda/device.cuh"

namespace kdelta::mla_cuda {

template <DType kFormat>
struct Weight {
  static constexpr bool kMx = kFormat != DType::f32 && kFormat != DType::bf16;
  const uint8_t* data;
  const uint8_t* scale;
  int64_t row_bytes, scale_row_bytes;

  __device__ __forceinline__ float at(int64_t row, int64_t col) const {
    const uint8_t* p = data + row * row_bytes;
    if constexpr (kFormat == DType::f32) return __uint_as_float(word<4>(p + col * 4));
    if constexpr (kFormat == DType::bf16) return __uint_as_float(word<2>(p + col * 2) << 16);
    if constexpr (kMx) return code_value(p, col) * scale_value(scale[row * scale_row_bytes + col / kMxBlock]);
  }

 private:
  // Rows may start at any byte.
  template <int kBytes>
  static __device__ __forceinline__ uint32_t word(const uint8_t* p) {
    if (reinterpret_cast<uintptr_t>(p) % kBytes == 0) {
      if constexpr (kBytes == 4) return *reinterpret_cast<const uint32_t*>(p);
      return *reinterpret_cast<const uint16_t*>(p);
    }
    uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < kBytes; ++i) bits |= static_cast<uint32_t>(p[i]) << (8 * i);
    return bits;
  }
  static __device__ __forceinline__ float scale_value(uint32_t code) {
    return __uint_as_float(code == 0 ? 0x00400000u : code == 255 ? 0x7fc00000u : code << 23);
  }
  static __device__ __forceinline__ float code_value(const uint8_t* p, int64_t col) {
    if constexpr (kFormat == DType::f4_e2m1) {
      const uint32_t code = p[col / 2] >> (col % 2 * 4) & 15, e = code >> 1 & 3, m = code & 1;
      const float v = e == 0 ? 0.5f * static_cast<float>(m) : __uint_as_float((e + 126) << 23 | m << 22);
      return (code & 8) != 0 ? -v : v;
    } else if constexpr (kFormat == DType::f8_e5m2) {
      return __half2float(__ushort_as_half(static_cast<unsigned short>(p[col] << 8)));
    } else {
      const uint32_t code = p[col], e = code >> 3 & 15, m = code & 7;
      float v = e == 0 ? static_cast<float>(m) * 0x1p-9f : __uint_as_float((e + 120) << 23 | m << 20);
      if ((code & 0x7f) == 0x7f) v = __uint_as_float(0x7fc00000u);
      return (code & 0x80) != 0 ? -v : v;
    }
  }
};

// f(Weight of the matrix's format).
template <class F>
void dispatch_weight(const Matrix& m, F&& f) {
  const auto with = [&](auto format) {
    f(Weight<format()>{static_cast<const uint8_t*>(m.data), m.scale, m.row_bytes, m.scale_row_bytes});
  };
  switch (m.dtype) {
    case DType::f32:
      return with(std::integral_constant<DType, DType::f32>{});
    case DType::bf16:
      return with(std::integral_constant<DType, DType::bf16>{});
    case DType::f8_e4m3:
      return with(std::integral_constant<DType, DType::f8_e4m3>{});
    case DType::f8_e5m2:
      return with(std::integral_constant<DType, DType::f8_e5m2>{});
    case DType::f4_e2m1:
      return with(std::integral_constant<DType, DType::f4_e2m1>{});
    default:
      KDELTA_UNREACHABLE("weight dtype", m.dtype);
  }
}

}  // namespace kdelta::mla_cuda
