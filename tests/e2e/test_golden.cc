// The engine against outputs of PyTorch code: the model vendor's own on random weights (tests/golden/README.md), and,
// for the trained models/tiny-k3, a model written from the architecture alone (tools/tiny_model). Bounds are the golden
// page's: fp32 within 1e-3 (we hold 1e-4) with every argmax, expert and greedy token equal; bf16 by rms, logsumexp and
// clear argmaxes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/e2e/support.h"

namespace kdelta::test {
namespace {

constexpr float kFp32Bound = 1e-4f;

struct Source {
  const char *name, *checkpoint, *tensors, *greedy;
  std::vector<int> lengths;
};

// For the lists of test programs; the name alone.
void PrintTo(const Source& source, std::ostream* out) {
  *out << source.name;
}

class Golden : public testing::TestWithParam<Source> {
 protected:
  Golden() : golden_(GetParam().tensors), loaded_(load_placed(GetParam().checkpoint)) {}

  const Model& model() const { return *loaded_.model; }
  int64_t vocab() const { return loaded_.config.vocab_size; }
  std::vector<int32_t> tokens(int T) const { return golden_.ints("tokens." + std::to_string(T)); }

  // The recorded logits and the same rows of ours.
  void recorded_rows(const std::string& kind, int T, const std::vector<float>& ours, std::vector<float>* want,
                     std::vector<float>* got) const {
    const std::string name = kind + (T <= 17 ? ".logits." : ".logits_last8.") + std::to_string(T);
    *want = golden_.floats(name);
    got->assign(ours.end() - static_cast<int64_t>(want->size()), ours.end());
  }

  static float worst(const std::vector<float>& got, const std::vector<float>& want) {
    EXPECT_EQ(got.size(), want.size());
    float w = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      if (!std::isfinite(got[i])) return INFINITY;
      w = std::max(w, std::fabs(got[i] - want[i]));
    }
    return w;
  }

  std::vector<int32_t> argmax(const std::vector<float>& logits) const {
    std::vector<int32_t> out;
    for (auto row = logits.begin(); row < logits.end(); row += vocab())
      out.push_back(static_cast<int32_t>(std::max_element(row, row + vocab()) - row));
    return out;
  }

  std::vector<float> logsumexp(const std::vector<float>& logits) const {
    std::vector<float> out;
    for (auto row = logits.begin(); row < logits.end(); row += vocab()) {
      double sum = 0;
      const float top = *std::max_element(row, row + vocab());
      for (auto x = row; x < row + vocab(); ++x) sum += std::exp(static_cast<double>(*x - top));
      out.push_back(static_cast<float>(top + std::log(sum)));
    }
    return out;
  }

