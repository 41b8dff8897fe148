#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/schedule.h"

namespace kdelta::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

// x, then gates beside quantise and project (two kernels), then step behind both.
const std::vector<RecordedOp> kOps = {{"norm", 0}, {"linear", 1}, {"mx_quantize", 2}, {"linear", 3}, {"kda_decode", 5}};
const std::vector<Graph::Edge> kJoined = {{0, 1, false}, {0, 2, true},  {2, 3, false},
                                          {3, 4, true},  {4, 5, false}, {1, 5, false}};
const std::vector<std::string> kNames = {"x", "gates", "quantise=mx_quantize", "project", "step"};

std::string refusal(const std::vector<RecordedOp>& ops, const std::vector<std::string>& names) {
  try {
    (void)Schedule(6, kJoined, ops, names);
  } catch (const std::exception& e) {
    return e.what();
  }
  return "none";
}

TEST(Schedule, NamesWhoWaitsForWhomOncePerPairOfOps) {
  const Schedule s(6, kJoined, kOps, kNames);
  EXPECT_THAT(s.edges(), UnorderedElementsAre("x -> gates", "x -> quantise", "quantise -> project", "project -> step",
                                              "gates -> step"));
  EXPECT_THAT(s.tails(), ElementsAre("step"));
}

TEST(Schedule, ANodeThatNothingWaitsForIsATail) {
  std::vector<Graph::Edge> edges = kJoined;
  edges.pop_back();
  EXPECT_THAT(Schedule(6, edges, kOps, kNames).tails(), ElementsAre("gates", "step"));
  edges = kJoined;
  edges.erase(edges.begin() + 3);  // within an op
  EXPECT_THAT(Schedule(6, edges, kOps, kNames).tails(), ElementsAre("project", "step"));
}

TEST(Schedule, OpsThatAreNotThoseNamedAreRefused) {
  EXPECT_THAT(refusal(kOps, {"x", "gates"}), HasSubstr("norm, linear, mx_quantize, linear, kda_decode"));
  std::vector<std::string> names = kNames;
  names[3] = "project=short_conv";
  EXPECT_THAT(refusal(kOps, names), HasSubstr("op 3 is linear, named project=short_conv"));
  std::vector<RecordedOp> ops = kOps;
  ops[3].first = 5;
  EXPECT_THAT(refusal(ops, kNames), HasSubstr("enqueued nothing"));
  ops = kOps;
  ops[0].first = 1;
  EXPECT_NE(refusal(ops, kNames), "none");
}

}  // namespace
}  // namespace kdelta::test
