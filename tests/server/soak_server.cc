// The load of test_load at its full size: 200 streams a round for many rounds beside 10,000 idle connections and dozens
// of clients that misbehave. KDELTA_SOAK_ROUNDS (10).
#include "tests/server/load.h"

namespace kdelta {
namespace {

TEST(SoakServer, ManyStreamsBesideTenThousandIdleConnections) {
  const char* rounds = std::getenv("KDELTA_SOAK_ROUNDS");
  test::Load load({.rounds = rounds == nullptr ? 10 : std::atol(rounds),
                   .tokens = 64,
                   .idle = 10'000,
                   .slow = 16,
                   .leaving = 40,
                   .half = 64,
                   .huge = 4});
  load.run();
}

}  // namespace
}  // namespace kdelta
