#include "kdelta/ops/sample/variants.h"
#include "tests/gpu/bench.h"

namespace kdelta {
namespace {

constexpr int64_t kVocabulary = 163840;

// Logits of a model's kind: most of the mass on a few thousand tokens.
std::vector<float> model_logits(int64_t rows) {
  std::vector<float> x(static_cast<size_t>(rows * kVocabulary));
  uint64_t state = 1;
  for (float& v : x) {
    float sum = 0;
    for (int i = 0; i < 4; ++i) {
      state = state * 6364136223846793005ull + 1442695040888963407ull;
      sum += static_cast<float>(state >> 40) * 0x1p-24f;
    }
    v = (sum - 2) * 5.2f;  // about normal, deviation 3
  }
  return x;
}

void add_sample(const std::string& variant, int64_t M, const char* name, const SampleDeviceRow& row, int64_t W) {
  gpu_bench::add({.op = "sample_device",
                  .variant = variant,
                  .shape = str("M=", M, " V=", kVocabulary, " ", name),
                  .cost = {.bytes = 4.0 * static_cast<double>(M * kVocabulary)},
                  .roof = gpu_bench::RoofKind::read,
                  .make = [=](int sets) {
                    const auto few = std::min<int64_t>(sets * M, 64);  // distinct rows of the host's making
                    const std::vector<float> x = model_logits(few);
                    auto logits = std::make_shared<Buffer>(Device{DeviceKind::cuda, 0}, sets * M * kVocabulary * 4);
                    Stream& stream = default_stream({DeviceKind::cuda, 0});
                    for (int64_t m = 0; m < sets * M; ++m)
                      copy_async(stream, static_cast<float*>(logits->data()) + m * kVocabulary,
                                 x.data() + m % few * kVocabulary, kVocabulary * 4);
                    stream.synchronize();
                    std::vector<SampleDeviceRow> all(static_cast<size_t>(M), row);
                    for (size_t m = 0; m < all.size(); ++m)
                      all[m].seed = m, all[m].history = static_cast<int64_t>(m) * 1000;
                    std::vector<int32_t> history(static_cast<size_t>(M * 1000));
                    for (size_t i = 0; i < history.size(); ++i)
                      history[i] = static_cast<int32_t>(i * 7919 % kVocabulary);
                    auto rows = gpu_bench::uploaded(all);
                    auto tokens = gpu_bench::uploaded(history);
                    auto out = gpu_bench::filled(M * (W + 1) * 8 + 64);
                    return [=](const Exec& ex, int set) {
                      auto* token = static_cast<int32_t*>(out->data());
                      auto* logprob = reinterpret_cast<float*>(token + M);
                      auto* top = reinterpret_cast<int32_t*>(logprob + M);
                      sample_device(
                          ex, {.logits = View<const float>(static_cast<float*>(logits->data()) + set * M * kVocabulary,
                                                           {M, kVocabulary}),
                               .rows = View<const SampleDeviceRow>(static_cast<SampleDeviceRow*>(rows->data()), {M}),
                               .bias = View<const LogitBias>(nullptr, {0}),
                               .banned = View<const int32_t>(nullptr, {0}),
                               .history = tokens->view<int32_t>({M * 1000}),
                               .token = View<int32_t>(token, {M}),
                               .logprob = View<float>(logprob, {M}),
                               .top_token = View<int32_t>(top, {M, W}),
                               .top_logprob = View<float>(reinterpret_cast<float*>(top + M * W), {M, W})});
                    };
                  }});
}

KDELTA_GPU_BENCH(sample_device) {
  for (const std::string& variant : gpu_bench::cuda_variants(sample_device_variants()))
    for (int64_t M : {1, 64}) {
      add_sample(variant, M, "greedy", {.temperature = 0, .live = 1}, 0);
      add_sample(variant, M, "temperature 1", {.live = 1}, 0);
      add_sample(variant, M, "top-k 40, top-p .95", {.top_p = 0.95f, .top_k = 40, .live = 1}, 0);
      add_sample(variant, M, "top-p .95", {.top_p = 0.95f, .live = 1}, 0);
      add_sample(variant, M, "greedy, penalties over 1,000 tokens",
                 {.temperature = 0, .repetition_penalty = 1.1f, .prompt = 500, .output = 500, .live = 1}, 0);
      add_sample(variant, M, "greedy, 20 logprobs", {.temperature = 0, .top_logprobs = 20, .live = 1}, 20);
    }
}

}  // namespace
}  // namespace kdelta
