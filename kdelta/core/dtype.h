// Element types, their storage structs and the scalar conversions between them. Arithmetic on packed formats lives in
// the ops that consume them. Formats: IEEE 754 binary16/32, bfloat16, OCP 8-bit floating point (E4M3FN, E5M2), OCP MX
// (E8M0, E2M1).
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

// Header code that ISA-specific files compile with their own -m flags must never become a shared out-of-line copy: the
// linker could keep the AVX-512 one for everybody.
#define KDELTA_INLINE __attribute__((always_inline)) inline

namespace kdelta {

enum class DType : uint8_t { f32, bf16, f16, f64, f8_e4m3, f8_e5m2, f8_e8m0, f4_e2m1, i8, u8, i16, i32, i64, boolean };

// Name as safetensors spells it: "F32", "BF16", "F8_E4M3", ...
std::string_view dtype_name(DType dtype);
// The DType of a safetensors name; false when unknown.
bool parse_dtype(std::string_view name, DType* dtype);
// Bits of one element: 4 for f4_e2m1, else a multiple of 8.
int dtype_bits(DType dtype);
// Bytes of one element; f4_e2m1 has none of its own and is refused.
int64_t dtype_bytes(DType dtype);

struct bf16 {
  uint16_t bits;
};
struct f16 {
  uint16_t bits;
};

KDELTA_INLINE float to_float(float x) {
  return x;
}
KDELTA_INLINE float to_float(bf16 x) {
  return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16);
}

// Round to nearest, ties to even; NaN stays NaN (quiet), overflow becomes infinity.
KDELTA_INLINE bf16 to_bf16(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((u >> 16) | 0x40u)};
  return {static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}

float to_float(f16 x);
f16 to_f16(float x);

// OCP FP8 and MX elements, exact. E4M3FN has no infinity: 0x7f and 0xff are NaN.
float f8_e4m3_to_float(uint8_t code);
float f8_e5m2_to_float(uint8_t code);
// 2^(code-127); code 0 is the subnormal 2^-127, code 255 is NaN.
float e8m0_to_float(uint8_t code);
// Low four bits only: 0, .5, 1, 1.5, 2, 3, 4, 6 and their negatives.
float e2m1_to_float(uint8_t code);

template <class T>
KDELTA_INLINE T from_float(float x) {
  if constexpr (sizeof(T) == 4) {
    return x;
  } else {
    return to_bf16(x);
  }
}

template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::f32;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::f64;
};
template <>
struct DTypeOf<bf16> {
  static constexpr DType value = DType::bf16;
};
template <>
struct DTypeOf<f16> {
  static constexpr DType value = DType::f16;
};
template <>
struct DTypeOf<int8_t> {
  static constexpr DType value = DType::i8;
};
template <>
struct DTypeOf<uint8_t> {
  static constexpr DType value = DType::u8;
};
template <>
struct DTypeOf<int32_t> {
  static constexpr DType value = DType::i32;
};
template <>
struct DTypeOf<int64_t> {
  static constexpr DType value = DType::i64;
};

}  // namespace kdelta
