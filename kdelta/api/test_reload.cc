// New weights in a running engine: all or nothing, and nothing of the old ones is left.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

#include "kdelta/api/engine.h"
#include "kdelta/api/quantize.h"
#include "kdelta/io/checkpoint.h"
#include "tests/support/op_test.h"

namespace kdelta {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using testing::AllOf;
using testing::HasSubstr;

struct Tensor {
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
  std::vector<uint8_t> bytes;
};
using Tensors = std::map<std::string, Tensor>;

class Reload : public testing::TestWithParam<std::string> {
 protected:
  Reload() {
    folder_ = testing::TempDir() + "kdelta_reload_XXXXXX";
    EXPECT_NE(mkdtemp(folder_.data()), nullptr);
    source_ = "tests/golden/" + GetParam();
    const Checkpoint c = Checkpoint::open(source_);
    for (const TensorInfo& t : c.tensors()) old_[t.name] = {t.dtype, t.shape, {c.data(t), c.data(t) + t.bytes}};
    new_ = other_weights();
  }
  ~Reload() override { fs::remove_all(folder_); }

  // The same model with other weights: every matrix's elements in reverse order. Vectors stay.
  Tensors other_weights() const {
    Tensors out = old_;
    for (auto& [name, t] : out) {
      if (t.dtype != DType::bf16 || t.shape.size() != 2) continue;
      std::vector<uint16_t> values(t.bytes.size() / 2);
      std::memcpy(values.data(), t.bytes.data(), t.bytes.size());
      std::reverse(values.begin(), values.end());
      std::memcpy(t.bytes.data(), values.data(), t.bytes.size());
    }
    return out;
  }

  std::string write(const Tensors& tensors, const std::string& name) const {
    const std::string directory = folder_ + "/" + name;
    fs::create_directory(directory);
    std::vector<TensorToWrite> list;
    for (const auto& [n, t] : tensors) list.push_back({n, t.dtype, t.shape, t.bytes.data()});
    write_safetensors(directory + "/model.safetensors", list);
    fs::copy_file(source_ + "/config.json", directory + "/config.json", fs::copy_options::overwrite_existing);
    return directory;
  }

  static Engine load(const std::string& model, const std::string& gate = "factored") {
    LoadOptions o{.model = model, .kda_gate = gate};
    o.threads = 2;
    o.max_length = 256;
    o.prefix_snapshots = 4;
    return Engine::load(o);
  }
  // Longer than a page, so that its beginning is kept.
  static std::vector<int32_t> prompt() {
    std::vector<int32_t> ids;
    for (int32_t i = 0; i < 140; ++i) ids.push_back((i * 37 + 5) % 500);
    return ids;
  }
  static Generation answer(Engine& engine) {
    GenerateOptions o;
    o.temperature = 0;
    o.max_tokens = 12;
    o.ignore_eos = true;
    o.logprobs = 0;
    return engine.generate(prompt(), o);
  }
  static void expect_same(const Generation& got, const Generation& want) {
    EXPECT_EQ(got.tokens, want.tokens);
    ASSERT_EQ(got.logprobs.size(), want.logprobs.size());
    for (size_t i = 0; i < got.logprobs.size(); ++i) EXPECT_EQ(got.logprobs[i].logprob, want.logprobs[i].logprob);
  }

  static WeightTensor tensor(const std::string& name, const Tensor& t) {
    const auto bytes = std::make_shared<const std::vector<uint8_t>>(t.bytes);
    return {name, std::string(dtype_name(t.dtype)), t.shape, {bytes, bytes->data()}};
  }
  // Names that end so.
  std::vector<std::string> names(const std::string& ending) const {
    std::vector<std::string> out;
    for (const auto& [name, t] : old_)
      if (name.ends_with(ending)) out.push_back(name);
    EXPECT_FALSE(out.empty()) << ending;
    return out;
  }

