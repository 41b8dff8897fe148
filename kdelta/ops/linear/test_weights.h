// Random weight matrices of every format for the tests of linear and grouped_linear. The bytes end at an inaccessible
// page, so a read past the last row is a crash, and start as badly aligned as a file may make them.
#pragma once

#include <sys/mman.h>

#include <cmath>
#include <cstring>

#include "kdelta/core/check.h"
#include "kdelta/core/matrix.h"
#include "tests/support/support.h"

namespace kdelta::test {

// `bytes` bytes that end exactly where memory does.
class EdgeBytes {
 public:
  explicit EdgeBytes(int64_t bytes) : bytes_(bytes), mapped_((bytes + 2 * kPage - 1) / kPage * kPage) {
    base_ = static_cast<uint8_t*>(
        mmap(nullptr, static_cast<size_t>(mapped_), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    KDELTA_CHECK(base_ != MAP_FAILED, "mmap of ", mapped_);
    KDELTA_CHECK(mprotect(base_ + mapped_ - kPage, kPage, PROT_NONE) == 0, "mprotect");
  }
  ~EdgeBytes() { munmap(base_, static_cast<size_t>(mapped_)); }
  EdgeBytes(const EdgeBytes&) = delete;
  EdgeBytes& operator=(const EdgeBytes&) = delete;
  uint8_t* data() const { return base_ + mapped_ - kPage - bytes_; }
  uint8_t& operator[](int64_t i) const { return data()[i]; }
  int64_t size() const { return bytes_; }

 private:
  static constexpr int64_t kPage = 4096;
  int64_t bytes_, mapped_;
  uint8_t* base_;
};

// Finite random weights; MX scales between 2^-10 and 2^5 unless set otherwise.
class TestWeights {
 public:
  TestWeights(DType dtype, int64_t N, int64_t K, uint64_t seed)
      : matrix_(dense_matrix(nullptr, dtype, N, K)), data_(N * matrix_.row_bytes), scale_(N * matrix_.scale_row_bytes) {
    Rng rng(seed);
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < data_.size(); ++i) data_[i] = finite_code(dtype, static_cast<uint8_t>(rng()));
    for (int64_t i = 0; i < N * K && dtype == DType::f32; ++i) put(i, normal(rng));
    for (int64_t i = 0; i < N * K && dtype == DType::bf16; ++i) put(i, to_bf16(normal(rng)));
    for (int64_t i = 0; i < scale_.size(); ++i) scale_[i] = static_cast<uint8_t>(117 + rng() % 16);
    matrix_.data = data_.data();
    if (matrix_.is_mx()) matrix_.scale = scale_.data();
  }
  const Matrix& matrix() const { return matrix_; }
  operator const Matrix&() const { return matrix_; }
  uint8_t& code(int64_t n, int64_t byte) { return data_[n * matrix_.row_bytes + byte]; }
  uint8_t& scale(int64_t n, int64_t block) { return scale_[n * matrix_.scale_row_bytes + block]; }
  template <class T>
  void put(int64_t index, T value) {
    std::memcpy(&data_[index * static_cast<int64_t>(sizeof(T))], &value, sizeof(T));
  }

 private:
  // Any byte is a pair of E2M1 codes; the FP8 formats have NaN and infinity, which belong to tests of their own.
  static uint8_t finite_code(DType dtype, uint8_t code) {
    if (dtype == DType::f8_e4m3 && (code & 0x7f) == 0x7f) return 0x3c;
    if (dtype == DType::f8_e5m2 && (code & 0x7f) >= 0x7c) return 0x3c;
    return code;
  }
  Matrix matrix_;
  EdgeBytes data_, scale_;
};

inline constexpr DType kWeightTypes[] = {DType::f32, DType::bf16, DType::f8_e4m3, DType::f8_e5m2, DType::f4_e2m1};

// sum_k x[k] w[n, k] in fp64 and the error that fp32 accumulation in any order may show: statistical in K, on the sum
// of magnitudes.
struct Dot {
  double value = 0, magnitude = 0, error = 0;
};
template <class X>
Dot dot_of(const Matrix& w, int64_t n, const X* x) {
  std::vector<float> row(static_cast<size_t>(w.cols));
  dequantize_row(w, n, row.data());
  double sum = 0, magnitude = 0;
  for (size_t k = 0; k < row.size(); ++k) {
    const double product = static_cast<double>(to_float(x[k])) * static_cast<double>(row[k]);
    sum += product;
    magnitude += std::fabs(product);
  }
  return {sum, magnitude, magnitude * 0x1p-24 * (std::sqrt(static_cast<double>(w.cols)) + 4)};
}

}  // namespace kdelta::test
