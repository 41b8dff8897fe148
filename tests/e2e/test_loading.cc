// What a checkpoint may and may not be: every tensor counts, none is optional, padding never matters, prefixes and
// shapes vary.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>

#include "kdelta/core/error.h"
#include "kdelta/model/identity.h"
#include "tests/e2e/support.h"

namespace kdelta::test {
namespace {

namespace fs = std::filesystem;

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

class Loading : public testing::TestWithParam<std::string> {
 protected:
  Loading() : source_("tests/golden/" + GetParam()), tensors_(read_all(source_)) {
    directory_ = fs::temp_directory_path() / ("kdelta_loading_" + GetParam() + std::to_string(getpid()));
    fs::create_directories(directory_);
    fs::copy_file(source_ + "/config.json", directory_ / "config.json", fs::copy_options::overwrite_existing);
  }
  ~Loading() override { fs::remove_all(directory_); }

  void write(const Tensors& tensors) const {
    std::vector<TensorToWrite> list;
    for (const auto& [name, t] : tensors) list.push_back({name, t.dtype, t.shape, t.bytes.data()});
    write_safetensors(directory_ / "model.safetensors", list);
  }

  LoadedModel load() const { return load_model(directory_, LoadFormat::checkpoint); }

  std::vector<float> logits(const LoadedModel& m) const {
    const std::vector<int32_t> ids = {11, 22, 33, 44, 55, 66, 77, 88, 99, 110, 121, 132, 143, 154, 165, 176, 187, 198};
    return run_logits(*m.model, engine_config(DType::f32), ids).logits;
  }

  // A copy of the config in which every token runs every expert, so that none can hide.
  void choose_all_experts() const {
    std::ifstream in(source_ + "/config.json");
    std::string text(std::istreambuf_iterator<char>(in), {});
    const std::string field = "\"num_experts_per_token\": ";
    const size_t at = text.find(field) + field.size();
    text.replace(at, text.find(',', at) - at, "8");
    std::ofstream(directory_ / "config.json") << text;
  }

  void change_config(const std::function<void(std::string&)>& change) const {
    std::ifstream in(source_ + "/config.json");
    std::string text(std::istreambuf_iterator<char>(in), {});
    change(text);
    std::ofstream(directory_ / "config.json") << text;
  }

  std::string refusal(LoadFormat format = LoadFormat::checkpoint) const {
    try {
      load_model(directory_, format);
    } catch (const Error& e) {
      return e.what();
    }
    return "loaded";
  }

  const Tensor& at(const std::string& suffix, std::string* name = nullptr) const {
    for (const auto& [n, t] : tensors_) {
      if (!n.ends_with(suffix)) continue;
      if (name != nullptr) *name = n;
      return t;
    }
    throw std::runtime_error("no tensor " + suffix);
  }

