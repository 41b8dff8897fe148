// cuda_fp8: both sides of a product E4M3 codes, multiplied as they are.
#include "kdelta/ops/linear/cuda_plan.h"
#include "kdelta/ops/linear/variants.h"
#include "kdelta/ops/mx_quant/mx_quant.h"
#include "tests/gpu/effect_case.h"

namespace kdelta::test {
namespace {

constexpr const char* kRow = "cuda_fp8";

// Relative error of all outputs together: 1.7e-3 is their rounding to bf16; the rest is what sums of 32 products lose.
constexpr double kMany = 1.9e-3, kFew = 3e-3;

struct Form {
  int64_t T = 1, N = 128, K = 128;
  int64_t gap = 0, scale_gap = 0;  // of codes and scales of x, in bytes
  int64_t w_gap = 0, out_gap = 0;
  std::vector<int64_t> more = {};
  bool addend = false;
};

struct Problem {
  explicit Problem(const Form& form, Bound bound)
      : f(form),
        blocks(f.K / kMxBlock),
        x({f.T, f.K + f.gap}),
        x_scale({f.T, blocks + f.scale_gap}),
        out({f.T, f.N + f.out_gap}) {
    c.array("x", x);
    c.array("x scale", x_scale);
    c.array("out", out, bound);
    for (int64_t rows : f.more) all_rows.push_back(rows);
    for (int64_t rows : all_rows) {
      w.push_back(std::make_unique<Guarded<uint8_t>>(Shape{rows, f.K + f.w_gap}));
      w_scale.push_back(std::make_unique<Guarded<uint8_t>>(Shape{rows, blocks + f.w_gap}));
      c.array("w", *w.back());
      c.array("w scale", *w_scale.back());
    }
    for (int64_t rows : f.more) {
      more_out.push_back(std::make_unique<Guarded<bf16>>(Shape{f.T, rows}));
      c.array("more out", *more_out.back(), bound);
    }
    c.fill = [this](Rng& rng) { fill(rng); };
    c.call = [this](const Exec& ex, const EffectCase::At& at) {
      std::vector<LinearPart> parts;
      for (size_t i = 0; i < f.more.size(); ++i) parts.push_back({matrix(at, i + 1), at(*more_out[i])});
      const AnyView to = AnyView(at(out)).columns(0, f.N);
      linear(ex, {.x = AnyConstView(at(x).data, DType::f8_e4m3, {f.T, f.K}, {f.K + f.gap, 1}),
                  .w = matrix(at, 0),
                  .addend = f.addend ? AnyConstView(to) : AnyConstView(),
                  .out = to,
                  .more = parts,
                  .x_scale = View<const uint8_t>(at(x_scale).data, {f.T, blocks}, {blocks + f.scale_gap, 1})});
    };
  }
  // Magnitudes up to 15 of either sign, scales apart by 2^5.
  void fill(Rng& rng) {
    for (int64_t i = 0; i < x.size(); ++i) x[i] = static_cast<uint8_t>(rng() & 0xd7);
    for (int64_t i = 0; i < x_scale.size(); ++i) x_scale[i] = static_cast<uint8_t>(120 + rng() % 6);
    for (auto& a : w)
      for (int64_t i = 0; i < a->size(); ++i) (*a)[i] = static_cast<uint8_t>(rng() & 0xd7);
    for (auto& a : w_scale)
      for (int64_t i = 0; i < a->size(); ++i) (*a)[i] = static_cast<uint8_t>(122 + rng() % 4);
    if (f.addend) fill_normal(out, rng);
  }
  Matrix matrix(const EffectCase::At& at, size_t i) {
    Matrix m = dense_matrix(at(*w[i]).data, DType::f8_e4m3, all_rows[i], f.K, at(*w_scale[i]).data);
    m.row_bytes = f.K + f.w_gap, m.scale_row_bytes = blocks + f.w_gap;
    return m;
  }
  void run() {
    SCOPED_TRACE(str("T ", f.T, " N ", f.N, " K ", f.K, " gap ", f.gap));
    ASSERT_TRUE(c.run_row("linear", kRow)) << c.refused;
  }

