// mla against its equation and the ways it must not go wrong: poison, later tokens, refusals. test_exact.cc holds the
// tests of equal bits, test_append.cc those of mla_append.
#include "kdelta/ops/mla/cpu_plan.h"
#include "kdelta/ops/mla/test_scene.h"

namespace kdelta {
namespace {

using test::Guarded;
using test::MlaScene;
using test::MlaSequence;
using test::MlaSizes;
using test::TestExec;

class Mla : public test::VariantTest {
 protected:
  Mla() { ex_.force("mla", GetParam()); }
  bool slow() const { return GetParam() == "reference"; }
  template <class X>
  void expect_definition(MlaScene<X>& scene) {
    mla(ex_, scene.args());
    EXPECT_TRUE(scene.out.guards_intact());
    const std::vector<double> want = scene.expected();
    EXPECT_LT(test::relative_rmse(doubles(scene.out), want), sizeof(X) == 4 ? 2e-6 : 0x1p-8);
    double largest = 0;
    for (double w : want) largest = std::max(largest, std::fabs(w));
    for (int64_t i = 0; i < scene.out.size(); ++i) {
      const double w = want[static_cast<size_t>(i)], rounding = sizeof(X) == 2 ? 0x1p-8 * std::fabs(w) : 0;
      ASSERT_NEAR(to_float(scene.out[i]), w, rounding + 1e-5 * largest) << "element " << i;
    }
  }
  TestExec ex_{2, int64_t{96} << 20};
};
KDELTA_INSTANTIATE_VARIANTS(Mla, mla_variants());

TEST_P(Mla, EqualsTheDefinitionAtEveryLengthAroundTheBlocksAndPages) {
  for (int32_t len : {1, 2, 5, 15, 16, 17, 63, 64, 65, 127, 128, 129, 200})
    for (int32_t context : {0, 1, 63, 64, 65, 130})
      for (int prefill : {0, 1}) {
        if (prefill == 0 && len > 17) continue;
        SCOPED_TRACE(str("len ", len, " context ", context, " prefill ", prefill));
        MlaScene<float> f({}, {{context, len}}, prefill);
        expect_definition(f);
        MlaScene<bf16> b({}, {{context, len}}, prefill);
        expect_definition(b);
      }
}

TEST_P(Mla, EqualsTheDefinitionAtEveryWidth) {
  for (const MlaSizes& s :
       {MlaSizes{1, 1, 1, 1, 1, 1}, MlaSizes{3, 3, 5, 7, 9, 5}, MlaSizes{2, 16, 0, 16, 16, 64},
        MlaSizes{2, 15, 17, 31, 33, 7}, MlaSizes{2, 17, 15, 33, 31, 65}, MlaSizes{1, 33, 1, 65, 130, 128},
        MlaSizes{2, 64, 32, 24, 64, 48}, MlaSizes{2, 128, 64, 128, 512, 64}})
    for (int prefill : {0, 1, 3}) {
      SCOPED_TRACE(
          str("nope ", s.nope, " rope ", s.rope, " value ", s.value, " latent ", s.latent, " prefill ", prefill));
      MlaScene<float> f(s, {{70, 3}, {0, 66}, {5, 1}}, prefill);
      expect_definition(f);
      MlaScene<bf16> b(s, {{70, 3}, {0, 66}, {5, 1}}, prefill);
      expect_definition(b);
    }
}

TEST_P(Mla, EqualsTheDefinitionAtEveryHeadCount) {
  for (int64_t H : {1, 2, 3, 5, 6, 8, 9, 12, 32, 49, 96})
    for (int prefill : {0, 1}) {
      SCOPED_TRACE(str("H ", H));
      MlaScene<bf16> scene({.H = H}, {{40, 5}, {90, 1}}, prefill);
      expect_definition(scene);
    }
}

TEST_P(Mla, EveryWeightFormatStandsForItsValues) {
  for (DType dtype : {DType::f32, DType::bf16, DType::f4_e2m1, DType::f8_e4m3, DType::f8_e5m2})
    for (int prefill : {0, 1}) {
      SCOPED_TRACE(dtype_name(dtype));
      MlaScene<float> f({.nope = 13, .value = 19, .latent = 64}, {{30, 40}}, prefill, dtype);
      mla(ex_, f.args());
      EXPECT_LT(test::relative_rmse(doubles(f.out), f.expected()), 2e-6);
    }
}

TEST_P(Mla, LongContextKeepsTheBound) {
  MlaScene<float> decode({.H = 2}, {{5000, 1}}, 0);
  expect_definition(decode);
  MlaScene<float> prefill({.H = 2}, {{3000, 70}}, 1);
  expect_definition(prefill);
}

TEST_P(Mla, MoreQueriesThanOneExpansionServesAreRight) {
  if (slow()) return;  // a thousand times the work of the other lengths
  MlaScene<float> scene({.H = 1, .nope = 4, .rope = 4, .value = 4, .latent = 8, .page = 64}, {{10, 2200}}, 1);
  expect_definition(scene);
}

TEST_P(Mla, HugeScoresNeitherOverflowNorLoseTheWinner) {
  for (int prefill : {0, 1}) {
    MlaScene<float> scene({}, {{100, 6}}, prefill);
    for (int64_t i = 0; i < 6 * 2 * 24; ++i) scene.q[i] *= 1000;
    mla(ex_, scene.args());
    EXPECT_LT(test::relative_rmse(doubles(scene.out), scene.expected()), 2e-3);
  }
}

TEST_P(Mla, WhatLiesPastTheLengthIsNeverUsed) {
  // C7: NaN in the tail of the last page; the scene puts it everywhere that no token lives.
  for (int32_t length : {1, 5, 15, 16, 17})
    for (int prefill : {0, 1})
      for (int64_t page : {16, 64, 100}) {
        MlaScene<bf16> scene({.page = page}, {{length - 1, 1}}, prefill);
        mla(ex_, scene.args());
        for (int64_t i = 0; i < scene.out_row(); ++i)
          ASSERT_TRUE(std::isfinite(to_float(scene.out[i]))) << length << " of " << page;
      }
}

TEST_P(Mla, ANaNOfALaterTokenNeverReachesAnEarlierOne) {
  for (int prefill : {0, 1}) {
    const int32_t len = prefill ? 150 : 9;
    for (int32_t bad : {1, 8, 63, 64, 100, 149}) {
      if (bad >= len) continue;
      MlaScene<float> clean({}, {{20, len}}, prefill), scene({}, {{20, len}}, prefill);
      for (int64_t i = 0; i < scene.width(); ++i) scene.latent(0, 20 + bad)[i] = NAN;
      scene.write(0, 20 + bad);
      mla(ex_, clean.args());
      mla(ex_, scene.args());
      EXPECT_EQ(std::memcmp(clean.out.data(), scene.out.data(), static_cast<size_t>(bad * scene.out_row()) * 4), 0)
          << bad;
      for (int64_t t = bad; t < len; ++t) EXPECT_TRUE(std::isnan(scene.out[t * scene.out_row()])) << t;
    }
  }
}

TEST_P(Mla, ANaNStaysInItsSequence) {
  for (int prefill : {0, 2, 3}) {
    const std::vector<MlaSequence> sequences{{20, 5}, {30, 5}, {40, 5}};
    MlaScene<float> clean({}, sequences, prefill), scene({}, sequences, prefill);
    scene.latent(1, 3)[2] = NAN;
    scene.write(1, 3);
    mla(ex_, clean.args());
    mla(ex_, scene.args());
    for (int64_t t = 0; t < 15; ++t) {
      const int64_t row = t * scene.out_row();
      const bool same = std::memcmp(&clean.out[row], &scene.out[row], static_cast<size_t>(scene.out_row()) * 4) == 0;
      EXPECT_EQ(std::isnan(scene.out[row]), t / 5 == 1) << t;
      EXPECT_EQ(same, t / 5 != 1) << t;
    }
  }
}

TEST_P(Mla, TheOrderOfEarlierTokensDoesNotMatter) {
  // D6: no positions. All 64 rope columns still take part in the scores.
  for (int prefill : {0, 1}) {
    MlaScene<float> scene({}, {{90, 1}}, prefill);
    mla(ex_, scene.args());
    const std::vector<double> before = doubles(scene.out);
    std::vector<int64_t> order(90);
    std::iota(order.begin(), order.end(), 0);
    test::Rng rng(5);
    std::shuffle(order.begin(), order.end(), rng);
    for (int64_t i = 0; i < 90; ++i)
      std::copy_n(scene.latent(0, order[static_cast<size_t>(i)]), scene.width(), scene.row(0, i));
    mla(ex_, scene.args());
    EXPECT_LT(test::relative_rmse(doubles(scene.out), before), 1e-6);
    for (int64_t h = 0; h < 2; ++h) scene.q[h * 24 + 23] += 1;
    mla(ex_, scene.args());
    EXPECT_GT(test::relative_rmse(doubles(scene.out), before), 1e-3) << "the last rope column takes part";
  }
}

TEST_P(Mla, RowsPastTheLastSequenceAreZerosAndEmptySequencesAreLegal) {
  for (int prefill : {0, 2, 4}) {
    MlaScene<bf16> scene({}, {{0, 0}, {10, 3}, {7, 0}, {0, 2}}, prefill);
    mla(ex_, scene.args());
    for (int64_t i = 5 * scene.out_row(); i < scene.out.size(); ++i) EXPECT_EQ(scene.out[i].bits, 0);
    EXPECT_LT(test::relative_rmse(doubles(scene.out), scene.expected()), 0x1p-8);
  }
  MlaScene<bf16> nothing({}, {{5, 0}}, 0);
  mla(ex_, nothing.args());
  for (int64_t i = 0; i < nothing.out.size(); ++i) EXPECT_EQ(nothing.out[i].bits, 0);
}

TEST_P(Mla, StridedQueriesAndOutputsEqualDenseOnesAndTheGapIsNeitherReadNorWritten) {
  for (int prefill : {0, 1}) {
    MlaScene<float> scene({}, {{30, 6}}, prefill);
    mla(ex_, scene.args());
    const int64_t T = scene.T, H = 2, D = 24, V = 16;
    Guarded<float> wide_q({T, 2 * H, D + 5}), wide_out({T, H + 1, V + 3});
    for (int64_t t = 0; t < T; ++t)
      for (int64_t h = 0; h < H; ++h) std::copy_n(&scene.q[(t * H + h) * D], D, &wide_q[(t * 2 * H + 2 * h) * (D + 5)]);
    MlaArgs a = scene.args();
    a.q = AnyConstView(wide_q.data(), DType::f32, {T, H, D}, Strides{2 * H * (D + 5), 2 * (D + 5), 1});
    a.out = AnyView(wide_out.data(), DType::f32, {T, H, V}, Strides{(H + 1) * (V + 3), V + 3, 1});
    mla(ex_, a);
    for (int64_t t = 0; t < T; ++t)
      for (int64_t h = 0; h <= H; ++h)
        for (int64_t v = 0; v < V + 3; ++v) {
          const float got = wide_out[(t * (H + 1) + h) * (V + 3) + v];
          const bool inside = h < H && v < V;
          EXPECT_TRUE(inside ? got == scene.out[(t * H + h) * V + v] : std::isnan(got)) << t << " " << h << " " << v;
        }
  }
}

TEST(MlaScratch, DoesNotGrowWithTheContext) {
  MlaDesc d{.target = {.threads = 2},
            .tokens = 64,
            .heads = 32,
            .nope = 128,
            .rope = 64,
            .value = 128,
            .latent = 512,
            .max_len = 64,
            .max_context = 1000};
  const int64_t few = mla_cpu_scratch(d);
  d.max_context = 1 << 20;
  EXPECT_EQ(mla_cpu_scratch(d), few);
  for (int64_t* size : {&d.tokens, &d.heads, &d.nope, &d.rope, &d.value, &d.latent, &d.max_len}) {
    const int64_t before = mla_cpu_scratch(d);
    *size *= 2;
    EXPECT_GE(mla_cpu_scratch(d), before);
  }
}

TEST(MlaRefuses, WrongArgumentsByNameBeforeAnythingIsWritten) {
  TestExec ex;
  MlaScene<float> scene({}, {{20, 2}, {3, 1}}, 1);
  auto with = [&](auto change) {
    MlaArgs a = scene.args();
    change(a);
    return test::error_of([&] { mla(ex, a); });
  };
  EXPECT_EQ(with([](MlaArgs& a) { a.nope = 0; }), "mla: nope: 0, expected 1 to 1073741824");
  EXPECT_EQ(with([](MlaArgs& a) { a.rope = 9; }), "mla: q: shape [6, 2, 24], expected [6, 2, 25]");
  EXPECT_EQ(with([](MlaArgs& a) { a.latent = 31; }),
            str("mla: cache: shape ", to_string(scene.cache.shape()), ", expected ",
                to_string(Shape{scene.cache.shape()[0], 16, 39})));
  EXPECT_EQ(with([](MlaArgs& a) { a.kv_b.rows = 63; }), "mla: kv_b: shape [63, 32], expected [64, 32]");
  EXPECT_EQ(with([](MlaArgs& a) { a.scale = NAN; }), "mla: scale: nan, expected > 0");
  EXPECT_EQ(with([](MlaArgs& a) { a.out.dtype = DType::bf16; }), "mla: out: dtype BF16, q has F32");
  EXPECT_EQ(with([](MlaArgs& a) { a.q.dtype = DType::f16; }), "mla: q: dtype F16, accepted: F32, BF16");
  EXPECT_EQ(with([](MlaArgs& a) { a.cache.stride[0] += 1; }), "mla: cache: expected dense strides");
  EXPECT_EQ(with([](MlaArgs& a) { a.seq.n_decode = 2; }), "mla: 1 prefill and 2 decode sequences of 2");
  EXPECT_EQ(with([](MlaArgs& a) { a.seq.n_decode = 0; }),
            "mla: rows from 1 on hold tokens but are neither prefill nor decode");
  EXPECT_EQ(with([](MlaArgs& a) { a.seq.max_len = 1; }), "mla: sequence 0 has 2 tokens, max_len is 1");
  EXPECT_EQ(with([](MlaArgs& a) { a.seq.max_context = 21; }), "mla: sequence 0 reaches 22 tokens, max_context is 21");
  for (int64_t i = 0; i < scene.out.size(); ++i) EXPECT_TRUE(std::isnan(scene.out[i]));
}

TEST(MlaRefuses, WrongSequencesByNameBeforeAnythingIsWritten) {
  TestExec ex;
  auto with = [&](auto change) {
    MlaScene<float> scene({}, {{20, 2}, {3, 1}}, 1);
    change(scene);
    const std::string error = test::error_of([&] { mla(ex, scene.args()); });
    for (int64_t i = 0; i < scene.out.size(); ++i) EXPECT_TRUE(std::isnan(scene.out[i]));
    return error;
  };
  using Scene = MlaScene<float>;
  EXPECT_EQ(with([](Scene& s) { s.cu[0] = 1; }), "mla: cu[0] is 1, expected 0");
  EXPECT_EQ(with([](Scene& s) { s.cu[1] = 4; }), "mla: cu[2] is 3 after 4, expected no decrease");
  EXPECT_EQ(with([](Scene& s) { s.cu[2] = 9; }), "mla: cu ends at 9, past the 6 rows");
  EXPECT_EQ(with([](Scene& s) { s.context[1] = -1; }), "mla: context[1] is -1, expected >= 0");
  EXPECT_EQ(with([](Scene& s) { s.pages[1] = 0; }), "mla: pages[0, 1] is 0, expected 1..8");
  EXPECT_EQ(with([](Scene& s) { s.pages[1] = -1; }), "mla: pages[0, 1] is -1, expected 1..8");
  EXPECT_EQ(with([](Scene& s) { s.pages[0] = 9; }), "mla: pages[0, 0] is 9, expected 1..8");
  EXPECT_EQ(with([](Scene& s) { s.context[0] = 47, s.furthest = 49; }),
            "mla: sequence 0 needs 4 pages, its row of pages holds 3");
}

TEST(MlaChoice, TakesTheBestRowOfTheProcessor) {
  MlaDesc d{.target = {.isa = IsaLevel::amx}};
  EXPECT_STREQ(choose("mla", mla_variants(), d, Options{}).name, "avx512");
  d.target.isa = IsaLevel::avx2;
  EXPECT_STREQ(choose("mla", mla_variants(), d, Options{}).name, "avx2");
  d.target.isa = IsaLevel::portable;
  EXPECT_STREQ(choose("mla", mla_variants(), d, Options{}).name, "portable");
}

const MlaDesc kRelease{.target = {.device = DeviceKind::cuda, .cuda = CudaLevel::sm90a, .multiprocessors = 132},
                       .tokens = 64,
                       .heads = 32,
                       .nope = 128,
                       .rope = 64,
                       .value = 128,
                       .latent = 512,
                       .max_len = 1,
                       .max_context = 8192,
                       .sequences = 64,
                       .page_tokens = 64,
                       .aligned = true,
                       .activation = DType::bf16,
                       .cache = DType::bf16,
                       .weight = DType::bf16};

TEST(MlaChoice, TensorCoresTakeTheWidthsOfTheReleasesInBf16AndNothingElse) {
  EXPECT_EQ(mla_cuda_tensor_refuse(kRelease), nullptr);
  auto with = [](auto change) {
    MlaDesc d = kRelease;
    change(d);
    EXPECT_EQ(mla_cuda_portable_refuse(d), nullptr) << "the portable row takes it";
    const char* reason = mla_cuda_tensor_refuse(d);
    return std::string(reason == nullptr ? "" : reason);
  };
  EXPECT_EQ(with([](MlaDesc& d) { d.heads = 5, d.tokens = 9000, d.max_len = 9000; }), "");
  EXPECT_EQ(with([](MlaDesc& d) { d.weight = DType::f8_e4m3; }), "queries, cache or kv_b in another format than bf16");
  EXPECT_EQ(with([](MlaDesc& d) { d.activation = DType::f32; }), "queries, cache or kv_b in another format than bf16");
  EXPECT_EQ(with([](MlaDesc& d) { d.latent = 256; }), "widths other than 128 + 64, 128 and 512");
  EXPECT_EQ(with([](MlaDesc& d) { d.page_tokens = 48; }), "pages of no multiple of 32 tokens");
  EXPECT_EQ(with([](MlaDesc& d) { d.aligned = false; }), "rows that do not begin at 16 bytes");
}

TEST(MlaChoice, LongPrefillsOffTheExactModeAreExpanded) {
  const auto reason = [](auto change) {
    MlaDesc d = kRelease;
    d.tokens = 4096, d.max_len = 4096, d.n_prefill = 8, d.n_decode = 64;
    change(d);
    const char* why = mla_cuda_expanded_refuse(d);
    return std::string(why == nullptr ? "" : why);
  };
  EXPECT_EQ(reason([](MlaDesc&) {}), "");
  EXPECT_EQ(reason([](MlaDesc& d) { d.tokens = 8 * 128 + 64; }), "");
  EXPECT_EQ(reason([](MlaDesc& d) { d.tokens = 8 * 128 + 63; }), "few queries: to expand costs more than it saves");
  EXPECT_EQ(reason([](MlaDesc& d) { d.n_prefill = 0; }), "no prefill");
  EXPECT_EQ(reason([](MlaDesc& d) { d.max_context = 32768; }), "");
  EXPECT_EQ(reason([](MlaDesc& d) { d.max_context = 32769; }), "contexts that pass 262,144 positions together");
  EXPECT_EQ(reason([](MlaDesc& d) { d.exact = true; }),
            "exact mode: which form a token takes would depend on its company");
  EXPECT_EQ(reason([](MlaDesc& d) { d.weight = DType::f8_e4m3; }),
            "queries, cache or kv_b in another format than bf16");
  EXPECT_EQ(reason([](MlaDesc& d) { d.page_tokens = 48; }), "pages of no multiple of 32 tokens")
      << "decode rows beside";
  EXPECT_EQ(reason([](MlaDesc& d) { d.page_tokens = 48, d.n_decode = 0; }), "");
}

TEST(MlaScratch, OfTheCudaRowsGrowsWithEverySize) {
  for (bool exact : {false, true})
    for (auto* scratch : {&mla_cuda_portable_scratch, &mla_cuda_tensor_scratch, &mla_cuda_expanded_scratch})
      for (int64_t MlaDesc::*size :
           {&MlaDesc::tokens, &MlaDesc::heads, &MlaDesc::max_context, &MlaDesc::sequences, &MlaDesc::n_prefill})
        for (int64_t n = 1, before = 0; n < 5000; n += 1 + n / 9) {
          MlaDesc d = kRelease;
          d.exact = exact;
          d.*size = n;
          EXPECT_GE(scratch(d), before) << n;
          before = scratch(d);
        }
}

TEST(MlaPlanning, TouchesNothingAndPlansEnoughScratchForEveryVariant) {
  TestExec ex;
  MlaScene<float> scene({}, {{20, 2}}, 1);
  Arena measuring = Arena::measuring(Device{});
  Exec planning = ex.exec();
  planning.planning = true;
  planning.scratch = &measuring;
  mla(planning, scene.args());
  for (int64_t i = 0; i < scene.out.size(); ++i) EXPECT_TRUE(std::isnan(scene.out[i]));
  for (const std::string& variant : test::runnable(mla_variants())) {
    TestExec planned(2, measuring.peak());
    planned.force("mla", variant);
    mla(planned, scene.args());
  }
}

}  // namespace
}  // namespace kdelta
