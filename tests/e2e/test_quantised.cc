// The public reports on weight loading (D1 to D6), each on checkpoints with q, k and v in MXFP8 or MXFP4 and experts in
// MXFP4: quantised forms have twice the tensors and two more ways to be misread.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "kdelta/api/quantize.h"
#include "kdelta/core/arena.h"
#include "kdelta/core/error.h"
#include "kdelta/ops/mx_quant/mx_quant.h"
#include "tests/e2e/support.h"
#include "tests/support/op_test.h"

namespace kdelta::test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;

struct Tensor {
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
  std::vector<uint8_t> bytes;
};
using Tensors = std::map<std::string, Tensor>;

Tensors read_all(const std::string& directory) {
  const Checkpoint c = Checkpoint::open(directory);
  Tensors all;
  for (const TensorInfo& t : c.tensors()) all[t.name] = {t.dtype, t.shape, {c.data(t), c.data(t) + t.bytes}};
  return all;
}

void write_file(const std::string& path, const Tensors& tensors) {
  std::vector<TensorToWrite> list;
  for (const auto& [name, t] : tensors) list.push_back({name, t.dtype, t.shape, t.bytes.data()});
  write_safetensors(path, list);
}

std::string read_text(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

struct Form {
  const char *name, *model, *qkv;
};
void PrintTo(const Form& form, std::ostream* out) {
  *out << form.name;
}

class Quantised : public testing::TestWithParam<Form> {
 protected:
  Quantised() {
    folder_ = testing::TempDir() + "kdelta_quantised_XXXXXX";
    EXPECT_NE(mkdtemp(folder_.data()), nullptr);
    sharded_ = folder_ + "/sharded";
    quantize({.model = GetParam().model, .out = sharded_, .qkv = GetParam().qkv, .threads = 2});
    tensors_ = read_all(sharded_);
    one_ = folder_ + "/one";
    fs::create_directory(one_);
    // Every token runs every expert, so that no expert's tensor can hide.
    std::string config = read_text(sharded_ + "/config.json");
    const std::string field = "\"num_experts_per_token\": ";
    const size_t at = config.find(field) + field.size();
    config.replace(at, config.find_first_of(",\n", at) - at, "8");
    std::ofstream(one_ + "/config.json") << config;
  }
  ~Quantised() override { fs::remove_all(folder_); }

  void write(const Tensors& tensors) const { write_file(one_ + "/model.safetensors", tensors); }
  std::vector<float> logits() const {
    const std::vector<int32_t> ids = {11, 22, 33, 44, 55, 66, 77, 88, 99, 110, 121, 132, 143, 154, 165, 176, 187, 198};
    const LoadedModel m = load_model(one_, LoadFormat::checkpoint);
    return run_logits(*m.model, engine_config(DType::f32), ids).logits;
  }
  std::vector<float> logits(const Tensors& tensors) const {
    write(tensors);
    return logits();
  }
  std::string refusal(const Tensors& tensors) const {
    write(tensors);
    return refusal(one_);
  }
  static std::string refusal(const std::string& directory) {
    return error_of([&] { (void)load_model(directory, LoadFormat::checkpoint); });
  }
  std::vector<std::string> names(const std::string& ending) const {
    std::vector<std::string> out;
    for (const auto& [name, t] : tensors_)
      if (name.ends_with(ending)) out.push_back(name);
    EXPECT_FALSE(out.empty()) << ending;
    return out;
  }

  std::string folder_, sharded_, one_;
  Tensors tensors_;
};

INSTANTIATE_TEST_SUITE_P(Forms, Quantised,
                         testing::Values(Form{"k3_w8a8", "tests/golden/k3_a", "mxfp8"},
                                         Form{"linear_w8a8", "tests/golden/linear_a", "mxfp8"},
                                         Form{"linear_w4a8", "tests/golden/linear_a", "mxfp4"}),
                         [](const auto& kd) { return std::string(kd.param.name); });

TEST_P(Quantised, D1PaddingOfALogNeverMattersAndATooShortOneIsRefused) {
  const std::vector<float> want = logits(tensors_);
  for (const float padding : {0.0f, NAN}) {
    Tensors padded = tensors_;
    for (const std::string& name : names("A_log")) {
      Tensor& t = padded[name];
      t.bytes.resize(2 * 4);
      for (int i = 0; i < 6; ++i) {
        const auto* p = reinterpret_cast<const uint8_t*>(&padding);
        t.bytes.insert(t.bytes.end(), p, p + 4);
      }
      t.shape = {8};
    }
    EXPECT_TRUE(same_bits(logits(padded), want)) << padding;
  }
  Tensors shorter = tensors_;
  const std::string name = names("A_log").front();
  shorter[name].shape = {1};
  shorter[name].bytes.resize(4);
  EXPECT_THAT(refusal(shorter), HasSubstr(name + ": shape [1], expected at least 2"));
}

TEST_P(Quantised, D2ScalesMeanTheSameUnderEitherNameOfTheirTypeAndNaNIsRefused) {
  const std::vector<float> want = logits(tensors_);
  Tensors renamed = tensors_;
  for (const std::string& name : names(".weight_scale")) renamed[name].dtype = DType::f8_e8m0;
  EXPECT_TRUE(same_bits(logits(renamed), want));
  for (const char* ending : {"q_proj.weight_scale", "w2.weight_scale"}) {
    const std::string name = names(ending).back();
    const std::string codes =
        name.substr(0, name.size() - 6) + (tensors_.contains(name.substr(0, name.size() - 6)) ? "" : "_packed");
    Tensors other = tensors_;
    other[name].bytes[7] = 255;
    EXPECT_THAT(refusal(other), HasSubstr(name + ": scale byte 255 (NaN) at offset 7"));
    // A block of zeros is zero under every scale that is a number; block 7 is within some row.
    Tensor& t = other[codes];
    const size_t block = t.bytes.size() / other[name].bytes.size();
    std::memset(&t.bytes[7 * block], 0, block);
    EXPECT_THAT(refusal(other), HasSubstr("scale byte 255 (NaN)"));
    other[name].bytes[7] = 0;
    const std::vector<float> least = logits(other);
    other[name].bytes[7] = 254;
    EXPECT_TRUE(same_bits(logits(other), least)) << name;
  }
}

// D3, and D2 once more: the engine's reading of codes, nibbles and scales is the one that dequantize_row defines.
TEST_P(Quantised, D3WeightsAreThoseOfAPlainCheckpointWithTheSameValues) {
  // Inputs as they are on both sides.
  std::string config = read_text(one_ + "/config.json");
  for (size_t at = 0; (at = config.find("\"input_activations\": {", at)) != std::string::npos; ++at) {
    size_t end = config.find('{', at);
    for (int depth = 0;; ++end) {
      depth += config[end] == '{' ? 1 : config[end] == '}' ? -1 : 0;
      if (depth == 0) break;
    }
    config.replace(at, end + 1 - at, "\"input_activations\": null");
  }
  std::ofstream(one_ + "/config.json") << config;
  const std::vector<float> got = logits(tensors_);
  Tensors plain;
  for (const auto& [name, t] : tensors_) {
    if (name.ends_with(".weight_scale")) continue;
    const bool packed = name.ends_with(".weight_packed");
    const std::string module = name.substr(0, name.rfind('.'));
    if (!tensors_.contains(module + ".weight_scale")) {
      plain[name] = t;
      continue;
    }
    const int64_t rows = t.shape[0], cols = t.shape[1] * (packed ? 2 : 1);
    const Matrix m = dense_matrix(t.bytes.data(), packed ? DType::f4_e2m1 : t.dtype, rows, cols,
                                  tensors_.at(module + ".weight_scale").bytes.data());
    Tensor values{DType::f32, {rows, cols}, std::vector<uint8_t>(static_cast<size_t>(rows * cols * 4))};
    std::vector<float> row(static_cast<size_t>(cols));
    for (int64_t r = 0; r < rows; ++r) {
      dequantize_row(m, r, row.data());
      std::memcpy(&values.bytes[static_cast<size_t>(r * cols * 4)], row.data(), row.size() * 4);
    }
    plain[module + ".weight"] = values;
  }
  EXPECT_TRUE(same_bits(logits(plain), got));
  // The other nibble is another weight.
  Tensors swapped = tensors_;
  for (uint8_t& b : swapped[names("w1.weight_packed").front()].bytes) b = static_cast<uint8_t>(b << 4 | b >> 4);
  EXPECT_FALSE(same_bits(logits(swapped), got));
}

TEST_P(Quantised, D4AnIncompleteCheckpointIsRefusedByFileAndTensor) {
  const auto with = [&](auto change) {
    const std::string copy = folder_ + "/copy";
    fs::copy(sharded_, copy);
    change(copy);
    const std::string message = refusal(copy);
    fs::remove_all(copy);
    return message;
  };
  const std::string shard =
      "model-00002-of-" + std::string(GetParam().name[0] == 'k' ? "000007" : "00003") + ".safetensors";
  ASSERT_TRUE(fs::exists(sharded_ + "/" + shard));
  EXPECT_EQ(with([](const std::string&) {}), "no error");
  EXPECT_THAT(
      with([&](const std::string& d) { fs::resize_file(d + "/" + shard, fs::file_size(d + "/" + shard) - 16); }),
      HasSubstr(shard));
  EXPECT_THAT(with([&](const std::string& d) { fs::remove(d + "/" + shard); }), HasSubstr(shard));
  // The shard holds less, or more, than the index says; a scale tensor is what is easiest to lose.
  Tensors part;
  {
    const TensorFile file(sharded_ + "/" + shard);
    for (const auto& [name, t] : tensors_)
      if (error_of([&] { (void)file.info(name); }) == "no error") part[name] = t;
  }
  std::string scale;
  for (const auto& [name, t] : part)
    if (name.ends_with(".weight_scale")) scale = name;
  ASSERT_FALSE(scale.empty());
  Tensors less = part, more = part;
  less.erase(scale);
  more["model.extra.weight_scale"] = part[scale];
  EXPECT_THAT(with([&](const std::string& d) { write_file(d + "/" + shard, less); }), HasSubstr(scale));
  EXPECT_THAT(with([&](const std::string& d) { write_file(d + "/" + shard, more); }),
              HasSubstr("model.extra.weight_scale"));
  Tensors lone = tensors_;
  lone.erase(scale);
  EXPECT_THAT(refusal(lone), HasSubstr("tensor " + scale + ": missing"));
  Tensors misshapen = tensors_;
  misshapen[scale].shape = {misshapen[scale].shape[0] * misshapen[scale].shape[1], 1};
  EXPECT_THAT(refusal(misshapen), AllOf(HasSubstr(scale + ": shape ["), HasSubstr("expected [")));
}

TEST_P(Quantised, D4SchemesThatAreMixedOrUnknownAreRefusedByName) {
  const std::string q = names("q_proj.weight_scale").front(), module = q.substr(0, q.rfind('.'));
  Tensors mixed = tensors_;
  const bool fp8 = mixed.contains(module + ".weight");
  const Tensor codes = mixed[module + (fp8 ? ".weight" : ".weight_packed")];
  const int64_t rows = codes.shape[0], cols = codes.shape[1] * (fp8 ? 1 : 2);
  const Tensor plain{DType::bf16, {rows, cols}, std::vector<uint8_t>(static_cast<size_t>(rows * cols * 2))};
  // One of three in another precision.
  mixed.erase(module + ".weight_packed");
  mixed.erase(q);
  mixed[module + ".weight"] = plain;
  EXPECT_THAT(refusal(mixed), HasSubstr("expected one precision for q, k and v of a layer"));
  // Scales beside a weight that has none.
  mixed[q] = tensors_[q];
  EXPECT_THAT(refusal(mixed), AnyOf(HasSubstr("expected one precision"), HasSubstr("scales of ")));
  // A weight in two forms.
  const std::string packed = names("w1.weight_packed").front();
  mixed = tensors_;
  mixed[packed.substr(0, packed.size() - 7)] = plain;
  EXPECT_THAT(refusal(mixed), HasSubstr("tensor " + packed + ": stored beside "));
  // Another engine's int8.
  mixed = tensors_;
  mixed.erase(module + ".weight_packed");
  mixed[module + ".weight"] = {DType::i8, {rows, cols}, std::vector<uint8_t>(static_cast<size_t>(rows * cols))};
  EXPECT_THAT(refusal(mixed), HasSubstr(module + ".weight: dtype I8, accepted for a matrix"));
}

TEST_P(Quantised, D5EveryTensorCountsAndNoneIsOptional) {
  const std::vector<float> want = logits(tensors_);
  for (const auto& [name, tensor] : tensors_) {
    Tensors less = tensors_;
    less.erase(name);
    EXPECT_THAT(refusal(less), HasSubstr("tensor " + name + ": missing")) << name;
    const bool quantised = tensors_.contains(name.substr(0, name.rfind('.')) + ".weight_scale");
    if (!quantised) continue;  // the plain ones: test_loading.cc
    Tensors changed = tensors_;
    // Signs of all codes; scales by two.
    for (uint8_t& b : changed[name].bytes)
      b = static_cast<uint8_t>(name.ends_with("_scale") ? b + 1 : b ^ (name.ends_with("_packed") ? 0x88 : 0x80));
    EXPECT_FALSE(same_bits(logits(changed), want)) << name << " has no effect";
  }
}

}  // namespace