  TensorFile golden_;
  LoadedModel loaded_;
};

const Source kVendor[] = {{"k3_a",
                           "tests/golden/k3_a",
                           "tests/golden/k3_a/golden.safetensors",
                           "fp32.greedy_cache",
                           {1, 3, 17, 64, 65, 130, 257}},
                          {"linear_a",
                           "tests/golden/linear_a",
                           "tests/golden/linear_a/golden.safetensors",
                           "fp32.greedy_cache",
                           {1, 3, 17, 64, 65, 130, 257}}};
const Source kTiny = {"tiny_k3",
                      "models/tiny-k3",
                      "tests/golden/tiny_k3/reference.safetensors",
                      "fp32.greedy_nocache",
                      {1, 3, 17, 64, 65, 130, 253}};
std::string name_of(const testing::TestParamInfo<Source>& kd) {
  return kd.param.name;
}

INSTANTIATE_TEST_SUITE_P(Vendor, Golden, testing::ValuesIn(kVendor), name_of);
INSTANTIATE_TEST_SUITE_P(Trained, Golden, testing::Values(kTiny), name_of);

// The golden page's 16-bit bounds are for its own random weights; the trained model's bf16 is judged by its perplexity.
class GoldenBf16 : public Golden {};
INSTANTIATE_TEST_SUITE_P(Vendor, GoldenBf16, testing::ValuesIn(kVendor), name_of);

TEST_P(Golden, Fp32LogitsEqualTheVendorsAtEveryLength) {
  for (int T : GetParam().lengths) {
    const RunResult r = run_logits(model(), engine_config(DType::f32), tokens(T));
    std::vector<float> want, got;
    recorded_rows("fp32", T, r.logits, &want, &got);
    EXPECT_LT(worst(got, want), kFp32Bound) << "T = " << T;
    EXPECT_EQ(argmax(r.logits), golden_.ints("fp32.argmax." + std::to_string(T))) << "T = " << T;
    EXPECT_LT(worst(logsumexp(r.logits), golden_.floats("fp32.logsumexp." + std::to_string(T))), kFp32Bound)
        << "T = " << T;
  }
}

TEST_P(Golden, Fp32LogitsDoNotDependOnTheCut) {
  for (int T : {65, 130}) {
    for (int64_t chunk : {1, 2, 3, 63, 64, 65, 128}) {
      const RunResult r = run_logits(model(), engine_config(DType::f32), tokens(T), chunk);
      std::vector<float> want, got;
      recorded_rows("fp32", T, r.logits, &want, &got);
      EXPECT_LT(worst(got, want), kFp32Bound) << "T = " << T << ", pieces of " << chunk;
      EXPECT_EQ(argmax(r.logits), golden_.ints("fp32.argmax." + std::to_string(T)))
          << "T = " << T << ", pieces of " << chunk;
    }
  }
}

TEST_P(Golden, Fp32LayerOutputsEqualTheVendors) {
  Recorder recorder;
  run_logits(model(), engine_config(DType::f32), tokens(17), 0, &recorder);
  const std::vector<float> want = golden_.floats("fp32.layer_out.17");
  const auto each = static_cast<int64_t>(17 * loaded_.config.hidden_size);
  for (int64_t l = 0; l < loaded_.config.layers(); ++l) {
    const std::vector<float> layer(want.begin() + l * each, want.begin() + (l + 1) * each);
    EXPECT_LT(worst(recorder.get("layer_out", static_cast<int>(l)), layer), kFp32Bound) << "layer " << l;
  }
}

TEST_P(Golden, Fp32ExpertsAndTheirWeightsEqualTheVendors) {
  Recorder recorder;
  run_logits(model(), engine_config(DType::f32), tokens(65), 0, &recorder);
  const std::vector<int32_t> want_idx = golden_.ints("fp32.router_idx.65");
  const std::vector<float> want_weight = golden_.floats("fp32.router_weight.65");
  const auto k = static_cast<size_t>(loaded_.config.moe.chosen);
  size_t at = 0;
  for (int64_t l = 0; l < loaded_.config.layers(); ++l) {
    if (!loaded_.config.is_moe(l)) continue;
    const auto& idx = recorder.get("router_idx", static_cast<int>(l));
    const auto& weight = recorder.get("router_weight", static_cast<int>(l));
    for (size_t t = 0; t < 65; ++t) {
      std::vector<std::pair<int32_t, float>> ours;
      for (size_t i = 0; i < k; ++i) ours.emplace_back(static_cast<int32_t>(idx[t * k + i]), weight[t * k + i]);
      std::sort(ours.begin(), ours.end());  // the goldens list experts in ascending order
      for (const auto& [expert, w] : ours) {
        ASSERT_EQ(expert, want_idx[at]) << "layer " << l << " token " << t;
        ASSERT_NEAR(w, want_weight[at], 1e-5) << "layer " << l << " token " << t;
        ++at;
      }
    }
  }
  EXPECT_EQ(at, want_idx.size());
}

TEST_P(Golden, Fp32StateOfLayerZeroEqualsTheVendors) {
  for (int64_t chunk : {0, 1, 64}) {
    const RunResult r = run_logits(model(), engine_config(DType::f32), tokens(65), chunk);
    const std::vector<float> want = golden_.floats("fp32.kda_state.65");  // [H, K, V]; ours is [H, V, K]
    const int64_t H = loaded_.config.kda.heads, K = loaded_.config.kda.head_dim, P = H * K;
    std::vector<float> turned(want.size());
    for (int64_t h = 0; h < H; ++h)
      for (int64_t a = 0; a < K; ++a)
        for (int64_t b = 0; b < K; ++b)
          turned[static_cast<size_t>((h * K + a) * K + b)] = want[static_cast<size_t>((h * K + b) * K + a)];
    EXPECT_LT(worst(r.state, turned), 1e-5f) << "pieces of " << chunk;
    const char* names[] = {"fp32.conv_state_q.65", "fp32.conv_state_k.65", "fp32.conv_state_v.65"};
    for (int64_t part = 0; part < 3; ++part) {
      const std::vector<float> history = golden_.floats(names[part]);  // [channel, 4], newest last, the oldest unused
      for (int64_t c = 0; c < P; ++c)
        for (int64_t j = 0; j < 3; ++j)
          ASSERT_NEAR(r.conv[static_cast<size_t>(j * 3 * P + part * P + c)],
                      history[static_cast<size_t>(c * 4 + j + 1)], 1e-5)
              << names[part] << " channel " << c << " row " << j;
    }
  }
}

TEST_P(Golden, Fp32GreedyTokensAndTheirLogitsEqualTheVendors) {
  std::vector<float> logits;
  const auto got = run_greedy(model(), engine_config(DType::f32), tokens(17), 24, &logits);
  EXPECT_EQ(got, golden_.ints(GetParam().greedy));
  EXPECT_LT(worst(logits, golden_.floats("fp32.greedy_logits")), kFp32Bound);
}

TEST_P(GoldenBf16, LogitsStayWithinTheBoundsOfTheGoldenPage) {
  double square = 0;
  int64_t count = 0;
  for (int T : GetParam().lengths) {
    const RunResult r = run_logits(model(), engine_config(DType::bf16), tokens(T));
    std::vector<float> want, got;
    recorded_rows("fp32", T, r.logits, &want, &got);
    if (T <= 3) {
      EXPECT_LT(worst(got, want), 0.3f) << "T = " << T;
    }
    for (size_t i = 0; i < want.size(); ++i) square += std::pow(static_cast<double>(got[i]) - want[i], 2);
    count += static_cast<int64_t>(want.size());
    EXPECT_LT(worst(logsumexp(r.logits), golden_.floats("fp32.logsumexp." + std::to_string(T))), 0.2f) << "T = " << T;
    const auto best = argmax(r.logits), want_best = golden_.ints("fp32.argmax." + std::to_string(T));
    const auto margin = golden_.floats("fp32.top2_margin." + std::to_string(T));
    for (size_t t = 0; t < best.size(); ++t) {
      if (margin[t] <= 0.5f) continue;
      EXPECT_EQ(best[t], want_best[t]) << "T = " << T << " position " << t;
    }
  }
  EXPECT_LT(std::sqrt(square / static_cast<double>(count)), 0.15);
}

}  // namespace
}  // namespace kdelta::test