  std::string folder_, source_;
  Tensors old_, new_;
};

INSTANTIATE_TEST_SUITE_P(Models, Reload, testing::Values("k3_a", "linear_a"), [](const auto& kd) { return kd.param; });

TEST_P(Reload, AnswersAsAnEngineLoadedWithTheNewWeightsAndForgetsOldPrefixes) {
  const std::string fresh = write(new_, "new");
  for (const char* gate : {"factored", "composed"}) {
    Engine engine = load(source_, gate), expected = load(fresh, gate);
    const Generation before = answer(engine), want = answer(expected);
    EXPECT_NE(before.logprobs[0].logprob, want.logprobs[0].logprob);
    EXPECT_GT(answer(engine).cached_tokens, 0);
    engine.reload(fresh);
    const Generation got = answer(engine);
    EXPECT_EQ(got.cached_tokens, 0);
    expect_same(got, want);
    engine.reload(source_);
    expect_same(answer(engine), before);
  }
}

// What is saved belongs to the weights that made it, wherever these were loaded.
TEST_P(Reload, SavedPrefixesOfOldWeightsAreRefusedAndThoseOfTheNewOnesTaken) {
  const std::string fresh = write(new_, "new");
  Engine engine = load(source_), other = load(fresh);
  (void)answer(engine);
  (void)answer(other);
  const std::vector<char> old_state = engine.save_prefix(prompt()), new_state = other.save_prefix(prompt());
  ASSERT_FALSE(old_state.empty() || new_state.empty());
  EXPECT_THAT(error_of([&] { engine.load_prefix(new_state); }), HasSubstr("of another model"));
  engine.reload(fresh);
  EXPECT_THAT(error_of([&] { engine.load_prefix(old_state); }), HasSubstr("of another model"));
  EXPECT_GT(engine.load_prefix(new_state).kept, 0);
  expect_same(answer(engine), answer(other));
  const std::string b = names("b_proj.weight").front();
  engine.reload({tensor(b, old_[b])});
  EXPECT_THAT(error_of([&] { engine.load_prefix(new_state); }), HasSubstr("of another model"));
}

TEST_P(Reload, WhatIsRefusedChangesNothing) {
  Engine engine = load(source_);
  const Generation want = answer(engine);
  const auto refusal = [&](auto change, const std::string& config_from = "", const std::string& config_to = "") {
    Tensors t = new_;
    change(t);
    const std::string directory = write(t, "bad");
    std::ifstream in(source_ + "/config.json");
    std::string text(std::istreambuf_iterator<char>(in), {});
    if (!config_from.empty()) text.replace(text.find(config_from), config_from.size(), config_to);
    std::ofstream(directory + "/config.json") << text;
    const std::string message = error_of([&] { engine.reload(directory); });
    const Generation got = answer(engine);
    EXPECT_GT(got.cached_tokens, 0) << "what was known of the old weights still holds";
    expect_same(got, want);
    fs::remove_all(directory);
    return message;
  };
  const std::string b = names("b_proj.weight").front(), dt = names("dt_bias").back();
  EXPECT_THAT(refusal([&](Tensors& t) { t.erase(b); }), HasSubstr("tensor " + b + ": missing"));
  EXPECT_THAT(refusal([&](Tensors& t) { t[b].shape = {t[b].shape[0] * t[b].shape[1]}; }), HasSubstr(b + ": shape"));
  EXPECT_THAT(refusal([&](Tensors& t) { t[b].dtype = DType::f16; }), HasSubstr(b + ": dtype F16"));
  EXPECT_THAT(refusal([&](Tensors& t) { std::memset(t[dt].bytes.data(), 0xff, 4); }), HasSubstr(dt + ": element 0"));
  EXPECT_THAT(refusal([](Tensors&) {}, "\"rms_norm_eps\": 1e-05", "\"rms_norm_eps\": 1e-06"),
              AllOf(HasSubstr("config.json: another model"), HasSubstr("norm epsilon")));
  EXPECT_THAT(error_of([&] { engine.reload(folder_ + "/nonesuch"); }), HasSubstr("nonesuch/config.json"));
}

TEST_P(Reload, WhileARequestRunsItIsRefusedAndTheRequestGoesOn) {
  Engine engine = load(source_);
  GenerateOptions o;
  o.temperature = 0;
  o.max_tokens = 8;
  o.ignore_eos = true;
  const std::vector<int32_t> want = engine.generate({1, 2, 3}, o).tokens;
  const std::string fresh = write(new_, "new");
  std::string message;
  const auto on_first = [&](const std::string&, const std::vector<int32_t>&) {
    if (message.empty()) message = error_of([&] { engine.reload(fresh); });
  };
  const Generation got = engine.generate({1, 2, 3}, o, on_first);
  EXPECT_EQ(message, "reload: 1 requests wait or run, expected none");
  EXPECT_EQ(got.tokens, want);
}

// Row 2 at the engine: one factor of the gate, the other, both; in the composed form the product is made again.
TEST_P(Reload, SingleTensorsMeetTheOldOnes) {
  for (const char* gate : {"factored", "composed"})
    for (const std::vector<std::string>& endings :
         {std::vector<std::string>{"f_a_proj.weight"}, {"f_b_proj.weight"}, {"f_a_proj.weight", "f_b_proj.weight"}}) {
      Engine engine = load(source_, gate);
      (void)answer(engine);
      Tensors now = old_;
      std::vector<WeightTensor> given;
      for (const std::string& ending : endings)
        for (const std::string& name : names(ending)) {
          now[name] = new_[name];
          given.push_back(tensor(name, new_[name]));
        }
      engine.reload(given);
      given.clear();  // the engine keeps what it needs
      Engine expected = load(write(now, "now"), gate);
      expect_same(answer(engine), answer(expected));
    }
}

// Point 6 of the loader: taps as they are kept count before the three they are made of.
TEST_P(Reload, ConvolutionTapsAsTheyAreKeptWin) {
  Engine engine = load(source_);
  const std::string q = names("q_conv1d.weight").front(),
                    prefix = q.substr(0, q.size() - std::strlen("q_conv1d.weight"));
  const int64_t C = old_[q].shape[0], W = old_[q].shape.back();
  Tensor kept{DType::f32, {W, 3 * C}, std::vector<uint8_t>(static_cast<size_t>(W * 3 * C * 4))};
  Tensors now = old_;
  for (int64_t i = 0; i < 3 * C * W; ++i) {
    const float x = static_cast<float>(i % 7) / 16 - 0.1f;
    std::memcpy(&kept.bytes[static_cast<size_t>(4 * (i % W * 3 * C + i / W))], &x, 4);
    Tensor& part = now[prefix + std::string(1, "qkv"[i / W / C]) + "_conv1d.weight"];
    if (i % (C * W) == 0) part = {DType::f32, {C, 1, W}, std::vector<uint8_t>(static_cast<size_t>(C * W * 4))};
    std::memcpy(&part.bytes[static_cast<size_t>(i % (C * W) * 4)], &x, 4);
  }
  std::vector<WeightTensor> given = {tensor(prefix + "conv1d.weight", kept)};
  for (const char* part : {"q_conv1d.weight", "k_conv1d.weight", "v_conv1d.weight"})
    given.push_back(tensor(prefix + part, old_[prefix + part]));
  engine.reload(given);
  Engine expected = load(write(now, "now"));
  expect_same(answer(engine), answer(expected));
}

TEST_P(Reload, AnotherFormatIsRefusedAndTheSameOneTaken) {
  const std::string mixed = folder_ + "/mixed", fresh = folder_ + "/fresh";
  quantize({.model = source_, .out = mixed, .experts = "keep", .threads = 2});
  quantize({.model = write(new_, "new"), .out = fresh, .experts = "keep", .threads = 2});
  Engine plain = load(source_);
  const Generation want = answer(plain);
  EXPECT_THAT(error_of([&] { plain.reload(mixed); }), HasSubstr("another quantization_config"));
  const std::string q = names("q_proj.weight").front();
  Tensor wide = old_[q];
  wide.dtype = DType::f32;
  wide.bytes.assign(wide.bytes.size() * 2, 0);
  EXPECT_THAT(error_of([&] { plain.reload({tensor(q, wide)}); }),
              AllOf(HasSubstr(q.substr(0, q.size() - 7)), HasSubstr("F32, expected BF16")));
  expect_same(answer(plain), want);
  Engine engine = load(mixed), expected = load(fresh);
  engine.reload(fresh);
  expect_same(answer(engine), answer(expected));
}

TEST_P(Reload, WrongTensorsAndEnginesAreRefusedByName) {
  Engine engine = load(source_);
  const std::string b = names("b_proj.weight").front();
  WeightTensor t = tensor(b, new_[b]);
  t.name = "model.extra.weight";
  EXPECT_EQ(error_of([&] { engine.reload({t}); }), "reload: model.extra.weight: no such tensor in this model");
  t.dtype = "BF17";
  EXPECT_EQ(error_of([&] { engine.reload({t}); }), "reload: model.extra.weight: dtype 'BF17'");
  LoadOptions o{.model = source_};
  o.max_length = 64;
  o.headers_only = true;
  EXPECT_THAT(error_of([&] { Engine::load(o).reload(source_); }), HasSubstr("headers_only"));
  o.headers_only = false;
  o.dummy_weights = true;
  EXPECT_THAT(error_of([&] { Engine::load(o).reload(source_); }), HasSubstr("dummy_weights"));
}

}  // namespace
}  // namespace kdelta
