// What the configs of the two releases say, read where each has it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "kdelta/model/config.h"
#include "kdelta/model/shard.h"
#include "tests/support/op_test.h"

namespace kdelta {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using testing::AllOf;
using testing::HasSubstr;

// read_config() of a file with every `from` replaced by its `to`.
ModelConfig read(const std::string& directory, std::vector<std::pair<std::string, std::string>> changes = {}) {
  std::ifstream in(directory + "/config.json");
  std::string text(std::istreambuf_iterator<char>(in), {});
  for (const auto& [from, to] : changes) {
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    if (at != std::string::npos) text.replace(at, from.size(), to);
  }
  const fs::path copy = fs::temp_directory_path() / ("kdelta_test_config_" + std::to_string(getpid()));
  fs::create_directories(copy);
  std::ofstream(copy / "config.json") << text;
  try {
    const ModelConfig c = read_config(copy);
    fs::remove_all(copy);
    return c;
  } catch (...) {
    fs::remove_all(copy);
    throw;
  }
}

// Row 40. KDA heads are linear_attn_config.num_heads, of the text part or of the whole, never the heads of full
// attention; ranks get equal parts of them or are told both numbers.
TEST(Config, KdaHeadsAreThoseOfTheLinearAttentionConfig) {
  const std::string k3 = "tests/configs/kimi_k3", linear = "tests/golden/linear_a";
  EXPECT_EQ(read(k3).kda.heads, 96);
  EXPECT_EQ(read(k3).kda.head_dim, 128);
  const ModelConfig apart = read(linear, {{"\"num_heads\": 2", "\"num_heads\": 6"},
                                          {"\"num_attention_heads\": 2", "\"num_attention_heads\": 4"},
                                          {"\"num_key_value_heads\": 2", "\"num_key_value_heads\": 4"}});
  EXPECT_EQ(apart.kda.heads, 6);
  EXPECT_EQ(apart.mla.heads, 4);
  EXPECT_THAT(error_of([&] {
                read(linear, {{"\"num_heads\": 2,", ""}});
              }),
              HasSubstr("linear_attn_config.num_heads: missing"));
  EXPECT_THAT(error_of([&] {
                read(linear, {{"\"num_heads\": 2", "\"num_heads\": \"2\""}});
              }),
              HasSubstr("linear_attn_config.num_heads: string"));
  EXPECT_THAT(error_of([&] {
                read(linear, {{"\"linear_attn_config\"", "\"linear_attention\""}});
              }),
              HasSubstr("linear_attn_config: missing"));
  const ModelConfig big = read(k3);
  for (const int ranks : {1, 2, 3, 4, 6, 8, 16, 32, 96})
    EXPECT_EQ((Shard{ranks - 1, ranks}.share(big.kda.heads, "KDA heads")), 96 / ranks);
  for (const int ranks : {5, 7, 10, 64})
    EXPECT_THAT(error_of([&] {
                  (void)Shard{0, ranks}.share(big.kda.heads, "KDA heads");
                }),
                AllOf(HasSubstr("KDA heads"), HasSubstr("96"), HasSubstr(std::to_string(ranks))));
}

TEST(Config, TwoQuantizationConfigsAreRefusedUnlessTheySayTheSame) {
  const std::string k3 = "tests/configs/kimi_k3", method = R"("quant_method": "compressed-tensors", )";
  const auto with_top = [&](const std::string& top) {
    return read(k3, {{"{", R"({"quantization_config": {)" + top + "},"}});
  };
  const auto weights = [](int bits) {
    return str(R"("config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": )", bits,
               R"(, "type": "float", "strategy": "group", "group_size": 32}}})");
  };
  EXPECT_EQ(with_top(method + weights(4)).quantization->list(), "MXFP4");
  EXPECT_THAT(error_of([&] { with_top(method + weights(8)); }),
              HasSubstr(": quantization_config: object of 2, expected none, or the config_groups of text_config"));
  EXPECT_THAT(error_of([&] { with_top(R"("quant_method": "gptq")"); }), HasSubstr("quantization_config.quant_method"));
}

}  // namespace
}  // namespace kdelta
