// Which form of the decay gate a table of measurements asks for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kdelta/model/gate_form.h"
#include "tests/support/op_test.h"

namespace kdelta {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr GateRow kRows[] = {
    {"small", IsaLevel::avx512, 2, 1, 256, 256, 128, 20, 10, 5},
    {"large", IsaLevel::avx512, 2, 1, 4096, 4096, 128, 100, 200, 5},
    {"unsure", IsaLevel::avx512, 2, 64, 256, 256, 128, 20, 18, 15},
    {"other", IsaLevel::amx, 2, 1, 4096, 4096, 128, 200, 100, 5},
};

TEST(GateForm, TheNearestRowOfTheSameMachineKindDecidesAndIsNamed) {
  const GateDecision small = decide_gate(kRows, {.isa = IsaLevel::avx512, .T = 2, .D = 300, .P = 400, .R = 128});
  EXPECT_TRUE(small.composed);
  EXPECT_EQ(small.why, "measured at T=1 D=256 P=256 R=128: factored 20 us, composed 10 us, spread 5 % (small)");
  EXPECT_FALSE(decide_gate(kRows, {.isa = IsaLevel::avx512, .T = 1, .D = 3000, .P = 4096, .R = 128}).composed);
  EXPECT_TRUE(decide_gate(kRows, {.isa = IsaLevel::amx, .T = 1, .D = 3000, .P = 4096, .R = 128}).composed);
}

TEST(GateForm, ADifferenceWithinTheSpreadIsNone) {
  const GateDecision d = decide_gate(kRows, {.isa = IsaLevel::avx512, .T = 64, .D = 256, .P = 256, .R = 128});
  EXPECT_FALSE(d.composed);
  EXPECT_THAT(d.why, HasSubstr("(unsure)"));
}

TEST(GateForm, WithoutARowNearByItIsFactored) {
  const GateQuery near{.isa = IsaLevel::avx512, .T = 1, .D = 256, .P = 256, .R = 128};
  const auto why = [&](auto change) {
    GateQuery q = near;
    change(q);
    const GateDecision d = decide_gate(kRows, q);
    EXPECT_FALSE(d.composed);
    return d.why;
  };
  EXPECT_EQ(why([](GateQuery& q) { q.D = 1024; }), "no measurement near T=1 D=1024 P=256 R=128 avx512");
  EXPECT_THAT(why([](GateQuery& q) { q.P = 1024; }), HasSubstr("no measurement near"));
  EXPECT_THAT(why([](GateQuery& q) { q.R = 64; }), HasSubstr("no measurement near"));
  EXPECT_THAT(why([](GateQuery& q) { q.isa = IsaLevel::portable; }), HasSubstr("no measurement near"));
  EXPECT_THAT(why([](GateQuery& q) { q.T = 1000; }), HasSubstr("no measurement near"));
}

TEST(GateForm, NamesAreTheThreeOnesOfTheFlag) {
  EXPECT_EQ(parse_gate_choice("factored"), GateChoice::factored);
  EXPECT_EQ(parse_gate_choice("composed"), GateChoice::composed);
  EXPECT_EQ(parse_gate_choice("auto"), GateChoice::automatic);
  EXPECT_EQ(test::error_of([] { parse_gate_choice("fast"); }), "kda_gate: 'fast', accepted: factored, composed, auto");
}

}  // namespace
}  // namespace kdelta
