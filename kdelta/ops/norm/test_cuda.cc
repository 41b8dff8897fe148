#include "kdelta/ops/norm/variants.h"
#include "tests/gpu/effect_case.h"

namespace kdelta::test {
namespace {

template <class In, class Out>
void check(int64_t T, int64_t D, int64_t stride, int64_t column, int64_t shift) {
  SCOPED_TRACE(str("T ", T, " D ", D, " stride ", stride, " column ", column, " shift ", shift));
  Guarded<In> x({T, stride});
  Guarded<float> weight({D});
  Guarded<Out> out({T, stride});
  EffectCase c;
  c.array("x", x, {}, shift);
  c.array("weight", weight, {}, shift);
  c.array("out", out, rounded<Out>(), shift);
  c.fill = [&](Rng& rng) {
    fill_normal(x, rng, 2.0f, 0.3f);
    fill_normal(weight, rng, 0.5f, 1.0f);
  };
  c.call = [&](const Exec& ex, const EffectCase::At& at) {
    norm(ex, {.x = AnyConstView(at(x)).columns(column, D),
              .weight = at(weight),
              .out = AnyView(at(out)).columns(column, D),
              .eps = 1e-5f});
  };
  c.run("norm", norm_variants());
}

TEST(NormCuda, EqualsTheReferenceAtEveryWidthAroundTheGroupSizes) {
  for (int64_t D : {1, 7, 8, 9, 127, 128, 129, 136, 1000, 1024, 1032, 2304, 4096, 4104, 7168, 8200, 16384})
    for (int64_t T : {1, 3, 37}) {
      check<bf16, bf16>(T, D, D, 0, 0);
      check<float, float>(T, D, D, 0, 0);
    }
  check<bf16, float>(5, 2304, 2304, 0, 0);
  check<bf16, bf16>(700, 520, 520, 0, 0);  // more blocks than multiprocessors
  check<bf16, bf16>(300, 7168, 7168, 0, 0);
  check<float, bf16>(5, 2304, 2304, 0, 0);
}

TEST(NormCuda, StridedAndUnalignedRowsEqualTheReferenceAndGapsStay) {
  for (int64_t D : {5, 128, 2304}) {
    check<bf16, bf16>(9, D, D + 13, 7, 0);
    check<bf16, bf16>(9, D, D + 64, 8, 0);
    check<float, bf16>(9, D, D + 16, 1, 3);
    check<bf16, bf16>(9, D, D, 0, 1);
  }
}

}  // namespace
}  // namespace kdelta::test
