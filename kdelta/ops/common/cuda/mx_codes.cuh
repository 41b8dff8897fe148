// The element formats of OCP Microscaling in a kernel: scales, codes and their values, as
// kdelta/ops/mx_quant/mx_quant.h defines them.
#pragma once

#include <type_traits>

#include "kdelta/core/check.h"
#include "kdelta/core/matrix.h"
#include "kdelta/ops/common/cuda/device.cuh"

namespace kdelta::cuda {

// A binary format with kMantissa stored bits whose normal numbers begin at 2^kLeast; the largest is kLargest.
template <DType>
struct Format;
template <>
struct Format<DType::f8_e4m3> {
  static constexpr int kMantissa = 3, kLeast = -6, kMost = 8, kBits = 8;
  static constexpr float kLargest = 448;
};
template <>
struct Format<DType::f8_e5m2> {
  static constexpr int kMantissa = 2, kLeast = -14, kMost = 15, kBits = 8;
  static constexpr float kLargest = 57344;
};
template <>
struct Format<DType::f4_e2m1> {
  static constexpr int kMantissa = 1, kLeast = 0, kMost = 2, kBits = 4;
  static constexpr float kLargest = 6;
};

// 2^e for -127 <= e <= 127, exact.
__device__ __forceinline__ float power_of_two(int e) {
  return e > -127 ? __int_as_float((e + 127) << 23) : __int_as_float(0x00400000);
}

// E of the contract; amax is finite. Subnormal amax ends at -127 like zero.
template <class F>
__device__ __forceinline__ int scale_exponent(MxScaleRule rule, float amax) {
  const int bits = __float_as_int(amax), e = (bits >> 23) - 127, fraction = bits & 0x7fffff;
  constexpr int kLargestFraction = F::kMantissa == 1 ? 0x400000 : 0x600000;  // of 1.5 or 1.75
  constexpr int kRoundsUp = 0x800000 - (0x400000 >> F::kMantissa);           // of 2 - half an ulp
  const int up = rule == MxScaleRule::rceil  ? fraction > kLargestFraction
                 : rule == MxScaleRule::even ? fraction >= kRoundsUp
                                             : 0;
  return max(-127, e - F::kMost + up);
}

// Rounded to nearest, ties to even, saturating; with the sign.
template <class F>
__device__ __forceinline__ uint32_t code_of(float x) {
  const float v = fminf(fabsf(x), F::kLargest);
  const int e = max((__float_as_int(v) >> 23) - 127, F::kLeast);
  const int steps = __float2int_rn(v * power_of_two(F::kMantissa - e));
  const int sign = signbit(x) ? 1 << (F::kBits - 1) : 0;
  return static_cast<uint32_t>(steps + ((e - F::kLeast) << F::kMantissa) + sign);
}

// The codes of two numbers, the first in the low byte: one instruction for FP8 where the device has it.
template <DType kFormat>
__device__ __forceinline__ uint32_t code_pair(float first, float second) {
#if __CUDA_ARCH__ >= 890
  if constexpr (kFormat != DType::f4_e2m1) {
    uint16_t pair;
    if constexpr (kFormat == DType::f8_e4m3)
      asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(second), "f"(first));
    else
      asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(second), "f"(first));
    return pair;
  }
#endif
  using F = Format<kFormat>;
  return code_of<F>(first) | code_of<F>(second) << 8;
}

// The value of a code, exact. E4M3 has a NaN (all bits set), E5M2 infinities and NaNs, E2M1 neither.
template <DType kFormat>
__device__ __forceinline__ float value_of(uint32_t code) {
  using F = Format<kFormat>;
  constexpr uint32_t kMagnitude = (1u << (F::kBits - 1)) - 1;
  const uint32_t magnitude = code & kMagnitude;
  const int exponent = static_cast<int>(magnitude >> F::kMantissa),
            fraction = static_cast<int>(magnitude & ((1u << F::kMantissa) - 1));
  float v = exponent == 0 ? static_cast<float>(fraction) * power_of_two(F::kLeast - F::kMantissa)
                          : static_cast<float>(fraction + (1 << F::kMantissa)) *
                                power_of_two(exponent - 1 + F::kLeast - F::kMantissa);
  if constexpr (kFormat == DType::f8_e4m3)
    if (magnitude == 0x7f) v = NAN;
  if constexpr (kFormat == DType::f8_e5m2)
    if (exponent == 31) v = fraction == 0 ? INFINITY : NAN;
  return (code & ~kMagnitude) != 0 ? -v : v;
}

// f(the format as an integral constant).
template <class F>
void dispatch_format(DType format, F&& f) {
  switch (format) {
    case DType::f8_e4m3:
      return f(std::integral_constant<DType, DType::f8_e4m3>{});
    case DType::f8_e5m2:
      return f(std::integral_constant<DType, DType::f8_e5m2>{});
    case DType::f4_e2m1:
      return f(std::integral_constant<DType, DType::f4_e2m1>{});
    default:
      KDELTA_UNREACHABLE("MX format", format);
  }
}

}  // namespace kdelta::cuda