  Form f;
  int64_t blocks;
  Guarded<uint8_t> x, x_scale;
  Guarded<bf16> out;
  std::vector<int64_t> all_rows = {f.N};
  std::vector<std::unique_ptr<Guarded<uint8_t>>> w, w_scale;
  std::vector<std::unique_ptr<Guarded<bf16>>> more_out;
  EffectCase c;
};

void check(const Form& f, double rms) {
  Problem(f, {.rms = rms}).run();
}

TEST(LinearCudaCodes, EqualTheReferenceAtEverySizeAroundTheTileEdges) {
  for (int64_t T : {17, 31, 63, 64, 65, 127, 128, 129, 200, 255, 257, 300}) check({.T = T, .N = 130, .K = 160}, kFew);
  for (int64_t N : {1, 2, 63, 64, 65, 127, 128, 129, 260})
    for (int64_t T : {40, 130}) check({.T = T, .N = N, .K = 256, .out_gap = N % 2}, kFew);
  for (int64_t K : {32, 64, 96, 128, 160, 224, 1024, 1056, 2304})
    for (int64_t T : {20, 150}) check({.T = T, .N = 136, .K = K}, kFew);
}

TEST(LinearCudaCodes, LoseLittleBesideTheRoundingOfOutputsAtTheSizesOfALayer) {
  for (int64_t T : {64, 300}) check({.T = T, .N = 264, .K = 7168}, kMany);
  check({.T = 1100, .N = 1300, .K = 512}, kMany);  // several tiles a block
}

TEST(LinearCudaCodes, StridesAreFreePartsHaveOutputsOfTheirOwnAndAnAddendIsAdded) {
  check({.T = 50, .N = 72, .K = 256, .gap = 16, .scale_gap = 1, .w_gap = 16, .out_gap = 2}, kFew);
  check({.T = 150, .N = 72, .K = 256, .gap = 64, .scale_gap = 3, .out_gap = 6, .addend = true}, kFew);
  check({.T = 90, .N = 75, .K = 384, .out_gap = 1, .more = {72, 130}}, kFew);
  check({.T = 33, .N = 128, .K = 7168, .addend = true}, kFew);  // split columns
}

// A scale of every code on either side, products of every exponent; codes of 0.5 to 1.875 keep values in range.
TEST(LinearCudaCodes, EveryScaleIsAppliedWhereverItsProductEndsInRange) {
  for (int64_t T : {256, 40}) {
    constexpr int64_t N = 255, K = 192;
    Problem p({.T = T, .N = N, .K = K, .out_gap = 1}, {.relative = 0x1p-6, .absolute = 0x1p-120});
    p.c.fill = [&](Rng& rng) {
      const auto turn = static_cast<int64_t>(rng() % 255);
      for (int64_t i = 0; i < p.x.size(); ++i) p.x[i] = static_cast<uint8_t>(0x30 + rng() % 16);
      for (int64_t i = 0; i < p.w[0]->size(); ++i) (*p.w[0])[i] = static_cast<uint8_t>(0x30 + rng() % 16);
      for (int64_t t = 0; t < T; ++t)
        for (int64_t b = 0; b < p.blocks; ++b) p.x_scale[t * p.blocks + b] = static_cast<uint8_t>((t + turn) % 255);
      for (int64_t n = 0; n < N; ++n)
        for (int64_t b = 0; b < p.blocks; ++b)
          (*p.w_scale[0])[n * p.blocks + b] = static_cast<uint8_t>((n * 37 + b) % 255);
    };
    p.run();
  }
}

TEST(LinearCudaCodes, NaNOfACodeOrAScaleStaysInItsTokenOrItsWeightRow) {
  for (int64_t T : {40, 150}) {
    constexpr int64_t K = 160;
    Problem p({.T = T, .N = 140, .K = K}, {.rms = kFew});
    p.c.fill = [&](Rng& rng) {
      p.fill(rng);
      p.x[3 * K + 40] = 0x7f, p.x[5 * K + 159] = 0xff;
      p.x_scale[7 * p.blocks + 4] = 255;
      (*p.w[0])[17 * K + 1] = 0xff;
      (*p.w_scale[0])[139 * p.blocks] = 255;
    };
    p.run();
  }
}

// x is quantised on the way: by the rule of the matrix, a block that is not finite to NaN.
TEST(LinearCudaCodes, AnXToBeQuantisedIsMultipliedAsItsCodesWouldBe) {
  for (MxScaleRule rule : {MxScaleRule::floor, MxScaleRule::rceil, MxScaleRule::even})
    for (const auto& [T, K] : {std::pair<int64_t, int64_t>{20, 96}, {150, 1184}}) {
      constexpr int64_t N = 200, kGap = 3;
      Guarded<bf16> x({T, K + kGap}), out({T, N});
      Guarded<uint8_t> w({N, K}), scale({N, K / kMxBlock});
      EffectCase c;
      c.array("x", x);
      c.array("w", w);
      c.array("w scale", scale);
      c.array("out", out, {.rms = kFew});
      c.fill = [&](Rng& rng) {
        fill_normal(x, rng);
        x[4 * (K + kGap) + 33] = to_bf16(NAN), x[9 * (K + kGap) + 1] = to_bf16(INFINITY);
        for (int64_t i = 0; i < w.size(); ++i) w[i] = static_cast<uint8_t>(rng() & 0xd7);
        for (int64_t i = 0; i < scale.size(); ++i) scale[i] = static_cast<uint8_t>(122 + rng() % 4);
      };
      c.call = [&](const Exec& ex, const EffectCase::At& at) {
        Matrix m = dense_matrix(at(w).data, DType::f8_e4m3, N, K, at(scale).data);
        m.input = {DType::f8_e4m3, rule};
        linear(ex, {.x = AnyConstView(at(x)).columns(0, K), .w = m, .out = at(out)});
      };
      ASSERT_TRUE(c.run_row("linear", kRow)) << c.refused;
    }
}

}  // namespace
}  // namespace kdelta::test
