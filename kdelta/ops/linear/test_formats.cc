// The weight formats at the level of one matrix (core/matrix.h): what every kernel of linear is tested against.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "kdelta/ops/linear/test_weights.h"
#include "tests/support/op_test.h"

namespace kdelta {
namespace {

std::vector<float> dequantized(const Matrix& m, int64_t row) {
  std::vector<float> out(static_cast<size_t>(m.cols));
  dequantize_row(m, row, out.data());
  return out;
}

// public-reports.md D2: code 0 is a subnormal, code 255 is NaN, and no code goes through a narrower format on the way.
TEST(WeightFormats, EveryScaleCodeTimesEveryKindOfElementIsExact) {
  const std::vector<uint8_t> codes = {0x38, 0x80, 0x7e, 0x01};  // E4M3: 1, -0, 448, 2^-9
  const std::vector<double> values = {1, -0.0, 448, 0x1p-9};
  std::vector<uint8_t> row(32, 0);
  std::copy(codes.begin(), codes.end(), row.begin());
  for (int code = 0; code < 256; ++code) {
    const auto scale = static_cast<uint8_t>(code);
    const std::vector<float> got = dequantized(dense_matrix(row.data(), DType::f8_e4m3, 1, 32, &scale), 0);
    for (size_t i = 0; i < codes.size(); ++i) {
      if (code == 255) {
        EXPECT_TRUE(std::isnan(got[i])) << "element " << i;
      } else {
        EXPECT_EQ(got[i], static_cast<float>(values[i] * std::ldexp(1.0, code - 127)))
            << "scale " << code << " element " << i;
        EXPECT_EQ(std::signbit(got[i]), std::signbit(values[i]));
      }
    }
  }
  EXPECT_EQ(e8m0_to_float(0), std::ldexp(1.0f, -127));
  EXPECT_GT(e8m0_to_float(0), 0.0f);
  EXPECT_EQ(e8m0_to_float(127), 1.0f);
  EXPECT_EQ(e8m0_to_float(254), std::ldexp(1.0f, 127));
}

TEST(WeightFormats, ABlockOfZerosIsZeroUnderTheLargestScaleAndNaNUnderNaN) {
  const std::vector<uint8_t> zeros(16, 0);
  for (int code : {0, 254, 255}) {
    const auto scale = static_cast<uint8_t>(code);
    for (float x : dequantized(dense_matrix(zeros.data(), DType::f4_e2m1, 1, 32, &scale), 0))
      EXPECT_TRUE(code == 255 ? std::isnan(x) : x == 0.0f) << code;
  }
}

// public-reports.md D3: exponent 0 means 0 or 0.5; the low nibble is the even column.
TEST(WeightFormats, AllSixteenFp4CodesAndAllPackedBytes) {
  constexpr float kTable[16] = {0, .5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -.5f, -1, -1.5f, -2, -3, -4, -6};
  for (uint8_t code = 0; code < 16; ++code) {
    EXPECT_EQ(e2m1_to_float(code), kTable[code]);
    EXPECT_EQ(std::signbit(e2m1_to_float(code)), code >= 8);
  }
  std::vector<uint8_t> bytes(256), scales(16, 127);
  for (size_t i = 0; i < 256; ++i) bytes[i] = static_cast<uint8_t>(i);
  const std::vector<float> got = dequantized(dense_matrix(bytes.data(), DType::f4_e2m1, 1, 512, scales.data()), 0);
  for (size_t i = 0; i < 256; ++i) {
    EXPECT_EQ(got[2 * i], kTable[i % 16]) << "low nibble of " << i;
    EXPECT_EQ(got[2 * i + 1], kTable[i / 16]) << "high nibble of " << i;
  }
}

// A rank's columns of a wider matrix: what lies between its rows is not read.
TEST(WeightFormats, ASliceOfColumnsCountsItsOwnBytes) {
  uint8_t byte = 0;
  for (DType dtype : test::kWeightTypes) {
    Matrix slice = dense_matrix(&byte, dtype, 5, 128, &byte);
    const int64_t whole = slice.bytes();
    slice.cols = 32;
    EXPECT_EQ(slice.bytes() * 4, whole) << dtype_name(dtype);
  }
}

TEST(WeightFormats, RowsOf32And64And96TakeTheirOwnScales) {
  for (int64_t K : {32, 64, 96}) {
    test::TestWeights w(DType::f4_e2m1, 2, K, 1);
    for (int64_t i = 0; i < K / 2; ++i) w.code(1, i) = 0x22;
    for (int64_t b = 0; b < K / 32; ++b) w.scale(1, b) = static_cast<uint8_t>(127 + b);
    const std::vector<float> got = dequantized(w, 1);
    for (int64_t k = 0; k < K; ++k) EXPECT_EQ(got[static_cast<size_t>(k)], static_cast<float>(1 << (k / 32)));
  }
}

TEST(WeightFormats, AWidthThatIsNoMultipleOfTheScaleBlockIsRefused) {
  uint8_t byte = 0;
  for (int64_t K : {1, 31, 33, 48}) {
    const Matrix m = dense_matrix(&byte, DType::f4_e2m1, 1, K, &byte);
    EXPECT_THAT(test::error_of([&] { expect_matrix(m, 1, K, "w"); }),
                testing::HasSubstr("multiple of the scale block 32"));
  }
}

// public-reports.md A6: the last row of the last of 896 experts, as arithmetic; 6.6e9 elements wrap 32 bits.
TEST(WeightFormats, OffsetsAreSixtyFourBit) {
  constexpr int64_t kExperts = 896, N = 3584, K = 2048;
  auto* base = reinterpret_cast<uint8_t*>(uintptr_t{4096});
  const Matrix all = dense_matrix(base, DType::bf16, kExperts * N, K);
  EXPECT_EQ(all.bytes(), kExperts * N * K * 2);
  EXPECT_EQ(all.row(kExperts * N - 1) - base, (kExperts * N - 1) * K * 2);
  const Matrix last = all.slice_rows((kExperts - 1) * N, N);
  EXPECT_EQ(static_cast<const uint8_t*>(last.data) - base, int64_t{13'138'657'280});
  const Matrix mx = dense_matrix(base, DType::f8_e4m3, int64_t{1} << 27, 64, base);
  EXPECT_EQ(mx.scale_row((int64_t{1} << 27) - 1) - base, ((int64_t{1} << 27) - 1) * 2);
  const AnyConstView x(base, DType::bf16, Shape{262144, 12288});
  EXPECT_EQ(x.at<const bf16>(262143) - reinterpret_cast<const bf16*>(base), int64_t{262143} * 12288);
}

}  // namespace
}  // namespace kdelta
