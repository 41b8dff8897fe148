#include "kdelta/core/fault.h"
#include "kdelta/ops/moe_combine/variants.h"
#include "tests/gpu/effect_case.h"

namespace kdelta::test {
namespace {

template <class In, class Out, class Addend>
struct Problem {
  Problem(int64_t tokens, int64_t choices, int64_t D, int64_t column, bool with_addend)
      : T(tokens),
        k(choices),
        y({T * k, D + column}),
        position({T, k}),
        weight({T, k}),
        addend({T, D + column}),
        out({T, D + column}) {
    c.array("y", y);
    c.array("position", position);
    c.array("weight", weight);
    c.array("addend", addend);
    c.array("out", out, rounded<Out>(1e-5, 2e-5));
    c.fill = [this](Rng& rng) {
      fill_normal(y, rng);
      fill_normal(weight, rng);
      fill_normal(addend, rng);
      for (int64_t i = 0; i < T * k; ++i) position[i] = static_cast<int32_t>((i * 7 + 3) % (T * k));
      position[0] = -1;
      for (int64_t i = 0; i < k; ++i) position[(T - 1) * k + i] = -1;  // not live
    };
    c.call = [this, D, column, with_addend](const Exec& ex, const EffectCase::At& at) {
      MoeCombineArgs a{.y = AnyConstView(at(y)).columns(column, D), .position = at(position), .weight = at(weight)};
      if (with_addend) a.addend = AnyConstView(at(addend)).columns(column, D);
      a.out = AnyView(at(out)).columns(column, D);
      moe_combine(ex, a);
    };
  }
  int64_t T, k;
  Guarded<In> y;
  Guarded<int32_t> position;
  Guarded<float> weight;
  Guarded<Addend> addend;
  Guarded<Out> out;
  EffectCase c;
};

TEST(MoeCombineCuda, EqualsTheReferenceForEveryWidthTypeAndAlignment) {
  for (int64_t D : {1, 8, 9, 1024, 1032, 7168})
    for (int64_t column : {0, 8, 3})
      for (int64_t k : {1, 3, 8, 16}) {
        SCOPED_TRACE(str("D ", D, " column ", column, " k ", k));
        Problem<bf16, bf16, bf16>(5, k, D, column, true).c.run("moe_combine", moe_combine_variants());
        Problem<float, float, float>(3, k, D, column, false).c.run("moe_combine", moe_combine_variants());
        Problem<bf16, float, float>(3, k, D, column, true).c.run("moe_combine", moe_combine_variants());
      }
}

TEST(MoeCombineCuda, ATokenWithAPlaceOutsideGivesZerosAndRaisesItsFault) {
  Problem<bf16, bf16, bf16> p(4, 3, 40, 0, true);
  const auto fill = p.c.fill;
  p.c.fill = [&](Rng& rng) {
    fill(rng);
    p.position[1 * 3 + 2] = 12;
    p.position[2 * 3 + 0] = -2;
  };
  p.c.reference = [&](const Exec& ex, const EffectCase::At& at) {
    int32_t saved[6];
    for (int i = 0; i < 6; ++i) saved[i] = p.position[3 + i], p.position[3 + i] = -1;
    p.c.call(ex, at);
    for (int i = 0; i < 6; ++i) p.position[3 + i] = saved[i];
  };
  p.c.faults = static_cast<uint32_t>(Fault::position);
  p.c.run("moe_combine", moe_combine_variants());
}

}  // namespace
}  // namespace kdelta::test
