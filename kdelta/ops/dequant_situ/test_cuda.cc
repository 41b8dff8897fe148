#include "kdelta/core/fault.h"
#include "kdelta/ops/dequant_situ/variants.h"
#include "tests/gpu/effect_case.h"

namespace kdelta::test {
namespace {

struct Form {
  int64_t T = 5, N = 64, gap = 0;
  bool left = true, bias = true, per_expert = false, broadcast = false, fixed = false, nan = false;
  std::vector<int64_t> counts = {};
};

template <class In>
void check(const Form& f, uint32_t faults = 0) {
  SCOPED_TRACE(str("T ", f.T, " N ", f.N, " gap ", f.gap, " fixed ", f.fixed, " per expert ", f.per_expert));
  constexpr bool kScaled = !std::is_same_v<In, bf16>, kI32 = std::is_same_v<In, int32_t>;
  const int64_t E = static_cast<int64_t>(f.counts.size()), width = f.broadcast ? 1 : 2 * f.N;
  const Shape parameters = f.per_expert ? Shape{E, width} : Shape{width};
  Guarded<In> x({f.T, 2 * f.N + f.gap});
  Guarded<int8_t> y({f.T, f.N + f.gap});
  Guarded<float> scale({f.T}), weight(parameters), bias(parameters), activation({f.T}), quant({f.N}), offset({f.N});
  Guarded<int64_t> counts({E});
  EffectCase c;
  c.array("x", x);
  // fp32 arithmetic before a rounding to an integer: a step here and there.
  c.array("y", y, {.absolute = 1, .share = 2e-3});
  c.array("scale", scale, {.relative = 1e-5});
  c.array("weight", weight);
  c.array("bias", bias);
  c.array("activation", activation);
  c.array("quant", quant);
  c.array("offset", offset);
  c.array("counts", counts);
  c.fill = [&](Rng& rng) {
    if constexpr (kScaled)
      for (int64_t i = 0; i < x.size(); ++i) x[i] = static_cast<In>(static_cast<int>(rng() % 255) - 127);
    else
      fill_normal(x, rng, 3.0f);
    if constexpr (!kScaled)
      if (f.nan) x[3] = from_float<bf16>(NAN), x[2 * f.N + f.gap + 1] = from_float<bf16>(-INFINITY);
    fill_uniform(weight, rng, 0.01f, 0.05f);
    fill_normal(bias, rng);
    fill_uniform(activation, rng, 0.5f, 1.5f);
    fill_uniform(quant, rng, 0.02f, 0.3f);
    fill_normal(offset, rng, 5.0f);
    for (int64_t e = 0; e < E; ++e) counts[e] = f.counts[static_cast<size_t>(e)];
  };
  c.call = [&](const Exec& ex, const EffectCase::At& at) {
    DequantSituArgs a{.x = AnyConstView(at(x)).columns(0, 2 * f.N), .activate_left = f.left, .dynamic = !f.fixed};
    if (kScaled) {
      a.weight_scale = at(weight);
      if (f.bias) a.bias = at(bias);
      if (kI32) a.activation_scale = at(activation);
    }
    if (f.fixed)
      a.quant_scale = at(quant), a.quant_offset = at(offset);
    else
      a.scale = at(scale);
    if (E > 0) a.group_counts = at(counts);
    a.y = View<int8_t>(at(y).data, {f.T, f.N}, {f.N + f.gap, 1});
    dequant_situ(ex, a);
  };
  if (faults != 0) c.reference = [](const Exec&, const EffectCase::At&) {};  // no row is in use
  c.faults = faults;
  c.run("dequant_situ", dequant_situ_variants());
}

TEST(DequantSituCuda, EqualsTheReferenceForEveryInputTypeModeAndWidth) {
  for (int64_t N : {1, 8, 16, 100, 1024, 2064, 3072, 5000})
    for (int64_t gap : {0, 3, 16}) {
      check<int8_t>({.N = N, .gap = gap});
      check<int8_t>({.N = N, .gap = gap, .left = false, .broadcast = true, .fixed = true});
      check<int32_t>({.N = N, .gap = gap, .bias = false});
      check<bf16>({.N = N, .gap = gap, .nan = N > 8});
    }
}

TEST(DequantSituCuda, RowsTakeTheParametersOfTheirExpertAndThoseBehindTheCountsAreUntouched) {
  for (int64_t N : {16, 520}) {
    check<int32_t>({.T = 11, .N = N, .per_expert = true, .counts = {3, 0, 5, 1}});
    check<int32_t>({.T = 11, .N = N, .per_expert = true, .counts = std::vector<int64_t>(300, 0)});
    std::vector<int64_t> many(700, 0);
    many[1] = 2, many[500] = 4, many[699] = 5;
    check<int32_t>({.T = 11, .N = N, .per_expert = true, .counts = many});
    check<bf16>({.T = 9, .N = N, .counts = {4, 4}});
  }
}

TEST(DequantSituCuda, WrongCountsUseNoRowAndRaiseTheirFault) {
  check<bf16>({.T = 9, .counts = {4, 6}}, static_cast<uint32_t>(Fault::count));
  check<bf16>({.T = 9, .counts = {4, -1}}, static_cast<uint32_t>(Fault::count));
}

}  // namespace
}  // namespace kdelta::test
