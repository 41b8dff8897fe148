// The mixes of test_stress, up to 128 requests of up to 5,000 tokens, until the time is over: KDELTA_SOAK_SECONDS (60),
// KDELTA_SOAK_SEED (1000).
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>

#include "tests/e2e/stress.h"

namespace kdelta::test {
namespace {

uint64_t setting(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

TEST(Soak, MixesOfManyLongRequests) {
  const LoadedModel tiny = load_model("models/tiny-k3", LoadFormat::checkpoint);
  const LoadedModel draft = load_model("models/tiny-k3-draft", LoadFormat::checkpoint);
  const LoadedModel k3 = load_model("tests/golden/k3_a", LoadFormat::checkpoint);
  const LoadedModel linear = load_model("tests/golden/linear_a", LoadFormat::checkpoint);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(setting("KDELTA_SOAK_SECONDS", 60));
  StressCounts counts;
  uint64_t seed = setting("KDELTA_SOAK_SEED", 1000);
  for (; std::chrono::steady_clock::now() < end && !testing::Test::HasFailure(); ++seed) {
    const StressScale scale{.requests = 128, .longest = seed % 3 == 0 ? 5000 : 700, .output = 60, .sequences = 64};
    switch (seed % 4) {
      case 0:
        run_mix(*k3.model, nullptr, seed, scale, &counts);
        break;
      case 1:
        run_mix(*linear.model, nullptr, seed, scale, &counts);
        break;
      default:
        run_mix(*tiny.model, draft.model.get(), seed, scale, &counts);
    }
    std::printf(
        "seed %llu: %lld requests, %lld cancelled, %lld moved, %lld preempted, %lld prefix hits, %lld drafts kept\n",
        static_cast<unsigned long long>(seed), static_cast<long long>(counts.compared),
        static_cast<long long>(counts.cancelled), static_cast<long long>(counts.moved),
        static_cast<long long>(counts.preempted), static_cast<long long>(counts.hits),
        static_cast<long long>(counts.accepted));
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace kdelta::test
