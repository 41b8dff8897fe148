#include "kdelta/ops/gated_norm/variants.h"
#include "tests/gpu/effect_case.h"

namespace kdelta::test {
namespace {

struct Shape3 {
  int64_t T, H, D, gap, column;
};
struct Extras {
  bool residual = false, sum_out = false, affine = true, live = false, silu = false;
};

template <class In, class Gate, class Out>
void check(const Shape3& z, const Extras& e) {
  SCOPED_TRACE(str("T ", z.T, " H ", z.H, " D ", z.D, " gap ", z.gap, " column ", z.column));
  const int64_t stride = z.H * z.D + z.gap;
  Guarded<In> x({z.T, stride}), residual({z.T, stride});
  Guarded<Gate> gate({z.T, stride});
  Guarded<Out> out({z.T, stride}), sum({z.T, stride});
  Guarded<float> weight({z.D}), bias({z.D});
  Guarded<int32_t> live({1});
  const Bound bound = rounded<Out>(1e-5, 1e-6);
  EffectCase c;
  c.array("x", x);
  c.array("residual", residual);
  c.array("gate", gate);
  c.array("out", out, bound);
  c.array("sum", sum, bound);
  c.array("weight", weight);
  c.array("bias", bias);
  c.array("live", live);
  c.fill = [&](Rng& rng) {
    fill_normal(x, rng, 2.0f, 0.3f);
    fill_normal(residual, rng);
    fill_normal(gate, rng, 3.0f);
    fill_normal(weight, rng, 0.5f, 1.0f);
    fill_normal(bias, rng);
    live[0] = static_cast<int32_t>(z.T - 1);
  };
  c.call = [&](const Exec& ex, const EffectCase::At& at) {
    auto heads = [&](auto v) { return decltype(v)(v).columns(z.column, z.H * z.D).split_last(z.H, z.D); };
    GatedNormArgs a{.x = heads(AnyConstView(at(x))), .gate = heads(AnyConstView(at(gate))), .eps = 1e-5f};
    if (e.affine) a.weight = at(weight), a.bias = at(bias);
    if (e.residual) a.residual = heads(AnyConstView(at(residual)));
    if (e.sum_out) a.sum_out = heads(AnyView(at(sum)));
    if (e.live) a.live = at(live);
    a.activation = e.silu ? GateActivation::silu : GateActivation::sigmoid;
    a.out = heads(AnyView(at(out)));
    gated_norm(ex, a);
  };
  c.run("gated_norm", gated_norm_variants());
}

TEST(GatedNormCuda, EqualsTheReferenceForEveryWidthTypeAndStride) {
  for (int64_t D : {1, 8, 96, 128, 129, 256, 2304})
    for (const auto& [gap, column] : {std::pair<int64_t, int64_t>{0, 0}, {16, 8}, {13, 5}}) {
      check<bf16, bf16, bf16>({5, 3, D, gap, column}, {});
      check<float, float, float>({3, 2, D, gap, column}, {});
      check<float, bf16, bf16>({3, 2, D, gap, column}, {});
    }
  check<bf16, bf16, bf16>({67, 12, 128, 0, 0}, {});
}

TEST(GatedNormCuda, ResidualSumLiveRowsAndSiluEqualTheReference) {
  for (int64_t D : {64, 128, 130}) {
    check<bf16, bf16, bf16>({5, 3, D, 8, 0}, {.residual = true});
    check<bf16, bf16, bf16>({5, 3, D, 8, 0}, {.residual = true, .sum_out = true, .live = true});
    check<float, float, float>({5, 3, D, 8, 0}, {.residual = true, .sum_out = true, .affine = false, .silu = true});
    check<bf16, bf16, float>({5, 3, D, 8, 0}, {.live = true, .silu = true});
  }
}

}  // namespace
}  // namespace kdelta::test
