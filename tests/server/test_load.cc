// Load at a size that every run of the tests can bear; soak_server.cc has the large one.
#include "tests/server/load.h"

namespace kdelta {
namespace {

using testing::HasSubstr;

TEST(Load, StreamsAreWhatTheyAreAloneWhateverOtherClientsDo) {
  test::Load load({});
  load.run();
}

TEST(Load, WhenTheEngineDiesEveryRequestEndsWithItsErrorAndHealthFails) {
  std::atomic<int> steps{0};
  test::Server server({},
                      {.max_waiting = 4096,
                       .before_step =
                           [&] {
                             if (++steps == 6) throw std::runtime_error("the device fell off the bus");
                           }},
                      test::tiny_model(16));
  server::LoadPlan plan;
  plan.port = server.port();
  plan.requests = plan.concurrency = 64;
  plan.patience = std::chrono::seconds(40);
  plan.request = [](int64_t i) {
    return server::LoadRequest{
        .path = "/v1/completions",
        .body = std::string(R"({"prompt":"In the","max_tokens":200,"ignore_eos":true,"stream":)") +
                (i % 2 == 0 ? "true}" : "false}")};
  };
  for (const server::LoadAnswer& a : server::run_load(plan))
    EXPECT_THAT(a.error, HasSubstr("the device fell off the bus")) << a.status;
  const test::Response health = server.get("/health");
  EXPECT_EQ(health.status, 503);
  EXPECT_THAT(health.body, HasSubstr("the device fell off the bus"));
  EXPECT_EQ(server.service.stats().running, 0);
}

}  // namespace
}  // namespace kdelta
