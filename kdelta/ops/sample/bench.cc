#include <cmath>

#include "bench/support/bench.h"
#include "kdelta/ops/sample/variants.h"

namespace kdelta {
namespace {

// One row of the release's vocabulary. Logits like a model's: normal, with a few far ahead; `flat` ones are the worst
// case of top_p.
struct Data {
  std::vector<float> logits;
  SampleRow row;
  SampleResult result;
  Data(int64_t n, bool flat) : logits(static_cast<size_t>(n)) {
    uint64_t state = 1;
    for (float& x : logits) {
      float sum = 0;
      for (int i = 0; i < 4; ++i) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        sum += static_cast<float>(state >> 40) * 0x1p-24f - 0.5f;
      }
      x = flat ? sum * 0.01f : sum * 4;
    }
    for (int i = 0; i < 50 && !flat; ++i) logits[static_cast<size_t>(i * 3001)] = 12 + 0.1f * static_cast<float>(i);
  }
};

void add_sample(const std::string& variant, const char* name, const SamplingParams& params, int32_t top_logprobs,
                bool flat = false) {
  constexpr int64_t n = 163840;
  bench::add({.op = "sample",
              .variant = variant,
              .shape = str("vocabulary=", n, " ", name),
              .cost = {.bytes = 4.0 * n},
              .roof = {bench::RoofKind::read, 4 * n},
              .make = [=] {
                auto data = std::make_shared<Data>(n, flat);
                data->row.params = params;
                data->row.top_logprobs = top_logprobs;
                return [=] {
                  sample(bench::exec_with("sample", variant), {.logits = View<const float>(data->logits.data(), {1, n}),
                                                               .rows = {&data->row, 1},
                                                               .results = {&data->result, 1}});
                };
              }});
}

KDELTA_BENCH(sample) {
  for (const std::string& variant : bench::fast_variants(sample_variants())) {
    add_sample(variant, "greedy", {.temperature = 0}, -1);
    add_sample(variant, "temperature 0.8", {.temperature = 0.8f}, -1);
    add_sample(variant, "top_k 40, top_p 0.95", {.temperature = 0.8f, .top_k = 40, .top_p = 0.95f}, -1);
    add_sample(variant, "top_p 0.95", {.top_p = 0.95f}, -1);
    add_sample(variant, "top_p 0.95, flat", {.top_p = 0.95f}, -1, true);
    add_sample(variant, "greedy, 20 logprobs", {.temperature = 0}, 20);
  }
}

}  // namespace
}  // namespace kdelta
