#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "kdelta/ops/attn_res/variants.h"
#include "kdelta/ops/norm/norm.h"
#include "tests/support/op_test.h"
#include "tests/support/spread.h"

namespace kdelta {
namespace {

using test::Guarded;
using test::TestExec;

class AttnRes : public test::OpVariantTest {
 protected:
  AttnRes() : OpVariantTest("attn_res") {}
};
KDELTA_INSTANTIATE_VARIANTS(AttnRes, attn_res_variants());

// A bank of `capacity` blocks of which the first n hold numbers; the others stay NaN.
template <class E>
struct Bank {
  Bank(int64_t capacity, int64_t n_, int64_t T, int64_t D)
      : n(n_), blocks({capacity, T, D}), sum({T, D}), out({T, D}), score_weight({D}), norm_weight({D}) {
    test::Rng rng(static_cast<uint64_t>(D * 1000 + T * 100 + n));
    fill_normal(sum, rng, 1.5f);
    fill_normal(score_weight, rng, 2.0f / std::sqrt(static_cast<float>(D)));
    fill_normal(norm_weight, rng, 0.5f, 1.0f);
    Guarded<E> block({T, D});
    for (int64_t i = 0; i < n; ++i) {
      fill_normal(block, rng, 1.0f + static_cast<float>(i), 0.1f);
      std::memcpy(&blocks[i * T * D], block.data(), static_cast<size_t>(T * D) * sizeof(E));
    }
  }
  AttnResArgs args() {
    return {.blocks = blocks.view(),
            .n = n,
            .sum = sum.view(),
            .score_weight = score_weight,
            .eps = 1e-5f,
            .out = out.view()};
  }
  int64_t n;
  Guarded<E> blocks, sum, out;
  Guarded<float> score_weight, norm_weight;
};

// The mixture of a plain list of streams of one token.
template <class E>
std::vector<double> definition(const std::vector<const E*>& streams, const Guarded<float>& weight, double eps) {
  const int64_t D = weight.size();
  std::vector<double> p, mix(static_cast<size_t>(D));
  double total = 0;
  for (const E* v : streams) {
    double dot = 0, square = 0;
    for (int64_t d = 0; d < D; ++d) {
      const double x = to_float(v[d]);
      dot += x * weight[d];
      square += x * x;
    }
    p.push_back(std::exp(dot / std::sqrt(square / static_cast<double>(D) + eps)));
    total += p.back();
  }
  for (size_t i = 0; i < streams.size(); ++i)
    for (int64_t d = 0; d < D; ++d) mix[static_cast<size_t>(d)] += p[i] / total * to_float(streams[i][d]);
  return mix;
}

template <class E>
void compare_with_definition(TestExec& ex, int64_t capacity, int64_t n, int64_t T, int64_t D) {
  Bank<E> bank(capacity, n, T, D);
  const Guarded<E> blocks_before = bank.blocks, sum_before = bank.sum;
  attn_res(ex, bank.args());
  ASSERT_TRUE(bank.out.guards_intact());
  ASSERT_TRUE(same_bits(bank.blocks, blocks_before) && same_bits(bank.sum, sum_before));
  for (int64_t t = 0; t < T; ++t) {
    std::vector<const E*> streams;
    for (int64_t i = 0; i < n; ++i) streams.push_back(&bank.blocks[(i * T + t) * D]);
    streams.push_back(&bank.sum[t * D]);
    const std::vector<double> want = definition(streams, bank.score_weight, 1e-5);
    for (int64_t d = 0; d < D; ++d) {
      double largest = 0;
      for (const E* v : streams) largest = std::max(largest, std::fabs(double{to_float(v[d])}));
      // Half an ulp of the output; the probabilities carry the fp32 error of the scores.
      const double bound =
          (std::is_same_v<E, bf16> ? 0x1p-8 : 0.0) * std::fabs(want[static_cast<size_t>(d)]) + 4e-6 * largest;
      ASSERT_NEAR(to_float(bank.out[t * D + d]), want[static_cast<size_t>(d)], bound)
          << "token " << t << " column " << d << " n " << n << " of " << T << "x" << D;
    }
  }
}

TEST_P(AttnRes, EqualsTheDefinitionAtEveryWidthAroundTheVectors) {
  for (int64_t D : {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 127, 129, 1001, 7168}) {
    compare_with_definition<float>(ex, 3, 2, 3, D);
    compare_with_definition<bf16>(ex, 3, 2, 3, D);
  }
}

TEST_P(AttnRes, ReadsExactlyTheValidBlocksForEveryCount) {
  for (int64_t n = 0; n <= 8; ++n) {
    compare_with_definition<float>(ex, 8, n, 5, 100);
    compare_with_definition<bf16>(ex, 8, n, 5, 7168);
  }
  compare_with_definition<float>(ex, 93, 93, 2, 40);
}

TEST_P(AttnRes, StaysWithinTheHalfPrecisionBoundOfTheVendorsTest) {
  Bank<bf16> bank(8, 8, 7, 7168);
  attn_res(ex, bank.args());
  for (int64_t t = 0; t < 7; ++t) {
    std::vector<const bf16*> streams;
    for (int64_t i = 0; i < 8; ++i) streams.push_back(&bank.blocks[(i * 7 + t) * 7168]);
    streams.push_back(&bank.sum[t * 7168]);
    const std::vector<double> want = definition(streams, bank.score_weight, 1e-5);
    for (int64_t d = 0; d < 7168; ++d)
      ASSERT_LE(std::fabs(to_float(bank.out[t * 7168 + d]) - want[static_cast<size_t>(d)]),
                0.016 * std::max(1.0, std::fabs(want[static_cast<size_t>(d)])));
  }
}

TEST_P(AttnRes, GivesTheSmallVectorOfTheArchitecturePage) {
  Guarded<float> blocks({1, 1, 4}), sum({1, 4}), weight({4}), out({1, 4});
  const float block[] = {1, 2, -1, 0}, last[] = {0.5f, -1, 3, 2}, wn[] = {1, 1, 2, 1}, wp[] = {0.5f, -0.5f, 0.25f, 1};
  for (int d = 0; d < 4; ++d) blocks[d] = block[d], sum[d] = last[d], weight[d] = wn[d] * wp[d];
  AttnResArgs a{
      .blocks = blocks.view(), .n = 1, .sum = sum.view(), .score_weight = weight, .eps = 1e-5f, .out = out.view()};
  attn_res(ex, a);
  const double want[] = {0.522219191, -0.866684856, 2.822246474, 1.911123237};
  for (int d = 0; d < 4; ++d) EXPECT_NEAR(out[d], want[d], 1e-6);
  for (int d = 0; d < 4; ++d) weight[d] = 0;  // a zero projection gives the plain average
  attn_res(ex, a);
  for (int d = 0; d < 4; ++d) EXPECT_NEAR(out[d], (block[d] + last[d]) / 2, 1e-6);
}

TEST_P(AttnRes, WithoutBlocksTheMixtureIsTheSumItself) {
  Bank<float> bank(2, 0, 2, 19);
  bank.sum[3] = -0.0f, bank.sum[4] = INFINITY, bank.sum[5] = 1e-42f;
  attn_res(ex, bank.args());
  EXPECT_TRUE(same_bits(bank.out, bank.sum));
  AttnResArgs a = bank.args();
  a.blocks = {};
  bank.out = Guarded<float>({2, 19});
  a.out = bank.out.view();
  attn_res(ex, a);
  EXPECT_TRUE(same_bits(bank.out, bank.sum));
}

TEST_P(AttnRes, ScoresFarApartAndFarFromZeroGiveFiniteWeights) {
  Bank<float> bank(2, 2, 1, 32);
  for (int64_t d = 0; d < 32; ++d) bank.score_weight[d] *= 1e4f;
  attn_res(ex, bank.args());
  for (int64_t d = 0; d < 32; ++d) EXPECT_TRUE(std::isfinite(bank.out[d]));
}

template <class E>
void fused_equals_separate(TestExec& ex, const std::string& variant, int64_t n, int64_t D) {
  Bank<E> bank(3, n, 4, D);
  ex.force("norm", variant);
  Guarded<E> want({4, D});
  attn_res(ex, bank.args());
  norm(ex, {.x = bank.out.view(), .weight = bank.norm_weight, .out = want.view(), .eps = 1e-6f});
  AttnResArgs a = bank.args();
  a.norm_weight = bank.norm_weight;
  a.norm_eps = 1e-6f;
  attn_res(ex, a);
  EXPECT_TRUE(same_bits(bank.out, want)) << "n " << n << " D " << D;
}

TEST_P(AttnRes, TheFusedNormHasTheBitsOfTheNormOpAfterIt) {
  for (int64_t n : {0, 1, 3})
    for (int64_t D : {1, 7, 16, 33, 129, 7168}) {
      fused_equals_separate<float>(ex, GetParam(), n, D);
      fused_equals_separate<bf16>(ex, GetParam(), n, D);
    }
}

template <class E>
void added_equals_separate(TestExec& ex, int64_t n, int64_t D, bool in_place) {
  constexpr int64_t T = 4, wide = 7200;
  Bank<E> bank(3, n, T, D);
  Guarded<E> addend({T, D}), sum({T, D}), want({T, D});
  test::Rng rng(static_cast<uint64_t>(D + n));
  fill_normal(addend, rng, 0.7f);
  for (int64_t i = 0; i < T * D; ++i) sum[i] = from_float<E>(to_float(bank.sum[i]) + to_float(addend[i]));
  AttnResArgs a = bank.args();
  a.norm_weight = bank.norm_weight;
  a.sum = sum.view();
  a.out = want.view();
  attn_res(ex, a);
  const test::Spread<E> given(bank.sum, wide), terms(addend, wide), apart({T, D}, wide);
  const test::Spread<E>& to = in_place ? given : apart;
  a.sum = given.view(), a.addend = terms.view(), a.sum_out = to.view(), a.out = bank.out.view();
  attn_res(ex, a);
  SCOPED_TRACE(str("n ", n, " D ", D, " in place ", in_place));
  EXPECT_TRUE(same_bits(bank.out, want));
  EXPECT_TRUE(to.rows_equal(sum) && to.gaps_intact());
  EXPECT_TRUE(in_place || given.rows_equal(bank.sum));
}

TEST_P(AttnRes, AnAddendHasTheBitsOfASumThatHeldItBefore) {
  for (bool in_place : {false, true})
    for (int64_t n : {0, 1, 3})
      for (int64_t D : {1, 7, 16, 33, 129, 7168}) {
        added_equals_separate<float>(ex, n, D, in_place);
        added_equals_separate<bf16>(ex, n, D, in_place);
      }
}

TEST_P(AttnRes, StridedBlocksAndRowsEqualDenseOnes) {
  constexpr int64_t B = 3, T = 4, D = 37, wide = 50;
  Bank<bf16> bank(B, B, T, D);
  attn_res(ex, bank.args());
  Guarded<bf16> blocks({T, B, wide});  // the other order of the two outer axes
  for (int64_t b = 0; b < B; ++b)
    test::copy_rows(blocks.data() + b * wide, B * wide, bank.blocks.data() + b * T * D, D, T, D);
  const test::Spread<bf16> sum(bank.sum, wide), out({T, D}, wide);
  AttnResArgs a = bank.args();
  a.blocks = AnyConstView(blocks.data(), DType::bf16, {B, T, D}, {wide, B * wide, 1});
  a.sum = sum.view();
  a.out = out.view();
  attn_res(ex, a);
  EXPECT_TRUE(out.rows_equal(bank.out));
  EXPECT_TRUE(out.gaps_intact());
}

TEST_P(AttnRes, BitsOfATokenDependNeitherOnItsCompanyNorOnTheThreads) {
  constexpr int64_t T = 61, D = 333;
  Bank<bf16> bank(5, 4, T, D);
  AttnResArgs a = bank.args();
  a.norm_weight = bank.norm_weight;
  attn_res(ex, a);
  for (int threads : {1, 3}) {
    TestExec other(threads);
    force(other);
    Guarded<bf16> out({T, D});
    AttnResArgs b = a;
    b.out = out.view();
    attn_res(other, b);
    EXPECT_TRUE(same_bits(out, bank.out)) << threads << " threads";
  }
  Guarded<bf16> alone({1, D});
  for (int64_t t : {int64_t{0}, int64_t{30}, T - 1}) {
    AttnResArgs b = a;
    b.blocks = a.blocks.slice(1, t, 1), b.sum = a.sum.rows(t, 1), b.out = alone.view();
    attn_res(ex, b);
    EXPECT_TRUE(test::equal_bits(alone.data(), &bank.out[t * D], D)) << "token " << t;
  }
}

TEST_P(AttnRes, NaNStaysInItsToken) {
  Bank<float> bank(2, 2, 3, 20);
  bank.blocks[20 + 5] = NAN;  // block 0, token 1
  AttnResArgs a = bank.args();
  a.norm_weight = bank.norm_weight;
  attn_res(ex, a);
  for (int64_t i = 0; i < 60; ++i) EXPECT_EQ(std::isnan(bank.out[i]), i / 20 == 1) << i;
}

TEST_P(AttnRes, NoTokensIsLegal) {
  Bank<float> bank(2, 2, 0, 20);
  attn_res(ex, bank.args());
  EXPECT_TRUE(bank.out.guards_intact());
}

TEST_P(AttnRes, OffsetsPastTwoToThe32ndElementAreExact) {
  constexpr int64_t D = 6, block = int64_t{3} << 30;
  Bank<bf16> bank(2, 2, 2, D);
  attn_res(ex, bank.args());
  const test::Far<bf16> blocks(bank.blocks, block / 2);
  Guarded<bf16> out({2, D});
  AttnResArgs a = bank.args();
  a.blocks = blocks.view();
  a.out = out.view();
  attn_res(ex, a);
  EXPECT_TRUE(same_bits(out, bank.out));
}

// A model without attention and MLP: layer l adds a one-hot vector twice (as attention and as feed-forward output). The
// bank lies in one array whose uncommitted blocks are NaN; the model it is compared with keeps a plain list.
struct ResidualRun {
  ResidualRun(TestExec& ex_, int64_t layers, int64_t block_)
      : ex(ex_),
        block(block_),
        capacity((layers + block_ - 1) / block_),
        D(layers),
        bank({capacity, 1, layers}),
        sum({1, layers}),
        weight({layers}),
        mixed({1, layers}) {
    test::Rng rng(static_cast<uint64_t>(layers * 100 + block_));
    fill_normal(weight, rng, 0.4f);
    fill_normal(sum, rng, 1.0f);
  }
  void check_mixture(int64_t layer) {
    attn_res(
        ex,
        {.blocks = bank.view(), .n = n, .sum = sum.view(), .score_weight = weight, .eps = 1e-5f, .out = mixed.view()});
    std::vector<const float*> streams;
    for (const auto& b : committed) streams.push_back(b.data());
    streams.push_back(sum.data());
    const std::vector<double> want = definition(streams, weight, 1e-5);
    for (int64_t d = 0; d < D; ++d)
      ASSERT_NEAR(mixed[d], want[static_cast<size_t>(d)], 1e-5) << "layer " << layer << " n " << n;
    for (size_t b = 0; b < committed.size(); ++b)
      ASSERT_TRUE(test::equal_bits(&bank[static_cast<int64_t>(b) * D], committed[b].data(), D));
  }
  void run_layer(int64_t layer) {
    check_mixture(layer);
    if (layer % block == 0) {
      committed.emplace_back(sum.data(), sum.data() + D);
      std::memcpy(&bank[n * D], sum.data(), static_cast<size_t>(D) * sizeof(float));
      ++n;
      for (int64_t d = 0; d < D; ++d) sum[d] = 0;
    }
    sum[layer] += 1;
    check_mixture(layer);
    sum[layer] += 1;
  }
  TestExec& ex;
  int64_t block, capacity, D, n = 0;
  Guarded<float> bank, sum, weight, mixed;
  std::vector<std::vector<float>> committed;
};

TEST_P(AttnRes, ABankRunOfAnyLayerCountEqualsAPlainListOfBlocks) {
  const std::pair<int64_t, int64_t> runs[] = {{1, 12}, {11, 12}, {12, 12}, {13, 12}, {24, 12}, {25, 12}, {93, 12},
                                              {1, 1},  {13, 13}, {25, 25}, {93, 93}, {7, 1},   {93, 1}};
  for (const auto& [layers, block] : runs) {
    ResidualRun run(ex, layers, block);
    for (int64_t l = 0; l < layers; ++l) run.run_layer(l);
    run.check_mixture(layers);
    EXPECT_EQ(run.n, run.capacity) << layers << " layers in blocks of " << block;
  }
}

TEST(AttnResRefuses, WrongArgumentsByName) {
  TestExec ex;
  Bank<float> bank(3, 2, 2, 8);
  Guarded<bf16> half({3, 2, 8});
  Guarded<float> addend({2, 8});
  AttnResArgs good = bank.args();
  good.norm_weight = bank.norm_weight;
  auto with = [&](auto change) {
    AttnResArgs a = good;
    change(a);
    return test::error_of([&] { attn_res(ex, a); });
  };
  EXPECT_EQ(with([](AttnResArgs&) {}), "no error");
  EXPECT_EQ(with([](AttnResArgs& a) { a.n = 4; }), "attn_res: n: 4 blocks exceed the stream capacity, expected 0..3");
  EXPECT_EQ(with([](AttnResArgs& a) { a.n = -1; }), "attn_res: n: -1 blocks exceed the stream capacity, expected 0..3");
  EXPECT_EQ(with([](AttnResArgs& a) { a.blocks = {}; }),
            "attn_res: n: 2 blocks exceed the stream capacity, expected 0..0");
  EXPECT_EQ(with([&](AttnResArgs& a) { a.blocks = half.view(); }), "attn_res: blocks: dtype BF16, accepted: F32");
  EXPECT_EQ(with([](AttnResArgs& a) {
              a.blocks.shape = Shape{3, 2, 7};
            }),
            "attn_res: blocks: shape [3, 2, 7], expected [3, 2, 8]");
  EXPECT_EQ(with([](AttnResArgs& a) { a.blocks.data = nullptr; }),
            "attn_res: blocks: null pointer for shape [3, 2, 8]");
  EXPECT_EQ(with([](AttnResArgs& a) { a.sum.dtype = DType::f16; }), "attn_res: sum: dtype F16, accepted: F32, BF16");
  EXPECT_EQ(with([](AttnResArgs& a) { a.sum.shape = Shape{16}; }), "attn_res: sum: shape [16], expected [T, D]");
  EXPECT_EQ(with([](AttnResArgs& a) { a.score_weight.shape = Shape{9}; }),
            "attn_res: score_weight: shape [9], expected [8]");
  EXPECT_EQ(with([](AttnResArgs& a) { a.norm_weight.shape = Shape{9}; }),
            "attn_res: norm_weight: shape [9], expected [8]");
  EXPECT_EQ(with([](AttnResArgs& a) { a.out.stride[1] = 3; }), "attn_res: out: stride 3 on the last axis, expected 1");
  EXPECT_EQ(with([&](AttnResArgs& a) { a.addend = a.sum; }),
            "attn_res: sum_out: null where addend is given, expected both or neither");
  EXPECT_EQ(with([&](AttnResArgs& a) { a.sum_out = bank.sum.view(); }),
            "attn_res: sum_out: given where addend is null, expected both or neither");
  const auto adding = [&](auto change) {
    return with([&](AttnResArgs& a) {
      a.addend = addend.view(), a.sum_out = bank.sum.view();
      change(a);
    });
  };
  EXPECT_EQ(adding([](AttnResArgs&) {}), "no error");
  EXPECT_EQ(adding([](AttnResArgs& a) {
              a.addend.shape = Shape{2, 9};
            }),
            "attn_res: addend: shape [2, 9], expected [2, 8]");
  EXPECT_EQ(adding([](AttnResArgs& a) { a.addend.dtype = DType::bf16; }),
            "attn_res: addend: dtype BF16, accepted: F32");
  EXPECT_EQ(adding([](AttnResArgs& a) {
              a.sum_out.shape = Shape{1, 8};
            }),
            "attn_res: sum_out: shape [1, 8], expected [2, 8]");
  EXPECT_EQ(adding([](AttnResArgs& a) { a.sum_out.dtype = DType::bf16; }),
            "attn_res: sum_out: dtype BF16, accepted: F32");
  EXPECT_EQ(with([](AttnResArgs& a) { a.eps = -1; }), "attn_res: eps: -1, expected >= 0");
  EXPECT_EQ(with([](AttnResArgs& a) { a.norm_eps = -1; }), "attn_res: norm_eps: -1, expected >= 0");
}

TEST(AttnResChoice, TakesTheBestRowOfTheProcessor) {
  Options options;
  AttnResDesc d{.target = {.isa = IsaLevel::amx}, .rows = 1, .width = 8, .streams = 9};
  EXPECT_STREQ(choose("attn_res", attn_res_variants(), d, options).name, "avx512");
  d.target.isa = IsaLevel::avx2;
  EXPECT_STREQ(choose("attn_res", attn_res_variants(), d, options).name, "avx2");
  d.target.isa = IsaLevel::portable;
  EXPECT_STREQ(choose("attn_res", attn_res_variants(), d, options).name, "portable");
}

TEST(AttnResPlanning, TakesItsScratchAndTouchesNothing) {
  TestExec ex;
  Exec planning = ex.planning();
  Arena measuring = Arena::measuring(Device{});
  planning.scratch = &measuring;
  Bank<float> bank(8, 2, 3, 8);
  attn_res(planning, bank.args());
  EXPECT_TRUE(bank.out.untouched());
  EXPECT_LE(measuring.peak(), 4096) << "a full bank costs no memory beyond the output";
}

// The rules of the CUDA rows need no device.
TEST(AttnResChoice, TheRingTakesBf16RowsOfWholeWordsThatFitItsRegistersAndTheClusterFewOfThem) {
  const Target hopper{.device = DeviceKind::cuda, .cuda = CudaLevel::sm90a, .multiprocessors = 132};
  const AttnResDesc fits{.target = hopper, .rows = 33, .width = 7168, .streams = 9};
  const auto refused = [&](auto change) {
    AttnResDesc d = fits;
    change(d);
    const char* reason = attn_res_ring_refuse(d);
    return std::string(reason == nullptr ? "" : reason);
  };
  EXPECT_EQ(refused([](AttnResDesc&) {}), "");
  EXPECT_EQ(refused([](AttnResDesc& d) { d.dtype = DType::f32; }), "bf16 alone");
  EXPECT_EQ(refused([](AttnResDesc& d) { d.aligned = false; }), "rows that are not whole 16-byte words");
  EXPECT_EQ(refused([](AttnResDesc& d) { d.width = 7176; }), "rows wider than 7168");
  EXPECT_EQ(refused([](AttnResDesc& d) { d.streams = 10; }), "more than 9 streams");
  // All streams of the widest token fit, and rows of the next one with them.
  EXPECT_GT(attn_res_ring_slots(fits), fits.streams);
  if (!kCudaBuild) return;
  AttnResDesc d = fits;
  EXPECT_STREQ(choose("attn_res", attn_res_variants(), d, Options{}).name, "cuda_ring");
  d.rows = 32;
  EXPECT_STREQ(choose("attn_res", attn_res_variants(), d, Options{}).name, "cuda_cluster");
  d.target.cuda = CudaLevel::sm80;
  EXPECT_STREQ(choose("attn_res", attn_res_variants(), d, Options{}).name, "cuda");
}

}  // namespace
}  // namespace kdelta
