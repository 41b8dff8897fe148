#include "kdelta/ops/attn_res/variants.h"
#include "tests/gpu/effect_case.h"

namespace kdelta::test {
namespace {

template <class E>
void check(int64_t capacity, int64_t n, int64_t T, int64_t D, bool normed, int64_t column = 0) {
  SCOPED_TRACE(str("n ", n, " T ", T, " D ", D, " normed ", normed, " column ", column));
  const int64_t stride = D + 2 * column;
  Guarded<E> blocks({capacity, T, stride}), sum({T, stride}), out({T, stride});
  Guarded<float> score({D}), weight({D});
  EffectCase c;
  c.array("blocks", blocks);
  c.array("sum", sum);
  // A normed row is rounded twice.
  Bound bound = rounded<E>(2e-5, sizeof(E) == 2 ? 2e-4 : 2e-6);
  if (normed && sizeof(E) == 2) bound.relative = 0x1p-6;
  c.array("out", out, bound);
  c.array("score", score);
  c.array("weight", weight);
  c.fill = [&](Rng& rng) {
    fill_normal(blocks, rng, 1.0f, 0.1f);
    for (int64_t i = n * T * stride; i < blocks.size(); ++i) blocks[i] = from_float<E>(NAN);  // never read
    fill_normal(sum, rng, 2.0f);
    fill_normal(score, rng, 3.0f / std::sqrt(static_cast<float>(D)));
    fill_normal(weight, rng, 0.5f, 1.0f);
  };
  c.call = [&](const Exec& ex, const EffectCase::At& at) {
    attn_res(ex, {.blocks = AnyConstView(at(blocks)).columns(column, D),
                  .n = n,
                  .sum = AnyConstView(at(sum)).columns(column, D),
                  .score_weight = at(score),
                  .eps = 1e-5f,
                  .norm_weight = normed ? View<const float>(at(weight)) : View<const float>(),
                  .norm_eps = 1e-5f,
                  .out = AnyView(at(out)).columns(column, D)});
  };
  c.run("attn_res", attn_res_variants());
}

TEST(AttnResCuda, EqualsTheReferenceForEveryNumberOfBlocksWidthAndAlignment) {
  for (bool normed : {false, true}) {
    for (int64_t n : {0, 1, 2, 5, 8})
      for (int64_t D : {8, 100, 2304, 4104}) {
        check<bf16>(8, n, 3, D, normed);
        check<float>(8, n, 2, D, normed);
      }
    check<bf16>(8, 3, 3, 2304, normed, 8);
    check<bf16>(8, 3, 3, 2304, normed, 3);
    check<bf16>(8, 8, 5, 7168, normed);
  }
}

// More tokens than blocks: the ring goes round many times.
TEST(AttnResCuda, ManyTokensABlockEqualTheReference) {
  check<bf16>(2, 2, 700, 520, true);
  check<bf16>(8, 8, 401, 7168, true);
  check<bf16>(1, 0, 2000, 64, false);
}

}  // namespace
}  // namespace kdelta::test