// One full-attention layer whose matrices are MXFP8 and take MXFP8 inputs: in what order the earlier tokens came does
// not matter to the last one.
TEST(QuantisedAttention, D6HasNoPositions) {
  std::string folder = testing::TempDir() + "kdelta_positions_XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  TestExec ex;
  Tensors one;
  for (auto& [name, t] : read_all("tests/golden/linear_a")) {
    std::string as = name;
    if (const size_t at = name.find("layers.2.self_attn."); at != std::string::npos)
      as = "model.layers.0." + name.substr(name.find("self_attn."));
    else if (name.find("layers.") != std::string::npos &&
             (name.find("layers.0.") == std::string::npos || name.find("self_attn.") != std::string::npos))
      continue;
    if (as.find("_proj") == std::string::npos || as.find("self_attn") == std::string::npos) {
      one[as] = t;
      continue;
    }
    const int64_t rows = t.shape[0], cols = t.shape[1];
    Tensor codes{DType::f8_e4m3, t.shape, std::vector<uint8_t>(static_cast<size_t>(rows * cols))},
        scale{DType::u8, {rows, cols / 32}, std::vector<uint8_t>(static_cast<size_t>(rows * cols / 32))};
    mx_quantize(ex, {.rule = MxScaleRule::rceil,
                     .x = AnyConstView(t.bytes.data(), t.dtype, {rows, cols}),
                     .codes = View<uint8_t>(codes.bytes.data(), {rows, cols}),
                     .scale = View<uint8_t>(scale.bytes.data(), {rows, cols / 32})});
    one[as] = codes;
    one[as + "_scale"] = scale;
  }
  write_file(folder + "/model.safetensors", one);
  std::string config = read_text("tests/golden/linear_a/config.json");
  const auto set = [&](const std::string& field, const std::string& value) {
    const size_t at = config.find("\"" + field + "\": ") + field.size() + 4;
    const size_t end = config[at] == '[' ? config.find(']', at) + 1 : config.find_first_of(",\n", at);
    config.replace(at, end - at, value);
  };
  set("kda_layers", "[]");
  set("full_attn_layers", "[1]");
  set("num_hidden_layers", "1");
  const std::string mx = R"({"num_bits": 8, "type": "float", "strategy": "group", "group_size": 32})";
  config.insert(1, R"("quantization_config": {"quant_method": "compressed-tensors", "config_groups": {"group_0": {)"
                   R"("targets": ["Linear"], "weights": )" +
                       mx + R"(, "input_activations": )" + mx + "}}},");
  std::ofstream(folder + "/config.json") << config;
  const LoadedModel m = load_model(folder, LoadFormat::checkpoint);
  const auto last = [&](std::vector<int32_t> ids) {
    const std::vector<float> all = run_logits(*m.model, engine_config(DType::f32), ids).logits;
    return std::vector<float>(all.end() - m.config.vocab_size, all.end());
  };
  const std::vector<float> want = last({5, 17, 300, 42, 99, 7}), got = last({99, 42, 17, 5, 300, 7}),
                           other = last({5, 17, 300, 42, 98, 7});
  double moved = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_NEAR(got[i], want[i], 1e-5) << i;
    moved = std::max<double>(moved, std::fabs(static_cast<double>(other[i] - want[i])));
  }
  EXPECT_GT(moved, 1e-2) << "the earlier tokens are attended to";
  fs::remove_all(folder);
}

}  // namespace kdelta::test
