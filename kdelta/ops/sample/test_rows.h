// Rows of every feature for the tests of sample_device: parameters of all kinds, ties, bans, histories that repeat.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "kdelta/ops/sample/variants.h"
#include "tests/support/support.h"

namespace kdelta::test {

// Most ids, half of them, or few.
inline std::vector<uint32_t> random_mask(Rng& rng, int64_t vocabulary) {
  std::vector<uint32_t> bits(static_cast<size_t>(mask_words(vocabulary)));
  const uint64_t kind = rng() % 3;
  for (uint32_t& word : bits) {
    word = static_cast<uint32_t>(rng());
    for (int i = 0; i < 5 && kind != 1; ++i)
      word = kind == 0 ? word | static_cast<uint32_t>(rng()) : word & static_cast<uint32_t>(rng());
  }
  if (vocabulary % 32 != 0) bits.back() &= (uint32_t{1} << vocabulary % 32) - 1;
  return bits;
}

// A SampleRow and the memory of its spans.
struct RandomRow {
  SamplingParams params;
  std::vector<LogitBias> bias;
  std::vector<int32_t> banned, prompt, output;
  std::vector<uint32_t> allowed;
  int32_t top_logprobs;

  RandomRow(Rng& rng, int64_t vocabulary, bool masks = false) : top_logprobs(static_cast<int32_t>(rng() % 8) - 3) {
    const auto pick = [&](std::initializer_list<float> of) { return of.begin()[rng() % of.size()]; };
    const auto ids = [&](std::vector<int32_t>& to, uint64_t most) {
      for (uint64_t i = rng() % (most + 1); i > 0; --i)
        to.push_back(static_cast<int32_t>(rng() % static_cast<uint64_t>(vocabulary)));
    };
    params = {.temperature = pick({0, 1, 1, 0.7f, 1.5f, 1e-3f, 1e-40f, 30}),
              .top_k = static_cast<int32_t>(pick({0, 0, -1, 1, 2, 7, 40, 3000})),
              .top_p = pick({1, 1, 0.95f, 0.5f, 0.05f, 0, 0.999f}),
              .min_p = pick({0, 0, 0, 0.05f, 0.5f, 1}),
              .repetition_penalty = pick({1, 1, 1.3f, 0.8f}),
              .presence_penalty = pick({0, 0, 0.7f, -0.4f}),
              .frequency_penalty = pick({0, 0, 0.3f, -0.1f}),
              .seed = rng()};
    if (rng() % 2 == 0) ids(prompt, 40), ids(output, 40);
    if (rng() % 3 == 0) ids(banned, 5);
    if (rng() % 3 == 0)
      for (int i = 0; i < 6; ++i)  // some twice: they add up
        bias.push_back({static_cast<int32_t>(rng() % static_cast<uint64_t>(std::min<int64_t>(vocabulary, 9))),
                        pick({1.5f, -2, 0.1f, 3e38f, -INFINITY})});
    bias.resize(bias.empty() ? 0 : 1 + rng() % bias.size());
    if (masks && rng() % 4 == 0) allowed = random_mask(rng, vocabulary);
  }
  SampleRow row() const {
    return {.params = params,
            .bias = bias,
            .banned = banned,
            .prompt = prompt,
            .output = output,
            .top_logprobs = top_logprobs,
            .allowed = allowed};
  }
};
inline std::vector<SampleRow> rows_of(const std::vector<RandomRow>& random) {
  std::vector<SampleRow> rows;
  for (const RandomRow& r : random) rows.push_back(r.row());
  return rows;
}

// Logits of one of the kinds that matter: like a model's, with ties, flat, with -infinity; at times unusable.
inline void random_logits(float* x, int64_t vocabulary, Rng& rng) {
  std::normal_distribution<float> normal(0, 3);
  const uint64_t kind = rng() % 8;
  for (int64_t i = 0; i < vocabulary; ++i) {
    x[i] = normal(rng);
    if (kind == 1) x[i] = std::round(x[i]);
    if (kind == 2) x[i] = 1;
    if (kind == 3 && rng() % 3 != 0) x[i] = -INFINITY;
    if (kind == 4) x[i] = static_cast<float>(i) * 1e-4f;
    if (kind == 5) x[i] *= 1e4f;
  }
  if (kind == 6) x[rng() % static_cast<uint64_t>(vocabulary)] = rng() % 2 == 0 ? NAN : INFINITY;
  if (kind == 7 && rng() % 2 == 0) std::fill_n(x, vocabulary, -INFINITY);
}

}  // namespace kdelta::test
