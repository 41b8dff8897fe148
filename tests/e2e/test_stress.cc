// The heart of the runtime's contract: every request in any mix gives the bits it gives alone, in the mode that users
// get. soak_serving runs the same mixes larger and for as long as one likes.
#include <gtest/gtest.h>

#include "tests/e2e/stress.h"

namespace kdelta::test {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr uint64_t kMixes = 2;
#else
constexpr uint64_t kMixes = 8;
#endif

void run_mixes(const Model& model, const Model* draft) {
  StressCounts counts;
  for (uint64_t seed = 1; seed <= kMixes && !testing::Test::HasFailure(); ++seed)
    run_mix(model, draft, seed, {}, &counts);
  EXPECT_GT(counts.compared, 0);
  if (kMixes < 8) return;
  // The mixes reach what they are made for.
  EXPECT_GT(counts.cancelled, 0);
  EXPECT_GT(counts.moved, 0);
  EXPECT_GT(counts.preempted, 0);
  EXPECT_GT(counts.hits, 0);
  EXPECT_GT(counts.accepted, 0);
  EXPECT_GT(counts.padded, 0);
}

TEST(Stress, EveryRequestInAnyMixAnswersAsAloneK3) {
  const LoadedModel m = load_placed("tests/golden/k3_a");
  run_mixes(*m.model, nullptr);
}

TEST(Stress, EveryRequestInAnyMixAnswersAsAloneLinear) {
  const LoadedModel m = load_placed("tests/golden/linear_a");
  run_mixes(*m.model, nullptr);
}

TEST(Stress, EveryRequestInAnyMixAnswersAsAloneTiny) {
  const LoadedModel m = load_placed("models/tiny-k3");
  const LoadedModel d = load_placed("models/tiny-k3-draft");
  run_mixes(*m.model, d.model.get());
}

}  // namespace
}  // namespace kdelta::test
