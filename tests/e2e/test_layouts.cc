// tiny-k3 with q, k and v in MXFP8 and the rest as it was (layout B), against the checkpoint as it is (layout A): calls
// of a step and answers, with either form of the decay gate.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "kdelta/api/engine.h"
#include "kdelta/api/quantize.h"
#include "tests/e2e/support.h"

namespace kdelta::test {
namespace {

class Layouts : public testing::Test {
 protected:
  static constexpr const char* kPlain = "models/tiny-k3";

  Layouts() {
    folder_ = testing::TempDir() + "kdelta_layouts_XXXXXX";
    EXPECT_NE(mkdtemp(folder_.data()), nullptr);
    mixed_ = folder_ + "/mixed";
    quantize({.model = kPlain, .out = mixed_, .threads = 2});
  }
  ~Layouts() override { std::filesystem::remove_all(folder_); }

  static Engine load(const std::string& model, const std::string& gate, bool all_logits = false) {
    LoadOptions o{.model = model, .kda_gate = gate};
    o.threads = 2;
    o.max_length = 1024;
    o.all_logits = all_logits;
    return Engine::load(o);
  }
  static int64_t calls(const std::string& model, const std::string& gate, const std::string& op) {
    int64_t n = 0;
    for (const StepOp& s : load(model, gate).explain_step(1, true)) n += s.op == op ? s.calls : 0;
    return n;
  }

  std::string folder_, mixed_;
};

// Rows 3, 15 and 52: a layer of the uniform layout projects its input in one call, of the mixed one in two, before
// which it quantises that input once; a composed gate saves the call of f_b. No layout changes another op's count, and
// no op copies.
TEST_F(Layouts, CallsOfAStepAreThoseOfTheLayout) {
  const int64_t layers = 4, uniform = calls(kPlain, "factored", "linear");
  EXPECT_EQ(calls(kPlain, "composed", "linear"), uniform - layers);
  EXPECT_EQ(calls(mixed_, "factored", "linear"), uniform + layers);
  EXPECT_EQ(calls(mixed_, "composed", "linear"), uniform);
  for (const char* gate : {"factored", "composed"}) {
    EXPECT_EQ(calls(kPlain, gate, "mx_quantize"), 0);
    EXPECT_EQ(calls(mixed_, gate, "mx_quantize"), layers);
    EXPECT_EQ(calls(mixed_, gate, "mx_dequantize"), 0);
  }
  for (const char* op : {"short_conv", "kda", "gated_norm"})
    for (const char* gate : {"factored", "composed"}) {
      EXPECT_EQ(calls(kPlain, gate, op), layers) << op;
      EXPECT_EQ(calls(mixed_, gate, op), layers) << op;
    }
}

// Experts stay in the MXFP4 they were trained in; mixed is W8A8, weights and inputs of q, k and v. Measured against the
// checkpoint as it is: composed 0.9994, mixed 0.9995, mixed and composed 1.0000.
TEST_F(Layouts, PerplexityOfEveryLayoutIsWithinOnePercent) {
  const std::vector<int32_t> text = TensorFile("tests/golden/tiny_k3/reference.safetensors").ints("heldout.tokens");
  const double plain = load(kPlain, "factored", true).perplexity(text, 512).value();
  for (const auto& [model, gate] :
       {std::pair<std::string, std::string>{kPlain, "composed"}, {mixed_, "factored"}, {mixed_, "composed"}}) {
    const double value = load(model, gate, true).perplexity(text, 512).value();
    EXPECT_NEAR(value / plain, 1.0, 0.01) << model << " " << gate;
    EXPECT_NE(value, plain) << model << " " << gate;
  }
}

}  // namespace
}  // namespace kdelta::test
