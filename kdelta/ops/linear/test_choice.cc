// Which row a call gets, and how the Hopper product is cut: no device needed.
#include <gtest/gtest.h>

#include "kdelta/ops/linear/cuda_plan.h"
#include "kdelta/ops/linear/test_weights.h"
#include "kdelta/ops/linear/variants.h"

namespace kdelta {
namespace {

constexpr int64_t kTokens[] = {1, 8, 16, 17, 64, 100, 256, 1000, 8192, 100000};

// The first CUDA row that takes the call, were this a Hopper device.
std::string cuda_choice(LinearDesc d) {
  d.target = {.device = DeviceKind::cuda, .cuda = CudaLevel::sm90a, .multiprocessors = 132};
  for (const LinearVariant& row : linear_variants())
    if (row.needs.device == DeviceKind::cuda && (row.refuse == nullptr || row.refuse(d) == nullptr)) return row.name;
  return "none";
}

LinearDesc call(DType x, DType w, int64_t T, int64_t K = 7168) {
  return {.x = x, .w = w, .out = x, .T = T, .K = K, .N = 4608, .aligned = true, .out_words = true};
}

TEST(LinearCudaChoice, DoesNotLookAtTheNumberOfTokensInExactMode) {
  for (DType x : {DType::f32, DType::bf16})
    for (DType w : test::kWeightTypes)
      for (int64_t K : {100, 128, 7168, 100000})
        for (bool aligned : {false, true}) {
          LinearDesc d = call(x, w, 1, K);
          d.exact = true, d.aligned = aligned;
          const std::string one = cuda_choice(d);
          for (int64_t T : kTokens) {
            d.T = T;
            d.out_words = T % 2 == 0;
            EXPECT_EQ(cuda_choice(d), one);
          }
        }
}

TEST(LinearCudaChoice, TakesTheQuickRowForWhatItTakes) {
  for (DType w : {DType::bf16, DType::f8_e4m3, DType::f8_e5m2, DType::f4_e2m1})
    for (int64_t T : kTokens)
      EXPECT_EQ(cuda_choice(call(DType::bf16, w, T)), T <= most_skinny_tokens(w) ? "cuda_mma" : "cuda_wgmma") << T;
  for (int64_t T : kTokens) {
    EXPECT_EQ(cuda_choice(call(DType::f32, DType::bf16, T)), "cuda") << "products of f32 stay fp32";
    EXPECT_EQ(cuda_choice(call(DType::bf16, DType::f32, T)), "cuda");
    LinearDesc d = call(DType::bf16, DType::bf16, T);
    d.out_words = false;
    EXPECT_EQ(cuda_choice(d), "cuda_mma");
    d.aligned = false;
    EXPECT_EQ(cuda_choice(d), "cuda");
  }
}

// cuda_fp8 measured slower than cuda_wgmma, so it is behind it; --force finds it.
TEST(LinearCudaChoice, TakesValuesOfCodesUnlessTheRowOfCodesIsForced) {
  const auto takes = [](const LinearDesc& d) { return linear_cuda_fp8_refuse(d) == nullptr; };
  for (int64_t T : kTokens) {
    LinearDesc d = call(DType::bf16, DType::f8_e4m3, T);
    d.input = DType::f8_e4m3;
    EXPECT_EQ(cuda_choice(d), T <= most_skinny_tokens(d.w) ? "cuda_mma" : "cuda_wgmma") << T;
    EXPECT_EQ(takes(d), T > kMostCodesTokens) << T;
    const auto otherwise = [&](auto change) {
      LinearDesc other = d;
      change(other);
      EXPECT_FALSE(takes(other));
    };
    otherwise([](LinearDesc& o) { o.input = DType::f8_e5m2; });
    otherwise([](LinearDesc& o) { o.input = DType::bf16; });
    otherwise([](LinearDesc& o) { o.w = DType::f4_e2m1; });
    otherwise([](LinearDesc& o) { o.x = DType::f32; });
    otherwise([](LinearDesc& o) { o.bf16_out = false; });
    otherwise([](LinearDesc& o) { o.codes_aligned = false; });
    otherwise([](LinearDesc& o) { o.aligned = false; });
    otherwise([](LinearDesc& o) { o.out_words = false; });
    otherwise([](LinearDesc& o) { o.exact = true; });
  }
}

TEST(LinearGemmPlan, SplitsColumnsOnlyWhereAllTilesRunAtOnceAndTheirSumsFitTheScratch) {
  for (int multiprocessors : {1, 78, 132})
    for (int64_t row_tiles : {1, 2, 12, 36, 56, 1280})
      for (int64_t steps : {1, 2, 8, 24, 112})
        for (int64_t T : kTokens) {
          SCOPED_TRACE(str(multiprocessors, " ", row_tiles, " ", steps, " ", T));
          const GemmPlan plan = gemm_plan(T, row_tiles, steps, multiprocessors);
          const int64_t tiles = row_tiles * ((T + plan.tokens - 1) / plan.tokens);
          EXPECT_TRUE(plan.tokens == 32 || plan.tokens == 64 || plan.tokens == 128 || plan.tokens == 256);
          EXPECT_GE(plan.splits, 1);
          EXPECT_LE(plan.splits, steps) << "no tile without products";
          if (plan.splits == 1) continue;
          EXPECT_LE(tiles * plan.splits, multiprocessors);
          EXPECT_LE(tiles * plan.splits * kGemmTileRows * plan.tokens * 4, gemm_scratch_bytes(multiprocessors));
        }
}

TEST(LinearGemmPlan, FillsTheDeviceWhenTokensAreFew) {
  for (int64_t T : {17, 64}) {
    const GemmPlan plan = gemm_plan(T, 36, 112, 132);
    EXPECT_GE(36 * plan.splits, 100);
    EXPECT_LE(plan.tokens, 64);
  }
  EXPECT_EQ(gemm_plan(8192, 36, 112, 132).splits, 1);
  EXPECT_EQ(gemm_plan(8192, 36, 112, 132).tokens, 256);
}

TEST(LinearFp8Plan, SplitsFitTheScratchAndCodesAndScalesHaveRoomBehindThem) {
  for (int multiprocessors : {1, 132})
    for (int64_t row_tiles : {1, 36, 56, 1280})
      for (int64_t K : {32, 160, 1024, 7168})
        for (int64_t T : kTokens) {
          SCOPED_TRACE(str(multiprocessors, " ", row_tiles, " ", K, " ", T));
          const int64_t steps = (K + 127) / 128;
          const GemmPlan plan = fp8_plan(T, row_tiles, steps, multiprocessors);
          const Fp8Scratch at = fp8_scratch(T, K, multiprocessors);
          const int64_t token_tiles = (T + plan.tokens - 1) / plan.tokens;
          EXPECT_TRUE(plan.tokens == 64 || plan.tokens == 128);
          EXPECT_LE(plan.splits, steps);
          if (plan.splits > 1) {
            EXPECT_LE(row_tiles * token_tiles * plan.splits, multiprocessors);
          }
          EXPECT_TRUE(at.codes % 256 == 0 && at.records % 256 == 0);
          EXPECT_GE(at.records - at.codes, T * K);
          EXPECT_GE(at.bytes - at.records, token_tiles * steps * (plan.tokens * 16 + 16));
        }
}

}  // namespace
}  // namespace kdelta
