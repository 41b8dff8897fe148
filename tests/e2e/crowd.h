// Requests run together and alone, and what came out of each.
#pragma once

#include <map>
#include <memory>
#include <random>

#include "tests/e2e/support.h"

namespace kdelta::test {

// Everything that a user can see of an answer, log-probabilities to the bit.
struct Answer {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  runtime::FinishReason finish = runtime::FinishReason::none;
  std::string error;
  bool operator==(const Answer& o) const {
    return tokens == o.tokens && finish == o.finish && same_bits(logprobs, o.logprobs);
  }
};

// Token ids that repeat themselves now and then, as text does.
inline std::vector<int32_t> random_prompt(int64_t length, uint64_t seed, int32_t vocabulary = 500) {
  std::mt19937_64 rng(seed);
  std::vector<int32_t> ids(static_cast<size_t>(length));
  for (int32_t& id : ids) id = static_cast<int32_t>(rng() % static_cast<uint64_t>(vocabulary));
  return ids;
}

inline runtime::RequestOptions sampled(uint64_t seed, int64_t tokens = 12) {
  runtime::RequestOptions o;
  o.sampling.temperature = 0.8f;
  o.sampling.seed = seed;
  o.max_tokens = tokens;
  o.top_logprobs = 0;
  return o;
}

inline runtime::RequestOptions greedy(int64_t tokens = 12) {
  runtime::RequestOptions o = sampled(0, tokens);
  o.sampling.temperature = 0;
  return o;
}

class Crowd {
 public:
  explicit Crowd(runtime::Engine& engine) : engine_(engine) {}
  runtime::RequestId submit(const std::vector<int32_t>& prompt, const runtime::RequestOptions& options) {
    return engine_.submit(prompt, options);
  }
  bool step() {
    return engine_.step([&](const runtime::TokenEvent& e) {
      Answer& a = answers_[e.id];
      if (e.token >= 0) a.tokens.push_back(e.token), a.logprobs.push_back(e.sample->logprob);
      a.finish = e.finish;
      if (e.error != nullptr) a.error = *e.error;
    });
  }
  void run() {
    while (step()) {
    }
  }
  const Answer& operator[](runtime::RequestId id) { return answers_[id]; }

 private:
  runtime::Engine& engine_;
  std::map<runtime::RequestId, Answer> answers_;
};

// What a request answers with nobody else there, without drafts, prefixes, or want of memory.
inline Answer alone(const Model& model, const runtime::EngineConfig& base, const std::vector<int32_t>& prompt,
                    const runtime::RequestOptions& options) {
  runtime::EngineConfig c = base;
  c.max_sequences = 1;
  c.cache_tokens = c.drafts = c.prefix_snapshots = c.save_bytes = 0;
  c.buckets.clear();
  c.options.threads = 1;
  runtime::Engine engine(model, c);
  Crowd crowd(engine);
  const auto id = crowd.submit(prompt, options);
  crowd.run();
  return crowd[id];
}

}  // namespace kdelta::test