  std::string source_;
  fs::path directory_;
  Tensors tensors_;
};

INSTANTIATE_TEST_SUITE_P(Models, Loading, testing::Values("k3_a", "linear_a"), [](const auto& kd) { return kd.param; });

void scale(Tensor& t, float factor) {
  if (t.dtype == DType::f32) {
    for (size_t i = 0; i + 4 <= t.bytes.size(); i += 4) {
      float x;
      std::memcpy(&x, &t.bytes[i], 4);
      x *= factor;
      std::memcpy(&t.bytes[i], &x, 4);
    }
  } else if (t.dtype == DType::bf16) {
    for (size_t i = 0; i + 2 <= t.bytes.size(); i += 2) {
      bf16 x;
      std::memcpy(&x, &t.bytes[i], 2);
      x = to_bf16(to_float(x) * factor);
      std::memcpy(&t.bytes[i], &x, 2);
    }
  } else {
    for (uint8_t& b : t.bytes) b ^= 0x11;  // MXFP4: other codes, or scales by a factor of two or more
  }
}

// Case D5. Layer 0's attention mixes a list of one element, so its score weights have no effect by definition
// (architecture, 6.3).
TEST_P(Loading, EveryTensorChangesTheLogits) {
  choose_all_experts();
  write(tensors_);
  const std::vector<float> want = logits(load());
  for (const auto& [name, tensor] : tensors_) {
    if (name.find("layers.0.self_attention_res_") != std::string::npos) continue;
    Tensors changed = tensors_;
    scale(changed[name], 1.5f);
    // A norm behind the projections cancels a common factor: move one element instead.
    if (name.find("_proj") != std::string::npos || name.find("norm") != std::string::npos) {
      changed[name] = tensor;
      changed[name].bytes[1] ^= 0x40;
      if (tensor.dtype == DType::bf16) changed[name].bytes[tensor.bytes.size() / 2 / 2 * 2 + 1] ^= 0x40;
    }
    write(changed);
    std::vector<float> got;
    try {
      got = logits(load());
    } catch (const Error&) {
      continue;  // the change made a value that loading refuses: it was read
    }
    EXPECT_NE(0, std::memcmp(got.data(), want.data(), want.size() * sizeof(float))) << name << " has no effect";
  }
}

TEST_P(Loading, EveryTensorIsRequired) {
  for (const auto& [name, tensor] : tensors_) {
    Tensors less = tensors_;
    less.erase(name);
    write(less);
    const std::string message = refusal();
    EXPECT_THAT(message, testing::HasSubstr("tensor " + name + ": missing")) << name;
  }
}

TEST_P(Loading, EveryWrongShapeIsRefusedByName) {
  for (const auto& [name, tensor] : tensors_) {
    if (name.ends_with("A_log")) continue;  // may be longer than the heads
    Tensors wrong = tensors_;
    Tensor& t = wrong[name];
    t.shape.back() += 1;
    int64_t n = dtype_bytes(t.dtype);
    for (int64_t d : t.shape) n *= d;
    t.bytes.resize(static_cast<size_t>(n));
    write(wrong);
    EXPECT_THAT(refusal(), testing::AllOf(testing::HasSubstr(name + ": shape"), testing::HasSubstr("expected")))
        << name;
  }
}

// Case D1.
TEST_P(Loading, ALogMayBePaddedAndShapedAndIsRefusedWhenShort) {
  write(tensors_);
  const std::vector<float> want = logits(load());
  const auto heads = static_cast<int64_t>(load().config.kda.heads);
  for (const float padding : {0.0f, NAN}) {
    for (const int64_t length : {heads, heads + 1, int64_t{128}}) {
      Tensors changed = tensors_;
      for (auto& [name, t] : changed) {
        if (!name.ends_with("A_log")) continue;
        std::vector<uint8_t> bytes(static_cast<size_t>(length) * 4);
        for (int64_t i = 0; i < length; ++i) std::memcpy(&bytes[static_cast<size_t>(i) * 4], &padding, 4);
        std::memcpy(bytes.data(), t.bytes.data(), static_cast<size_t>(heads) * 4);
        t.bytes = bytes;
        t.shape = length == heads ? std::vector<int64_t>{1, 1, length, 1} : std::vector<int64_t>{length};
      }
      write(changed);
      const std::vector<float> got = logits(load());
      EXPECT_EQ(0, std::memcmp(got.data(), want.data(), want.size() * sizeof(float))) << length << " with " << padding;
    }
  }
  Tensors less = tensors_;
  std::string name;
  (void)at("A_log", &name);
  less[name].shape = {heads - 1};
  less[name].bytes.resize(static_cast<size_t>(heads - 1) * 4);
  write(less);
  EXPECT_THAT(refusal(), testing::HasSubstr(name + ": shape [" + std::to_string(heads - 1) + "], expected at least " +
                                            std::to_string(heads)));
}

TEST_P(Loading, BothPrefixesAndBothConvolutionShapesLoad) {
  write(tensors_);
  const std::vector<float> want = logits(load());
  Tensors changed;
  for (const auto& [name, tensor] : tensors_) {
    const std::string prefix = "language_model.";
    Tensor t = tensor;
    if (name.find("conv1d") != std::string::npos) t.shape = {t.shape[0], t.shape[2]};
    changed[name.starts_with(prefix) ? name.substr(prefix.size()) : prefix + name] = t;
  }
  write(changed);
  const std::vector<float> got = logits(load());
  EXPECT_EQ(0, std::memcmp(got.data(), want.data(), want.size() * sizeof(float)));
}

// What a state is kept with: the same for one model in other files, under the other prefix, with strangers beside it;
// another for any change of a tensor or of the computation.
TEST_P(Loading, TheIdentityIsThatOfTheModelAndOfNothingElse) {
  write(tensors_);
  const uint64_t id = load().identity;
  EXPECT_EQ(load_model(source_, LoadFormat::checkpoint).identity, id) << "in several files";
  LoadChoices composed;
  composed.kda_gate = GateChoice::automatic;
  EXPECT_EQ(load_model(directory_, LoadFormat::checkpoint, composed).identity, id);
  EXPECT_NE(load_model(directory_, LoadFormat::dummy).identity, id);
  Tensors same;
  for (const auto& [name, tensor] : tensors_) {
    const std::string prefix = "language_model.";
    Tensor t = tensor;
    if (name.find("conv1d") != std::string::npos) t.shape = {t.shape[0], t.shape[2]};
    same[name.starts_with(prefix) ? name.substr(prefix.size()) : prefix + name] = t;
  }
  same["vision_tower.a.weight"] = {DType::bf16, {2}, {0, 0, 0, 0}};
  write(same);
  EXPECT_EQ(load().identity, id);
  const ModelConfig config = read_config(directory_);
  for (const auto& [name, tensor] : tensors_) {
    Tensors other = tensors_;
    for (uint8_t& b : other[name].bytes) b ^= 1;
    write(other);
    const Checkpoint c = Checkpoint::open(directory_);
    EXPECT_NE(model_identity(config, &c, {}), id) << name;
  }
  write(tensors_);
  const Checkpoint c = Checkpoint::open(directory_);
  EXPECT_EQ(model_identity(config, &c, {}), id);
  ModelConfig changed = config;
  changed.rms_norm_eps *= 2;
  EXPECT_NE(model_identity(changed, &c, {}), id);
  changed = config;
  changed.moe.scaling += 1;
  EXPECT_NE(model_identity(changed, &c, {}), id);
  change_config([](std::string& text) { text.insert(text.find('{') + 1, "\"nonesuch\": 1, "); });
  EXPECT_EQ(load().identity, id) << "a field that nothing reads";
}

TEST_P(Loading, StrangeTensorsAreListedAndVisionIsOneLine) {
  Tensors more = tensors_;
  more["vision_tower.a.weight"] = more["mm_projector.b.weight"] = {DType::bf16, {2}, {0, 0, 0, 0}};
  more["model.layers.0.extra"] = {DType::f32, {1}, {0, 0, 0, 0}};
  write(more);
  const LoadedModel m = load();
  EXPECT_THAT(m.notes, testing::Contains("tensor model.layers.0.extra is not used by this model"));
  EXPECT_THAT(m.notes, testing::Contains("2 vision tensors are ignored: kdelta serves the text model"));
}

TEST_P(Loading, ValuesThatCanOnlyBeDamageAreRefused) {
  std::string name;
  (void)at("dt_bias", &name);
  Tensors damaged = tensors_;
  const float nan = NAN;
  std::memcpy(&damaged[name].bytes[8], &nan, 4);
  write(damaged);
  EXPECT_THAT(refusal(), testing::HasSubstr(name + ": element 2 is"));
  damaged = tensors_;
  damaged[name].dtype = DType::i32;
  write(damaged);
  EXPECT_THAT(refusal(), testing::HasSubstr("dtype I32, accepted for a vector"));
  if (GetParam() != "k3_a") return;
  (void)at("w1.weight_scale", &name);
  damaged = tensors_;
  damaged[name].bytes[5] = 255;
  write(damaged);
  EXPECT_THAT(refusal(), testing::HasSubstr(name + ": scale byte 255 (NaN) at offset 5"));
}

// Half bytes too, from headers alone as from the whole file.
TEST_P(Loading, ATensorOfADtypeThatItsKindDoesNotHaveIsRefusedByName) {
  for (const char* suffix : {"dt_bias", "A_log", "q_conv1d.weight", "input_layernorm.weight", "q_proj.weight"})
    for (const DType dtype : {DType::i32, DType::f4_e2m1}) {
      std::string name;
      Tensor t = at(suffix, &name);
      t.dtype = dtype;
      int64_t bytes = 0;
      ASSERT_TRUE(tensor_bytes(dtype, t.shape, &bytes));
      t.bytes.resize(static_cast<size_t>(bytes));
      Tensors changed = tensors_;
      changed[name] = t;
      write(changed);
      const std::string reason = str("tensor ", name, ": dtype ", dtype_name(dtype), ", accepted for a ");
      EXPECT_THAT(refusal(), testing::HasSubstr(reason));
      EXPECT_THAT(refusal(LoadFormat::headers), testing::HasSubstr(reason));
    }
}

// Case F4 end to end: one NaN weight gives an error, not an answer.
TEST_P(Loading, ANaNWeightEndsRequestsWithAnError) {
  std::string name;
  (void)at("lm_head.weight", &name);
  Tensors damaged = tensors_;
  damaged[name].bytes[0] = damaged[name].bytes[1] = 0xff;
  write(damaged);
  const LoadedModel m = load();
  runtime::Engine engine(*m.model, engine_config(DType::bf16));
  engine.submit({1, 2, 3}, {});
  std::string error;
  while (engine.step([&](const runtime::TokenEvent& e) {
    EXPECT_EQ(e.token, -1);
    if (e.error != nullptr) error = *e.error;
  })) {
  }
  EXPECT_THAT(error, testing::HasSubstr("no usable logit"));
}

// "FIELD": anything -> "FIELD": value, or the field out when there is no value.
std::function<void(std::string&)> set_field(const std::string& field, const std::string& value) {
  return [=](std::string& text) {
    const size_t at = text.find("\"" + field + "\": ");
    ASSERT_NE(at, std::string::npos) << field;
    const size_t colon = at + field.size() + 2;
    const size_t end = text.find_first_of(",\n}", colon);
    if (!value.empty())
      text.replace(colon + 2, end - colon - 2, value);
    else
      text.replace(at, field.size() + 2, "\"of_no_use\"");
  };
}

std::string config_refusal(const std::string& source, const std::function<void(std::string&)>& change) {
  const fs::path directory = fs::temp_directory_path() / ("kdelta_config_" + std::to_string(getpid()));
  fs::create_directories(directory);
  std::ifstream in(source + "/config.json");
  std::string text(std::istreambuf_iterator<char>(in), {});
  change(text);
  std::ofstream(directory / "config.json") << text;
  std::string message = "accepted";
  try {
    (void)read_config(directory);
  } catch (const Error& e) {
    message = e.what();
  }
  fs::remove_all(directory);
  return message;
}

std::function<void(std::string&)> replace(const std::string& from, const std::string& to) {
  return [=](std::string& text) {
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
  };
}

TEST_P(Loading, ConfigsAreRefusedByFieldAndReason) {
  EXPECT_THAT(config_refusal(source_, replace("\"hidden_size\"", "\"hidden_sise\"")),
              testing::HasSubstr("hidden_size: missing"));
  EXPECT_THAT(config_refusal(source_, replace("\"rms_norm_eps\": 1e-05", "\"rms_norm_eps\": \"small\"")),
              testing::HasSubstr("rms_norm_eps"));
  EXPECT_THAT(config_refusal(source_, replace("\"rms_norm_eps\": 1e-05", "\"rms_norm_eps\": 1e300")),
              testing::HasSubstr("fp32's range"));
  EXPECT_THAT(config_refusal(source_, replace("\"short_conv_kernel_size\": 4", "\"short_conv_kernel_size\": 9")),
              testing::HasSubstr("short_conv_kernel_size"));
  EXPECT_THAT(config_refusal(source_, replace("\"mla_use_nope\": true", "\"mla_use_nope\": false")),
              testing::HasSubstr("mla_use_nope"));
  EXPECT_THAT(config_refusal(source_, replace("\"num_key_value_heads\": 2", "\"num_key_value_heads\": 1")),
              testing::HasSubstr("num_key_value_heads"));
  EXPECT_THAT(config_refusal(source_, [](std::string& text) { text = "{\"architectures\": [\"LlamaForCausalLM\"]}"; }),
              testing::HasSubstr("KimiLinearForCausalLM"));
  EXPECT_THAT(config_refusal(source_, [](std::string& text) { text = "[]"; }), testing::HasSubstr("config.json"));
  for (const char* value : {"0", "-1.5"})
    EXPECT_THAT(config_refusal(source_, set_field("routed_scaling_factor", value)),
                testing::HasSubstr("routed_scaling_factor: "));
  EXPECT_EQ(config_refusal(source_, [](std::string&) {}), "accepted");
}

// Products of sizes are sizes too: what they make fits 64 bits, and nothing is allocated for them before.
TEST_P(Loading, SizesThatNoModelHasAreRefusedAloneAndTogether) {
  for (const char* field : {"hidden_size", "vocab_size", "intermediate_size", "num_experts", "kv_lora_rank"})
    for (const char* value : {"1048577", "1073741824", "9223372036854775807", "-1"})
      EXPECT_THAT(config_refusal(source_, set_field(field, value)),
                  testing::AllOf(testing::HasSubstr(std::string(field) + ": integer " + value),
                                 testing::HasSubstr("expected")));
  for (const auto& [field, formula] : std::vector<std::pair<const char*, const char*>>{
           {"num_heads", "num_heads * head_dim of at most 1048576"},
           {"num_experts", "num_experts * num_hidden_layers of at most 262144"},
           {"kv_lora_rank", "kv_lora_rank + qk_rope_head_dim of at most 1048576"}})
    EXPECT_THAT(config_refusal(source_, set_field(field, "1048576")), testing::HasSubstr(formula));
  EXPECT_THAT(config_refusal(source_,
                             [](std::string& text) {
                               set_field("num_attention_heads", "1048576")(text);
                               set_field("num_key_value_heads", "1048576")(text);
                             }),
              testing::HasSubstr("num_attention_heads * (qk_nope_head_dim + qk_rope_head_dim) of at most 1048576"));
  EXPECT_THAT(config_refusal(source_, set_field("num_hidden_layers", "4097")), testing::HasSubstr("num_hidden_layers"));
}

TEST(LoadingKimiK3, FieldsWithoutWhichItIsAnotherModelAreRequired) {
  const std::string k3 = "tests/golden/k3_a", text = "text_config.";
  for (const char* field : {"activation_situ_beta", "activation_situ_linear_beta"}) {
    for (const char* value : {"", "null"})
      EXPECT_THAT(config_refusal(k3, set_field(field, value)), testing::HasSubstr(text + field + ": "))
          << field << " " << value;
    for (const char* value : {"0", "0.0", "-4"})
      EXPECT_THAT(config_refusal(k3, set_field(field, value)),
                  testing::AllOf(testing::HasSubstr(text + field + ": "), testing::HasSubstr("a positive number")))
          << field << " " << value;
  }
}

// The absent bound is the softplus decay; no released Kimi K3 is without it, so it is said.
TEST(LoadingKimiK3, WithoutADecayBoundTheDecayIsSoftplusAndThatIsSaid) {
  const fs::path directory = fs::temp_directory_path() / ("kdelta_decay_" + std::to_string(getpid()));
  fs::create_directories(directory);
  std::ifstream in("tests/golden/k3_a/config.json");
  std::string text(std::istreambuf_iterator<char>(in), {});
  set_field("gate_lower_bound", "")(text);
  std::ofstream(directory / "config.json") << text;
  const LoadedModel m = load_model(directory.string(), LoadFormat::dummy);
  EXPECT_FALSE(m.config.kda.gate_lower_bound.has_value());
  EXPECT_THAT(m.notes,
              testing::Contains("text_config.linear_attn_config.gate_lower_bound is absent: the decay is softplus"));
  fs::remove_all(directory);
}

// Case D5: a switch that is off leaves out the tensor that only it would use.
TEST_P(Loading, ASwitchThatIsOffWhileItsTensorIsThereIsRefusedByBoth) {
  struct Off {
    const char *field, *value, *tensor;
  };
  const std::vector<Off> k3 = {{"latent_moe_use_norm", "", "block_sparse_moe.routed_expert_norm.weight"},
                               {"latent_moe_use_norm", "false", "block_sparse_moe.routed_expert_norm.weight"},
                               {"latent_moe_use_norm", "null", "block_sparse_moe.routed_expert_norm.weight"},
                               {"mla_use_output_gate", "", "self_attn.g_proj.weight"},
                               {"mla_use_output_gate", "false", "self_attn.g_proj.weight"},
                               {"num_shared_experts", "0", "block_sparse_moe.shared_experts."}};
  const std::vector<Off> linear = {{"num_shared_experts", "0", "block_sparse_moe.shared_experts."}};
  write(tensors_);
  for (const Off& off : GetParam() == "k3_a" ? k3 : linear) {
    change_config(set_field(off.field, off.value));
    EXPECT_THAT(refusal(), testing::AllOf(testing::HasSubstr(off.tensor), testing::HasSubstr(": only used with "),
                                          testing::HasSubstr(std::string(off.field) + ": ")))
        << off.field << " " << off.value;
  }
}

// Absent means off for Kimi-Linear, as long as nothing in the file says otherwise.
TEST_P(Loading, ATensorOfASwitchThatTheConfigDoesNotHaveIsRefused) {
  if (GetParam() != "linear_a") GTEST_SKIP() << "Kimi K3 has these tensors";
  struct Extra {
    const char *like, *name, *field;
  };
  for (const Extra& e : std::vector<Extra>{
           {"self_attn.kv_a_proj_with_mqa.weight", "self_attn.g_proj.weight", "mla_use_output_gate"},
           {"self_attn.g_a_proj.weight", "self_attn.g_proj.weight", "linear_attn_config.use_full_rank_gate"},
           {"self_attn.kv_a_proj_with_mqa.weight", "self_attn.q_a_layernorm.weight", "q_lora_rank"},
           {"block_sparse_moe.gate.weight", "block_sparse_moe.routed_expert_up_proj.weight",
            "routed_expert_hidden_size"},
           {"block_sparse_moe.gate.weight", "block_sparse_moe.experts.99.w1.weight", "num_experts"},
           {"block_sparse_moe.gate.weight", "mlp.gate_proj.weight", "first_k_dense_replace"},
           {"mlp.gate_proj.weight", "block_sparse_moe.gate.weight", "first_k_dense_replace"},
           {"mlp.gate_proj.weight", "self_attention_res_norm.weight", "architectures"}}) {
    std::string name;
    (void)at(e.like, &name);
    const std::string extra = name.substr(0, name.size() - std::strlen(e.like)) + e.name;
    Tensors more = tensors_;
    more[extra] = {DType::f32, {1}, {0, 0, 0, 0}};
    write(more);
    EXPECT_THAT(refusal(), testing::AllOf(testing::HasSubstr("tensor " + extra + ": only used with "),
                                          testing::HasSubstr(std::string(" ") + e.field + ": ")))
        << extra;
  }
}

TEST_P(Loading, AKimiLinearThatMixesResidualsIsRefused) {
  if (GetParam() != "linear_a") GTEST_SKIP() << "a Kimi K3 mixes them";
  write(tensors_);
  change_config(replace("\"vocab_size\"", "\"attn_res_block_size\": 2,\n  \"vocab_size\""));
  EXPECT_THAT(refusal(), testing::HasSubstr("attn_res_block_size: 2, expected absent"));
}

TEST_P(Loading, OneWeightUnderBothPrefixesIsRefused) {
  for (const char* suffix : {"model.norm.weight", "layers.1.input_layernorm.weight", "lm_head.weight"}) {
    std::string name;
    const Tensor& t = at(suffix, &name);
    const std::string prefix = "language_model.";
    const std::string twin = name.starts_with(prefix) ? name.substr(prefix.size()) : prefix + name;
    Tensors more = tensors_;
    more[twin] = t;
    write(more);
    EXPECT_THAT(refusal(), testing::HasSubstr("tensor " + twin + ": the same weight as " + name));
  }
}

TEST_P(Loading, LayersPastTheLastAreIgnoredAndCounted) {
  std::string first;
  (void)at("layers.0.input_layernorm.weight", &first);
  const std::string layers = first.substr(0, first.find("0."));
  Tensors more = tensors_;
  for (const char* number : {"6", "99999999999999999999"})
    more[layers + number + ".input_layernorm.weight"] = {DType::f32, {1}, {0, 0, 0, 0}};
  write(more);
  const LoadedModel m = load();
  EXPECT_THAT(m.notes, testing::Contains("2 tensors of layers past num_hidden_layers (" +
                                         std::to_string(m.config.layers()) + ") are ignored"));
  Tensors draft = tensors_;
  for (const char* part : {"input_layernorm", "eh_proj", "enorm"})
    draft[layers + "6." + part + ".weight"] = {DType::f32, {1}, {0, 0, 0, 0}};
  write(draft);
  EXPECT_THAT(load().notes, testing::Contains("3 tensors of multi-token prediction layers past num_hidden_layers (" +
                                              std::to_string(load().config.layers()) + ") are ignored"));
}

TEST_P(Loading, ATiedHeadThatDiffersFromTheEmbeddingIsRefused) {
  change_config([](std::string& text) {
    const size_t last = text.rfind("\"tie_word_embeddings\": false");
    ASSERT_NE(last, std::string::npos);
    text.replace(text.find("false", last), 5, "true");
  });
  std::string head, embedding;
  (void)at("lm_head.weight", &head);
  const Tensor& e = at("embed_tokens.weight", &embedding);
  Tensors tied = tensors_;
  const std::string reason = head + ": differs from " + embedding;
  write(tied);
  EXPECT_THAT(refusal(), testing::AllOf(testing::HasSubstr(reason), testing::HasSubstr("tie_word_embeddings: true")));
  tied[head] = e;
  tied[head].bytes.back() ^= 1;
  write(tied);
  EXPECT_THAT(refusal(), testing::HasSubstr(reason));
  tied[head] = e;
  write(tied);
  EXPECT_EQ(refusal(), "loaded");
  tied.erase(head);
  write(tied);
  EXPECT_EQ(refusal(), "loaded");
}

TEST_P(Loading, DummyWeightsRunAnyConfig) {
  const LoadedModel m = load_model(source_, LoadFormat::dummy);
  const std::vector<float> l = logits(m);
  for (float x : l) ASSERT_TRUE(std::isfinite(x));
  EXPECT_NE(l.front(), l.back());
}

TEST_P(Loading, HeadersAloneGiveTheMemoryPlanThatAnEngineKeepsTo) {
  const LoadedModel headers = load_model(source_, LoadFormat::headers),
                    full = load_model(source_, LoadFormat::checkpoint);
  const runtime::EngineConfig c = engine_config(DType::bf16);
  const runtime::MemoryPlan a = runtime::plan_memory(*headers.model, c), b = runtime::plan_memory(*full.model, c);
  EXPECT_EQ(a.total(), b.total());
  EXPECT_EQ(headers.report.mapped_bytes, full.report.mapped_bytes);
  // The scratch arena is exactly the planned size; outgrowing it would throw.
  const std::vector<int32_t> ids(1000, 7);
  EXPECT_EQ(run_logits(*full.model, c, ids).logits.size(), 1000u * 512u);
}

}  // namespace
}  // namespace kdelta::test
