// Long text, run by hand (-DKDELTA_BUILD_SOAK=ON): 32k tokens of prefill and then decode on the trained model. Memory
// stays within the plan and the recurrent state does not drift from the fp64 recurrence.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <string>

#include "kdelta/api/engine.h"
#include "kdelta/core/error.h"
#include "tests/e2e/support.h"
#include "tests/support/support.h"

namespace kdelta::test {
namespace {

constexpr int64_t kTokens = 32768;

std::vector<int32_t> long_text() {
  const auto held = TensorFile("tests/golden/tiny_k3/reference.safetensors").ints("heldout.tokens");
  std::vector<int32_t> ids;
  while (static_cast<int64_t>(ids.size()) < kTokens) ids.insert(ids.end(), held.begin(), held.end());
  ids.resize(static_cast<size_t>(kTokens));
  return ids;
}

// "VmHWM", say, of this process in bytes.
int64_t process_memory(const std::string& field) {
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);)
    if (line.starts_with(field + ":")) return std::stoll(line.substr(field.size() + 1)) * 1024;
  return 0;
}

TEST(LongText, MemoryStaysWithinThePlanPrintedAtStart) {
  const auto ids = long_text();
  LoadOptions o{.model = "models/tiny-k3"};
  o.threads = 2;
  o.max_length = kTokens + 128;
  Engine engine = Engine::load(o);
  GenerateOptions g;
  g.temperature = 0;
  g.max_tokens = 64;
  g.ignore_eos = true;
  const Generation answer = engine.generate(ids, g);
  EXPECT_EQ(answer.tokens.size(), 64u);
  const int64_t used = process_memory("VmHWM"), planned = engine.memory().total();
  std::printf("planned %.1f MB, used at most %.1f MB; prefill %.0f tokens/s, decode %.1f tokens/s\n",
              static_cast<double>(planned) / 1e6, static_cast<double>(used) / 1e6,
              static_cast<double>(kTokens) / answer.prefill_seconds, 64 / answer.decode_seconds);
  EXPECT_LE(used, planned);
}

TEST(LongText, TheStateDoesNotDriftFromTheFp64Recurrence) {
  const LoadedModel loaded = load_model("models/tiny-k3", LoadFormat::checkpoint);
  runtime::EngineConfig c = engine_config(DType::bf16);
  c.max_length = kTokens + 1;
  const auto run = [&](const char* force) {
    runtime::EngineConfig config = c;
    config.options.parse_force(force);
    runtime::Engine engine(*loaded.model, config);
    runtime::RequestOptions options;
    options.max_tokens = 1;
    engine.submit(long_text(), options);
    while (engine.step([](const runtime::TokenEvent& e) {
      if (e.error != nullptr) fail(ErrorCode::failed, *e.error);
    })) {
    }
    const AnyView pool = engine.pool().views()[0][0];  // layer 0: its inputs are the same whatever the other layers do
    const float* state = pool.at<float>(1);
    return std::vector<double>(state, state + pool.shape.numel() / pool.dim(0));
  };
  const std::vector<double> fast = run(""), exact = run("kda:reference");
  const double error = relative_rmse(fast, exact);
  std::printf("state after %lld tokens: relative RMSE %.2e against the fp64 recurrence\n",
              static_cast<long long>(kTokens), error);
  EXPECT_LT(error, 1e-3);
}

}  // namespace
}  // namespace kdelta::test
