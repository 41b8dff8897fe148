#include <gtest/gtest.h>

#include <cstring>

#include "kdelta/ops/embed/variants.h"
#include "tests/support/op_test.h"
#include "tests/support/spread.h"

namespace kdelta {
namespace {

using test::Guarded;
using test::TestExec;

class Embed : public test::OpVariantTest {
 protected:
  Embed() : OpVariantTest("embed") {}
};
KDELTA_INSTANTIATE_VARIANTS(Embed, embed_variants());

template <class In>
Matrix table_of(Guarded<In>& values) {
  return dense_matrix(values.data(), DTypeOf<In>::value, values.shape()[0], values.shape()[1]);
}

Guarded<int32_t> tokens_of(std::initializer_list<int32_t> ids) {
  Guarded<int32_t> token({static_cast<int64_t>(ids.size())});
  std::copy(ids.begin(), ids.end(), token.data());
  return token;
}

template <class In, class Out>
void compare_with_table(TestExec& ex, int64_t D) {
  constexpr int64_t E = 11;
  test::Rng rng(static_cast<uint64_t>(D));
  Guarded<In> table({E, D});
  fill_normal(table, rng);
  Guarded<int32_t> token = tokens_of({3, -1, 0, 10, 3, -1});
  Guarded<Out> out({token.size(), D});
  embed(ex, {.token = token, .table = table_of(table), .out = out.view()});
  EXPECT_TRUE(out.guards_intact());
  for (int64_t t = 0; t < token.size(); ++t)
    for (int64_t d = 0; d < D; ++d) {
      const Out want = token[t] < 0 ? Out{} : from_float<Out>(to_float(table[token[t] * D + d]));
      ASSERT_EQ(std::memcmp(&out[t * D + d], &want, sizeof(Out)), 0) << "token " << t << " column " << d << " of " << D;
    }
}

TEST_P(Embed, CopiesTheRowOfEachTokenRoundedOnceAndWritesZerosForPadding) {
  for (int64_t D : {1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 256, 1001}) {
    compare_with_table<float, float>(ex, D);
    compare_with_table<bf16, bf16>(ex, D);
    compare_with_table<bf16, float>(ex, D);
    compare_with_table<float, bf16>(ex, D);
  }
}

TEST_P(Embed, ATableAtAnOddAddressOfAMappedFileIsRead) {
  constexpr int64_t D = 21;
  Guarded<bf16> table({4, D});
  test::Rng rng(1);
  fill_normal(table, rng);
  std::vector<char> file(4 * D * sizeof(bf16) + 1);
  std::memcpy(file.data() + 1, table.data(), 4 * D * sizeof(bf16));
  Guarded<int32_t> token = tokens_of({2, 3});
  Guarded<float> out({2, D}), want({2, D});
  embed(ex, {.token = token, .table = table_of(table), .out = want.view()});
  embed(ex, {.token = token, .table = dense_matrix(file.data() + 1, DType::bf16, 4, D), .out = out.view()});
  EXPECT_TRUE(same_bits(out, want));
}

TEST_P(Embed, AStridedOutputEqualsADenseOneAndItsGapIsNotWritten) {
  constexpr int64_t D = 20, stride = 33;
  Guarded<bf16> table({4, D});
  test::Rng rng(2);
  fill_normal(table, rng);
  Guarded<int32_t> token = tokens_of({1, -1, 3});
  Guarded<float> out({3, D});
  const test::Spread<float> wide({3, D}, stride);
  embed(ex, {.token = token, .table = table_of(table), .out = out.view()});
  embed(ex, {.token = token, .table = table_of(table), .out = wide.view()});
  EXPECT_TRUE(wide.rows_equal(out));
  EXPECT_TRUE(wide.gaps_intact());
}

TEST_P(Embed, ManyTokensOverManyThreadsEqualOne) {
  constexpr int64_t D = 100, T = 3000, E = 64;
  Guarded<bf16> table({E, D}), out({T, D});
  Guarded<int32_t> token({T});
  test::Rng rng(3);
  fill_normal(table, rng);
  for (int64_t t = 0; t < T; ++t) token[t] = static_cast<int32_t>(t * 37 % (E + 1)) - 1;
  TestExec many(4);
  force(many);
  embed(many, {.token = token, .table = table_of(table), .out = out.view()});
  const std::vector<bf16> zeros(D, bf16{});
  for (int64_t t = 0; t < T; ++t)
    ASSERT_TRUE(test::equal_bits(&out[t * D], token[t] < 0 ? zeros.data() : &table[token[t] * D], D)) << t;
}

TEST_P(Embed, AnInvalidTokenThrowsBeforeAnythingIsWritten) {
  Guarded<float> table({5, 8}), out({3, 8});
  test::Rng rng(4);
  fill_normal(table, rng);
  for (int32_t bad : {5, -2, 2147483647, -2147483647}) {
    Guarded<int32_t> token = tokens_of({1, 2, bad});
    EXPECT_EQ(test::error_of([&] { embed(ex, {.token = token, .table = table_of(table), .out = out.view()}); }),
              str("embed: token[2] is ", bad, ", expected -1..4"));
    EXPECT_TRUE(out.untouched());
  }
}

TEST_P(Embed, PartsOfATableGiveZerosForTheTokensOfOtherPartsAndSumToTheWhole) {
  constexpr int64_t D = 19, kRows = 4;
  Guarded<bf16> table({3 * kRows, D});
  test::Rng rng(5);
  fill_normal(table, rng);
  Guarded<int32_t> token = tokens_of({0, 3, 4, 7, 8, 11, -1});
  const int64_t T = token.size();
  Guarded<float> want({T, D}), sum({T, D});
  embed(ex, {.token = token, .table = table_of(table), .out = want.view()});
  std::fill(sum.data(), sum.data() + T * D, 0.0f);
  for (int64_t part = 0; part < 3; ++part) {
    Guarded<float> out({T, D});
    const Matrix rows = dense_matrix(table.data() + part * kRows * D, DType::bf16, kRows, D);
    embed(ex, {.token = token, .table = rows, .out = out.view(), .first = part * kRows, .vocabulary = 3 * kRows});
    for (int64_t i = 0; i < T * D; ++i) {
      const bool mine = token[i / D] >= 0 && token[i / D] / kRows == part;
      ASSERT_EQ(out[i], mine ? want[i] : 0.0f) << "token " << token[i / D] << " of part " << part;
      sum[i] += out[i];
    }
  }
  EXPECT_TRUE(test::equal_bits(sum.data(), want.data(), T * D));
}

TEST_P(Embed, NoTokensIsLegal) {
  Guarded<float> table({5, 8}), out({0, 8});
  embed(ex, {.token = tokens_of({}), .table = table_of(table), .out = out.view()});
  EXPECT_TRUE(out.guards_intact());
}

TEST_P(Embed, RowsPastTwoToThe32ndElementAreExact) {
  constexpr int64_t D = int64_t{1} << 20;
  test::Sparse<bf16> table(4100 * D);  // row 4099 starts at element 4.3e9
  Guarded<bf16> out({1, D});
  for (int64_t d = 0; d < D; ++d) table.data()[4099 * D + d] = to_bf16(static_cast<float>(d % 200));
  embed(ex, {.token = tokens_of({4099}), .table = dense_matrix(table.data(), DType::bf16, 4100, D), .out = out.view()});
  EXPECT_TRUE(test::equal_bits<bf16>(out.data(), table.data() + 4099 * D, D));
}

TEST(EmbedRefuses, WrongArgumentsByName) {
  TestExec ex;
  Guarded<float> table({5, 32}), out({2, 32});
  Guarded<int32_t> token = tokens_of({0, 1});
  const EmbedArgs good{.token = token, .table = table_of(table), .out = out.view()};
  auto with = [&](auto change) {
    EmbedArgs a = good;
    change(a);
    return test::error_of([&] { embed(ex, a); });
  };
  EXPECT_EQ(with([](EmbedArgs&) {}), "no error");
  EXPECT_EQ(with([](EmbedArgs& a) { a.table.dtype = DType::f8_e4m3; }),
            "embed: table: dtype F8_E4M3, accepted: F32, BF16");
  EXPECT_EQ(with([](EmbedArgs& a) { a.table.data = nullptr; }), "embed: table: null pointer for shape [5, 32]");
  EXPECT_EQ(with([](EmbedArgs& a) { a.out.shape = Shape{2, 31}; }), "embed: out: shape [2, 31], expected [2, 32]");
  EXPECT_EQ(with([](EmbedArgs& a) { a.out.dtype = DType::f16; }), "embed: out: dtype F16, accepted: F32, BF16");
  EXPECT_EQ(with([](EmbedArgs& a) { a.first = 1; }), "embed: first: 1, expected 0..0");
  EXPECT_EQ(with([](EmbedArgs& a) { a.first = 6, a.vocabulary = 10; }), "embed: first: 6, expected 0..5");
  EXPECT_EQ(with([&](EmbedArgs& a) {
              a.first = 5, a.vocabulary = 10, a.token = tokens_of({0, 10});
            }),
            "embed: token[1] is 10, expected -1..9");
  EXPECT_EQ(with([](EmbedArgs& a) { a.token.data = nullptr; }), "embed: token: null pointer for shape [2]");
}

TEST(EmbedChoice, TakesTheBestRowOfTheProcessor) {
  Options options;
  EmbedDesc d{.target = {.isa = IsaLevel::amx}, .rows = 1, .width = 8};
  EXPECT_STREQ(choose("embed", embed_variants(), d, options).name, "avx512");
  d.target.isa = IsaLevel::portable;
  EXPECT_STREQ(choose("embed", embed_variants(), d, options).name, "portable");
}

TEST(EmbedPlanning, ReadsNoTokenAndTouchesNothing) {
  TestExec ex;
  Guarded<float> table({5, 8}), out({1, 8});
  embed(ex.planning(), {.token = tokens_of({99}), .table = table_of(table), .out = out.view()});
  EXPECT_TRUE(out.untouched());
}

}  // namespace
}  // namespace kdelta
