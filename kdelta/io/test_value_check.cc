#include "kdelta/io/value_check.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kdelta/core/matrix.h"

namespace kdelta {
namespace {

template <class T>
NoNumbers found(DType dtype, const std::vector<T>& values) {
  // One byte off any alignment.
  std::vector<uint8_t> bytes(values.size() * sizeof(T) + 1);
  std::memcpy(bytes.data() + 1, values.data(), values.size() * sizeof(T));
  return find_no_numbers(dtype, bytes.data() + 1, static_cast<int64_t>(values.size() * sizeof(T)));
}

// The definition of every code is the exact dequantisation.
TEST(ValueCheck, EveryCodeOfTheByteTypesCountsAsItsValueDoes) {
  for (const DType dtype : {DType::f8_e4m3, DType::f8_e5m2})
    for (int code = 0; code < 256; ++code) {
      std::vector<uint8_t> row(kMxBlock, 0);
      row[7] = static_cast<uint8_t>(code);
      const uint8_t one = 127;
      float values[kMxBlock];
      dequantize_row(dense_matrix(row.data(), dtype, 1, kMxBlock, &one), 0, values);
      const bool number = std::isfinite(values[7]);
      EXPECT_EQ(found(dtype, row).count, number ? 0 : 1) << dtype_name(dtype) << " " << code;
      EXPECT_EQ(found(dtype, row).first, number ? -1 : 7) << dtype_name(dtype) << " " << code;
      row.assign(3, static_cast<uint8_t>(code));
      EXPECT_EQ(found(DType::f8_e8m0, row).count, code == 255 ? 3 : 0);
      EXPECT_EQ(found(DType::u8, row).count, 0);
      EXPECT_EQ(found(DType::f4_e2m1, row).count, 0);
    }
}

TEST(ValueCheck, EveryHalfCountsAsItsValueDoes) {
  for (uint32_t bits = 0; bits < 1 << 16; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    ASSERT_EQ(found(DType::bf16, std::vector{half}).count, std::isfinite(to_float(bf16{half})) ? 0 : 1) << bits;
    ASSERT_EQ(found(DType::f16, std::vector{half}).count, std::isfinite(to_float(f16{half})) ? 0 : 1) << bits;
  }
}

TEST(ValueCheck, TheFirstOfManyIsNamedAndAllAreCountedAcrossPieces) {
  std::vector<float> x(10000, std::numeric_limits<float>::max());
  EXPECT_EQ(found(DType::f32, x).first, -1);
  for (const size_t i : {size_t{9999}, size_t{4097}, size_t{4095}}) {
    x[i] = i == 4097 ? -INFINITY : NAN;
    EXPECT_EQ(found(DType::f32, x).first, static_cast<int64_t>(i));
  }
  EXPECT_EQ(found(DType::f32, x).count, 3);
  EXPECT_EQ(found(DType::f64, std::vector<double>{1e308, INFINITY, 5e-324}).first, 1);
}

}  // namespace
}  // namespace kdelta
