// Random weights have the formats that config.json describes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>

#include "kdelta/io/json.h"
#include "kdelta/model/dummy.h"
#include "tests/e2e/support.h"

namespace kdelta::test {
namespace {

namespace fs = std::filesystem;

std::vector<std::pair<DType, std::string>> formats_of(const LoadedModel& m) {
  std::vector<std::pair<DType, std::string>> out;
  for (const PlacedSpec& p : m.model->weights())
    if (Matrix* const* matrix = std::get_if<Matrix*>(&p.spec.target))
      out.emplace_back((*matrix)->dtype == DType::f32 ? DType::bf16 : (*matrix)->dtype, to_string((*matrix)->input));
  return out;
}

TEST(Dummy, AModelHasTheFormatsOfItsCheckpoint) {
  for (const char* directory : {"tests/golden/k3_a", "models/tiny-k3", "tests/golden/linear_a"}) {
    const auto stored = formats_of(load_model(directory, LoadFormat::headers));
    EXPECT_EQ(formats_of(load_model(directory, LoadFormat::config_only)), stored) << directory;
    EXPECT_EQ(formats_of(load_model(directory, LoadFormat::dummy)), stored) << directory;
  }
}

TEST(Dummy, KimiK3TakesWhatItsFormatsTake) {
  const LoadedModel m = load_model("tests/configs/kimi_k3", LoadFormat::config_only);
  const Json whole = parse_json_file("tests/configs/kimi_k3/config.json");
  const Json& c = *whole.find("text_config");
  const auto field = [&](const char* name) { return c.find(name)->integer(); };
  const int64_t layers = field("num_hidden_layers") - field("first_k_dense_replace");
  const int64_t experts =
      layers * field("num_experts") * 3 * field("routed_expert_hidden_size") * field("moe_intermediate_size");
  // Beside the experts bf16, but for vectors in fp32, which are two thousandths of that.
  const int64_t other = m.report.elements - experts, bytes = m.report.converted_bytes - experts * 17 / 32;
  EXPECT_EQ(experts % 32, 0);
  EXPECT_GE(bytes, other * 2);
  EXPECT_LE(bytes, other * 2 + other / 250);
  EXPECT_EQ(m.report.mapped_bytes, 0);
}

// The configuration for measurements on one device: thirteen layers, of every kind and as many as commit two blocks of
// the attention residuals, with the widths that each of eight ranks has when experts are dealt by width. A rank's up
// projection of the latents, an eighth of the columns, is whole here.
TEST(Dummy, TheRankOfKimiK3HasAnEighthOfEveryMatrixThatIsDealt) {
  const LoadChoices one_of_eight{.shard = {.rank = 0, .ranks = 8, .split = ExpertSplit::width}};
  const LoadedModel whole = load_model("tests/configs/kimi_k3", LoadFormat::config_only, one_of_eight),
                    rank = load_model("tests/configs/kimi_k3_rank", LoadFormat::config_only);
  std::map<std::string, std::pair<DType, Shape>> wanted;
  for (const PlacedSpec& p : whole.model->weights())
    if (Matrix* const* m = std::get_if<Matrix*>(&p.spec.target))
      wanted[p.prefix + p.spec.names[0]] = {(*m)->dtype, p.spec.shape};
  int compared = 0, up = 0;
  for (const PlacedSpec& p : rank.model->weights()) {
    Matrix* const* m = std::get_if<Matrix*>(&p.spec.target);
    if (m == nullptr) continue;
    const std::string name = p.prefix + p.spec.names[0];
    // The last layer of either model attends whatever its number.
    if (name.find("layers.12.self_attn") != std::string::npos) continue;
    auto [dtype, shape] = wanted.at(name);
    if (name.ends_with("routed_expert_up_proj")) ++up, shape = {shape[0], shape[1] * 8};
    EXPECT_EQ((*m)->dtype, dtype) << name;
    EXPECT_EQ(p.spec.shape, shape) << name;
    ++compared;
  }
  EXPECT_EQ(up, 12);
  EXPECT_GT(compared, 12 * 896 * 3);
  EXPECT_TRUE(rank.config.mixer.back() == MixerKind::mla && rank.config.mixer[3] == MixerKind::mla);
}

TEST(Dummy, AKimiK3WithMxFp4ExpertsRuns) {
  const LoadedModel m = load_model("tests/golden/k3_a", LoadFormat::dummy);
  int fp4 = 0;
  for (const PlacedSpec& p : m.model->weights())
    if (Matrix* const* matrix = std::get_if<Matrix*>(&p.spec.target)) fp4 += (*matrix)->dtype == DType::f4_e2m1;
  EXPECT_GT(fp4, 0);
  std::vector<int32_t> ids(70);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i * 37 % 512);
  double sum = 0;
  for (const float logit : run_logits(*m.model, engine_config(DType::bf16), ids).logits) {
    ASSERT_TRUE(std::isfinite(logit));
    sum += std::abs(logit);
  }
  EXPECT_GT(sum, 0);
}

// As kdelta quantize writes a Kimi-Linear.
class DummyPatterns : public testing::Test {
 protected:
  DummyPatterns() {
    fs::create_directories(directory_);
    Json::Object config = parse_json_file("tests/golden/linear_a/config.json").object();
    config.push_back({"quantization_config", parse_json(R"({
      "quant_method": "compressed-tensors", "format": "mixed-precision", "ignore": ["re:.*layers\\.0\\..*q_proj"],
      "config_groups": {
        "qkv": {"targets": ["re:.*self_attn\\.[qkv]_proj$"],
                "weights": {"num_bits": 8, "type": "float", "strategy": "group", "group_size": 32, "symmetric": true},
                "input_activations": {"num_bits": 8, "type": "float", "strategy": "group", "group_size": 32,
                                      "symmetric": true, "dynamic": true}},
        "rest": {"targets": ["Linear"],
                 "weights": {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32,
                             "symmetric": true}}}})",
                                                        {"test"})});
    std::ofstream(directory_ + "/config.json") << json_text(std::move(config));
  }
  ~DummyPatterns() override { fs::remove_all(directory_); }
  std::string directory_ = fs::temp_directory_path() / ("kdelta_dummy_" + std::to_string(getpid()));
};

