#include "kdelta/core/fault.h"
#include "kdelta/ops/embed/variants.h"
#include "tests/gpu/effect_case.h"

namespace kdelta::test {
namespace {

template <class In, class Out>
struct Problem {
  Problem(int64_t T, int64_t D, int64_t table_shift) : token({T}), table({kVocabulary, D}), out({T, D + 8}) {
    c.array("token", token);
    c.array("table", table, {}, table_shift);
    c.array("out", out, {});
    c.fill = [this](Rng& rng) {
      fill_normal(table, rng);
      for (int64_t t = 0; t < token.size(); ++t) token[t] = static_cast<int32_t>(rng() % (kVocabulary + 1)) - 1;
    };
    c.call = [this, D](const Exec& ex, const EffectCase::At& at) {
      embed(ex, {.token = at(token),
                 .table = dense_matrix(at(table).data, DTypeOf<In>::value, kVocabulary, D),
                 .out = AnyView(at(out)).columns(0, D)});
    };
  }
  static constexpr int64_t kVocabulary = 50;
  Guarded<int32_t> token;
  Guarded<In> table;
  Guarded<Out> out;
  EffectCase c;
};

TEST(EmbedCuda, EqualsTheReferenceForEveryTypeWidthAndAlignmentOfTheTable) {
  for (int64_t D : {1, 8, 9, 2304, 7168})
    for (int64_t shift : {0, 1, 8}) {
      SCOPED_TRACE(str("D ", D, " shift ", shift));
      Problem<bf16, bf16>(7, D, shift).c.run("embed", embed_variants());
      Problem<float, float>(3, D, shift).c.run("embed", embed_variants());
      Problem<bf16, float>(3, D, shift).c.run("embed", embed_variants());
      Problem<float, bf16>(3, D, shift).c.run("embed", embed_variants());
    }
}

TEST(EmbedCuda, APartOfTheVocabularyGivesZerosForOtherPartsAndRaisesNoFaultForThem) {
  for (const int64_t first : {0, 13, 70}) {
    Problem<bf16, float> p(40, 24, 0);
    p.c.fill = [&](Rng& rng) {
      fill_normal(p.table, rng);
      for (int64_t t = 0; t < 40; ++t) p.token[t] = static_cast<int32_t>(t * 3) - 1;  // to 116
    };
    p.c.call = [&](const Exec& ex, const EffectCase::At& at) {
      embed(ex, {.token = at(p.token),
                 .table = dense_matrix(at(p.table).data, DType::bf16, 50, 24),
                 .out = AnyView(at(p.out)).columns(0, 24),
                 .first = first,
                 .vocabulary = 120});
    };
    p.c.run("embed", embed_variants());
  }
}

TEST(EmbedCuda, ATokenOutsideTheVocabularyGivesZerosAndRaisesItsFault) {
  Problem<bf16, bf16> p(6, 40, 0);
  p.c.fill = [&](Rng& rng) {
    fill_normal(p.table, rng);
    for (int64_t t = 0; t < 6; ++t) p.token[t] = static_cast<int32_t>(t);
    p.token[2] = 50, p.token[4] = -7;
  };
  p.c.reference = [&](const Exec& ex, const EffectCase::At& at) {
    const int32_t wrong[] = {p.token[2], p.token[4]};
    p.token[2] = p.token[4] = -1;
    p.c.call(ex, at);
    p.token[2] = wrong[0], p.token[4] = wrong[1];
  };
  p.c.faults = static_cast<uint32_t>(Fault::token);
  p.c.run("embed", embed_variants());
}

}  // namespace
}  // namespace kdelta::test
