// Rows whose offsets pass 2^31 and 2^32 elements give the bits of rows that lie together (wrapped 32-bit products).
#include <gtest/gtest.h>

#include "kdelta/ops/activation/activation.h"
#include "kdelta/ops/attn_res/attn_res.h"
#include "kdelta/ops/gated_norm/gated_norm.h"
#include "kdelta/ops/moe_combine/moe_combine.h"
#include "kdelta/ops/norm/norm.h"
#include "tests/gpu/effect_case.h"

namespace kdelta::test {
namespace {

constexpr int64_t kRows = 3, kWidth = 512;
constexpr int64_t kFar = (int64_t{1} << 31) + 64;  // elements between rows: the last begins past 2^32

// bf16 rows on the device, together or far apart.
class DeviceRows {
 public:
  DeviceRows(bool far, int64_t rows = kRows)
      : rows_(rows), stride_(far ? kFar : kWidth), memory_(kCuda, ((rows - 1) * stride_ + kWidth) * 2) {}
  AnyView view() const { return AnyView(memory_.data(), DType::bf16, {rows_, kWidth}, {stride_, 1}); }
  AnyView heads() const { return view().split_last(kWidth / 128, 128); }
  void fill(Stream& stream, uint64_t seed) {
    Rng rng(seed);
    std::normal_distribution<float> normal;
    std::vector<bf16> row(kWidth);
    for (int64_t r = 0; r < rows_; ++r) {
      for (bf16& v : row) v = to_bf16(normal(rng));
      copy_async(stream, view().at<bf16>(r), row.data(), kWidth * 2);
      stream.synchronize();
    }
  }
  std::vector<bf16> read(Stream& stream) const {
    std::vector<bf16> out(static_cast<size_t>(rows_ * kWidth));
    for (int64_t r = 0; r < rows_; ++r) copy_async(stream, out.data() + r * kWidth, view().at<bf16>(r), kWidth * 2);
    stream.synchronize();
    return out;
  }

 private:
  int64_t rows_, stride_;
  Buffer memory_;
};

template <class Op>
void compare(Op&& op, int64_t input_rows = kRows) {
  if (device_free_bytes(kCuda) < int64_t{60} << 30) GTEST_SKIP() << "needs 60 GiB of device memory";
  CudaExec ex(1 << 20);
  std::vector<bf16> results[2];
  for (bool far : {false, true}) {
    DeviceRows x(far, input_rows), y(far, input_rows), out(far);
    x.fill(ex.stream(), 1);
    y.fill(ex.stream(), 2);
    op(ex, x, y, out);
    results[far] = out.read(ex.stream());
  }
  EXPECT_EQ(std::memcmp(results[0].data(), results[1].data(), results[0].size() * 2), 0);
  EXPECT_NE(results[0][kWidth].bits, results[0][2 * kWidth].bits) << "rows of a test must differ";
}

std::unique_ptr<Buffer> ones(Stream& stream, int64_t n) {
  auto out = std::make_unique<Buffer>(kCuda, n * 4);
  const std::vector<float> values(static_cast<size_t>(n), 1.0f);
  copy_async(stream, out->data(), values.data(), n * 4);
  stream.synchronize();
  return out;
}

TEST(CudaFar, NormOfRowsPast32BitOffsets) {
  compare([](CudaExec& ex, DeviceRows& x, DeviceRows&, DeviceRows& out) {
    const auto weight = ones(ex.stream(), kWidth);
    norm(ex, {.x = x.view(), .weight = weight->view<float>({kWidth}), .out = out.view(), .eps = 1e-5f});
    ex.stream().synchronize();
  });
}

TEST(CudaFar, ActivationOfRowsPast32BitOffsets) {
  compare([](CudaExec& ex, DeviceRows& x, DeviceRows& y, DeviceRows& out) {
    activation(ex, {.kind = ActivationKind::situ,
                    .beta = 4,
                    .linear_beta = 25,
                    .gate = x.view(),
                    .up = y.view(),
                    .out = out.view()});
  });
}

TEST(CudaFar, GatedNormOfRowsPast32BitOffsets) {
  compare([](CudaExec& ex, DeviceRows& x, DeviceRows& y, DeviceRows& out) {
    gated_norm(ex, {.x = x.heads(), .gate = y.heads(), .eps = 1e-5f, .out = out.heads()});
  });
}

TEST(CudaFar, AttnResOfRowsPast32BitOffsets) {
  compare([](CudaExec& ex, DeviceRows& x, DeviceRows& y, DeviceRows& out) {
    const auto weight = ones(ex.stream(), kWidth);
    const AnyView rows = x.view();
    const AnyConstView blocks(rows.data, DType::bf16, {1, kRows, kWidth}, {kFar, rows.stride[0], 1});
    attn_res(ex, {.blocks = blocks,
                  .n = 1,
                  .sum = y.view(),
                  .score_weight = weight->view<float>({kWidth}),
                  .eps = 1e-5f,
                  .out = out.view()});
    ex.stream().synchronize();
  });
}

TEST(CudaFar, MoeCombineOfRowsPast32BitOffsets) {
  compare([](CudaExec& ex, DeviceRows& x, DeviceRows& y, DeviceRows& out) {
    const auto weight = ones(ex.stream(), kRows);
    const int32_t places[kRows] = {2, 1, 0};
    Buffer position(kCuda, sizeof(places));
    copy_async(ex.stream(), position.data(), places, sizeof(places));
    moe_combine(ex, {.y = x.view(),
                     .position = position.view<int32_t>({kRows, 1}),
                     .weight = weight->view<float>({kRows, 1}),
                     .addend = y.view(),
                     .out = out.view()});
    ex.stream().synchronize();
  });
}

}  // namespace
}  // namespace kdelta::test