TEST_F(DummyPatterns, ANamedMatrixHasItsSchemeAndALinearOneOnlyWhereItIsARoutedExpert) {
  const LoadedModel m = load_model(directory_, LoadFormat::dummy);
  int mxfp8 = 0, mxfp4 = 0;
  for (const PlacedSpec& p : m.model->weights()) {
    Matrix* const* matrix = std::get_if<Matrix*>(&p.spec.target);
    if (matrix == nullptr) continue;
    const std::string name = p.prefix + p.spec.names[0];
    const bool qkv =
        name.ends_with("self_attn.q_proj") || name.ends_with("self_attn.k_proj") || name.ends_with("self_attn.v_proj");
    const bool expert = name.find(".experts.") != std::string::npos;
    // The first layer's q, k and v are one group, whose first matrix is on the ignore list.
    const bool ignored = name.find("layers.0.self_attn") != std::string::npos;
    const DType wanted = expert ? DType::f4_e2m1 : qkv && !ignored ? DType::f8_e4m3 : DType::bf16;
    EXPECT_EQ((*matrix)->dtype, wanted) << name;
    EXPECT_EQ((*matrix)->input.quantised(), wanted == DType::f8_e4m3) << name;
    mxfp8 += wanted == DType::f8_e4m3;
    mxfp4 += wanted == DType::f4_e2m1;
  }
  EXPECT_GT(mxfp8, 0);
  EXPECT_GT(mxfp4, 0);
}

TEST_F(DummyPatterns, ValuesAreFiniteAndSpreadAsThoseOfBf16) {
  const LoadedModel m = load_model(directory_, LoadFormat::dummy);
  for (const PlacedSpec& p : m.model->weights()) {
    Matrix* const* target = std::get_if<Matrix*>(&p.spec.target);
    if (target == nullptr || !(*target)->is_mx()) continue;
    const Matrix& w = **target;
    std::vector<float> row(static_cast<size_t>(w.cols));
    double sum = 0;
    for (int64_t r = 0; r < w.rows; ++r) {
      dequantize_row(w, r, row.data());
      for (const float x : row) {
        ASSERT_TRUE(std::isfinite(x));
        sum += static_cast<double>(x) * x;
      }
    }
    // A layer keeps the size of its input; a scale is a power of two, so half of one is the most that it is off.
    const double kept = std::sqrt(sum / static_cast<double>(w.rows));
    EXPECT_GT(kept, 0.65) << p.prefix << p.spec.names[0];
    EXPECT_LT(kept, 1.55) << p.prefix << p.spec.names[0];
  }
}

// Chance gives n tokens e (1 - (1 - k/e)^n) different experts of a layer.
TEST(Dummy, TokensGoToAsManyExpertsAsChanceGivesThem) {
  constexpr int kExperts = 256, kChosen = 8, kTokens = 64;
  const std::string directory = fs::temp_directory_path() / ("kdelta_experts_" + std::to_string(getpid()));
  fs::create_directories(directory);
  Json::Object config = parse_json_file("tests/golden/linear_a/config.json").object();
  for (auto& [name, value] : config) {
    if (name == "num_experts") value = parse_json(std::to_string(kExperts), {"test"});
    if (name == "num_experts_per_token") value = parse_json(std::to_string(kChosen), {"test"});
  }
  std::ofstream(directory + "/config.json") << json_text(std::move(config));
  const LoadedModel m = load_model(directory, LoadFormat::dummy);
  fs::remove_all(directory);
  std::vector<int32_t> ids(kTokens);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i * 37 % 512);
  Recorder seen;
  (void)run_logits(*m.model, engine_config(DType::bf16), ids, 0, &seen);
  const double chance = kExperts * (1 - std::pow(1 - double{kChosen} / kExperts, kTokens));
  for (int layer = 1; layer < 5; ++layer) {
    std::vector<float> experts = seen.get("router_idx", layer);
    ASSERT_EQ(experts.size(), size_t{kTokens * kChosen});
    std::sort(experts.begin(), experts.end());
    const auto end = std::unique(experts.begin(), experts.end());
    EXPECT_GT(static_cast<double>(end - experts.begin()), 0.9 * chance) << layer;
  }
}

TEST(Dummy, CodesDoNotDependOnThePieceTheyAreMadeIn) {
  constexpr int64_t kAll = 3'000'000, kPiece = 777'777;  // some periods
  for (const DType dtype : {DType::f4_e2m1, DType::f8_e4m3}) {
    std::vector<uint8_t> whole(kAll), pieces(kAll);
    dummy_codes(dtype, 7, 0, whole);
    for (int64_t at = 0; at < kAll; at += kPiece)
      dummy_codes(dtype, 7, at,
                  std::span(pieces).subspan(static_cast<size_t>(at), static_cast<size_t>(std::min(kPiece, kAll - at))));
    EXPECT_TRUE(whole == pieces);
  }
}

}  // namespace
}  // namespace kdelta::test
