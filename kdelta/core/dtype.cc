#include "kdelta/core/dtype.h"

#include <array>
#include <cmath>
#include <limits>

#include "kdelta/core/check.h"

namespace kdelta {
namespace {

struct Row {
  DType dtype;
  std::string_view name;
  int bits;
};

constexpr std::array<Row, 14> kRows = {{{DType::f32, "F32", 32},
                                        {DType::bf16, "BF16", 16},
                                        {DType::f16, "F16", 16},
                                        {DType::f64, "F64", 64},
                                        {DType::f8_e4m3, "F8_E4M3", 8},
                                        {DType::f8_e5m2, "F8_E5M2", 8},
                                        {DType::f8_e8m0, "F8_E8M0", 8},
                                        {DType::f4_e2m1, "F4", 4},
                                        {DType::i8, "I8", 8},
                                        {DType::u8, "U8", 8},
                                        {DType::i16, "I16", 16},
                                        {DType::i32, "I32", 32},
                                        {DType::i64, "I64", 64},
                                        {DType::boolean, "BOOL", 8}}};

const Row& row(DType dtype) {
  for (const Row& r : kRows)
    if (r.dtype == dtype) return r;
  KDELTA_UNREACHABLE("dtype", dtype);
}

}  // namespace

std::string_view dtype_name(DType dtype) {
  return row(dtype).name;
}

bool parse_dtype(std::string_view name, DType* dtype) {
  for (const Row& r : kRows) {
    if (r.name == name) {
      *dtype = r.dtype;
      return true;
    }
  }
  return false;
}

int dtype_bits(DType dtype) {
  return row(dtype).bits;
}

int64_t dtype_bytes(DType dtype) {
  const int bits = dtype_bits(dtype);
  KDELTA_CHECK(bits % 8 == 0, "dtype ", dtype_name(dtype), " has no whole bytes per element");
  return bits / 8;
}

float to_float(f16 x) {
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000u) << 16;
  const int exponent = (x.bits >> 10) & 0x1f;
  const uint32_t mantissa = x.bits & 0x3ffu;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24
    const float magnitude = std::ldexp(static_cast<float>(mantissa), -24);
    return sign != 0 ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | (static_cast<uint32_t>(exponent + 112) << 23) | (mantissa << 13));
}

f16 to_f16(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  const uint16_t sign = static_cast<uint16_t>((u >> 16) & 0x8000u);
  const float a = std::fabs(x);
  if (std::isnan(x)) return {static_cast<uint16_t>(sign | 0x7e00u)};
  if (a >= 65520.0f) return {static_cast<uint16_t>(sign | 0x7c00u)};  // 65520 is the midpoint to infinity: ties go up
  if (a < 0x1p-14f) {  // subnormal: quantum 2^-24; nearbyint rounds ties to even
    return {static_cast<uint16_t>(sign | static_cast<uint16_t>(std::nearbyint(std::ldexp(a, 24))))};
  }
  const uint32_t v = (u & 0x7fffffffu) - (112u << 23);
  return {static_cast<uint16_t>(sign | ((v + 0xfffu + ((v >> 13) & 1u)) >> 13))};
}

float f8_e4m3_to_float(uint8_t code) {
  const float sign = (code & 0x80) != 0 ? -1.0f : 1.0f;
  const int exponent = (code >> 3) & 0xf;
  const int mantissa = code & 7;
  if (exponent == 15 && mantissa == 7) return std::numeric_limits<float>::quiet_NaN();
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(mantissa), -9);
  return sign * std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
}

float f8_e5m2_to_float(uint8_t code) {
  return to_float(f16{static_cast<uint16_t>(code << 8)});
}

float e8m0_to_float(uint8_t code) {
  if (code == 255) return std::numeric_limits<float>::quiet_NaN();
  if (code == 0) return std::bit_cast<float>(0x00400000u);  // 2^-127 is subnormal
  return std::bit_cast<float>(static_cast<uint32_t>(code) << 23);
}

float e2m1_to_float(uint8_t code) {
  constexpr std::array<float, 8> kMagnitude = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  const float magnitude = kMagnitude[code & 7];
  return (code & 8) != 0 ? -magnitude : magnitude;
}

}  // namespace kdelta
