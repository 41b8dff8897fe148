#include "kdelta/ops/activation/variants.h"
#include "tests/gpu/effect_case.h"

namespace kdelta::test {
namespace {

template <class Gate, class Up, class Out>
void check(ActivationKind kind, int64_t T, int64_t N, int64_t column, float linear_beta) {
  SCOPED_TRACE(str("kind ", static_cast<int>(kind), " T ", T, " N ", N, " column ", column));
  const int64_t stride = N + 2 * column;
  Guarded<Gate> gate({T, stride});
  Guarded<Up> up({T, stride});
  Guarded<Out> out({T, stride});
  EffectCase c;
  c.array("gate", gate);
  c.array("up", up);
  c.array("out", out, rounded<Out>());
  c.fill = [&](Rng& rng) {
    fill_normal(gate, rng, 4.0f);
    fill_normal(up, rng, 3.0f);
    gate[column] = Gate{}, gate[column + N / 2] = from_float<Gate>(1e-6f), gate[column + N - 1] = from_float<Gate>(-90);
  };
  c.call = [&](const Exec& ex, const EffectCase::At& at) {
    activation(ex, {.kind = kind,
                    .beta = 4,
                    .linear_beta = linear_beta,
                    .gate = AnyConstView(at(gate)).columns(column, N),
                    .up = AnyConstView(at(up)).columns(column, N),
                    .out = AnyView(at(out)).columns(column, N)});
  };
  c.run("activation", activation_variants());
}

TEST(ActivationCuda, EqualsTheReferenceForEveryKindAndTypeAlignedAndNot) {
  for (ActivationKind kind : {ActivationKind::swiglu, ActivationKind::situ, ActivationKind::sigmoid_gate})
    for (int64_t N : {1, 8, 9, 1000, 2048, 2056, 3072})
      for (int64_t column : {0, 3, 8}) {
        check<bf16, bf16, bf16>(kind, 5, N, column, 25);
        check<float, float, float>(kind, 3, N, column, 0);
        check<float, bf16, bf16>(kind, 2, N, column, 25);
        check<bf16, bf16, float>(kind, 2, N, column, 25);
      }
}

}  // namespace
}  // namespace kdelta::test
