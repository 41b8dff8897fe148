// What a quantization_config says and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kdelta/model/test_weights.h"

namespace kdelta {
namespace {

using testing::HasSubstr;

std::string group(const std::string& weights, const std::string& inputs = "null") {
  return R"({"targets": ["Linear"], "input_activations": )" + inputs + R"(, "weights": )" + weights + "}";
}

std::string arguments(int bits, const char* type = "float", int size = 32) {
  return str(R"({"num_bits": )", bits, R"(, "type": ")", type, R"(", "strategy": "group", "group_size": )", size,
             R"(, "symmetric": true})");
}

std::optional<Quantization> read(const std::string& groups, const char* method = "compressed-tensors") {
  const std::string text =
      str(R"({"quantization_config": {"quant_method": ")", method, R"(", "config_groups": {)", groups, "}}}");
  return read_quantization(JsonReader(parse_json(text, {.name = "config.json"}), {.name = "config.json"}));
}

TEST(Quantization, NamesTheSchemesOfEveryGroupOnce) {
  const auto q = read(R"("a": )" + group(arguments(4)) + R"(, "b": )" + group(arguments(8), arguments(8)) +
                      R"(, "c": )" + group(arguments(4)));
  ASSERT_TRUE(q);
  EXPECT_EQ(q->list(), "MXFP4, MXFP8");
  EXPECT_TRUE(q->names(Precision::mxfp8));
  EXPECT_EQ(read("")->list(), "nothing");
  EXPECT_FALSE(read_quantization(JsonReader(parse_json("{}", {.name = "config.json"}), {.name = "config.json"})));
}

TEST(Quantization, UnknownSchemesAndMethodsAreRefusedByField) {
  const auto refusal = [](auto f) { return test::error_of([&] { f(); }); };
  EXPECT_THAT(
      refusal([] { read(R"("a": )" + group(arguments(8, "int"))); }),
      HasSubstr("quantization_config.config_groups.a.weights: 8-bit int, strategy group, group_size 32, expected "));
  EXPECT_THAT(refusal([] { read(R"("a": )" + group(arguments(4, "float", 16))); }), HasSubstr("group_size 32"));
  EXPECT_THAT(refusal([] { read(R"("a": )" + group(arguments(2))); }), HasSubstr("expected MXFP4 or MXFP8"));
  EXPECT_THAT(refusal([] { read(R"("a": )" + group(arguments(8), arguments(8, "int"))); }),
              HasSubstr("config_groups.a.input_activations: "));
  EXPECT_THAT(refusal([] { read("", "gptq"); }), HasSubstr("quant_method: "));
}

// A checkpoint of one scheme whose tensors are of another, or that says nothing.
TEST(Quantization, TensorsOfASchemeThatIsNotNamedAreRefused) {
  test::SmallLayer layer(2);
  test::MemoryTensors all = layer.whole();
  for (const char* name : {"l.q.weight", "l.k.weight", "l.v.weight"}) {
    all[name] = test::random_bytes(DType::f8_e4m3, {16, 64}, 1, 100);
    all[name + std::string("_scale")] = test::random_bytes(DType::u8, {16, 2}, 2);
  }
  const auto refusal = [&](std::vector<Precision> schemes) {
    BindOptions options = test::bind_options();
    options.quantization = Quantization{std::move(schemes)};
    BoundWeights w = BoundWeights::expect(layer.specs(), options);
    w.allocate();
    return test::error_of([&] { test::put_all(w, all); });
  };
  EXPECT_EQ(refusal({Precision::mxfp4, Precision::mxfp8}), "no error");
  EXPECT_THAT(refusal({Precision::mxfp4}),
              HasSubstr(".weight: MXFP8, but the quantization_config of config.json names MXFP4"));
  EXPECT_THAT(refusal({}), HasSubstr(".weight: MXFP8, but the quantization_config of config.json names nothing"));
}

}  // namespace
}  // namespace kdelta
