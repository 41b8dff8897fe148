// A small checkpoint that the bytes of a fuzzer have changed: a valid Kimi-Linear or Kimi K3 of three layers first,
// then one step after another away from it - quantised matrices, other shapes and dtypes, tensors that are missing,
// doubled or renamed, fields of the config, headers that lie, shards that end early.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "kdelta/io/fuzz_input.h"
#include "kdelta/io/json.h"
#include "kdelta/io/safetensors.h"
#include "kdelta/model/model.h"

namespace kdelta::fuzz {

struct FileTensor {
  std::string name, dtype;
  std::vector<int64_t> shape;
  std::vector<uint8_t> bytes;
  int shard = 0;
};

// Numbers, words and other things that a field may turn into.
inline Json odd_value(Input& in) {
  static const Json kOdd[] = {nullptr,
                              true,
                              false,
                              0,
                              1,
                              2,
                              3,
                              4,
                              8,
                              16,
                              31,
                              32,
                              64,
                              100,
                              -1,
                              1 << 20,
                              1 << 30,
                              int64_t{1} << 40,
                              INT64_MAX,
                              INT64_MIN,
                              1e-5,
                              -0.5,
                              1e300,
                              "",
                              "float",
                              "int",
                              "group",
                              "channel",
                              "compressed-tensors",
                              "gptq",
                              Json::Array{},
                              Json::Array{1, 2, 3},
                              Json::Object{},
                              Json::huge_integer("99999999999999999999")};
  return kOdd[in.pick(std::size(kOdd))];
}

inline Json mx_arguments(int64_t bits, bool dynamic = false) {
  return Json::Object{{"num_bits", bits},  {"type", "float"},    {"strategy", "group"},         {"group_size", 32},
                      {"symmetric", true}, {"dynamic", dynamic}, {"scale_dtype", "torch.uint8"}};
}

inline Json mx_config(bool four, bool eight, bool activations) {
  Json::Object groups;
  const auto group = [&](int64_t bits, bool inputs) {
    groups.push_back({str("group_", groups.size()),
                      Json::Object{{"weights", mx_arguments(bits)},
                                   {"input_activations", inputs ? mx_arguments(8, true) : Json(nullptr)},
                                   {"targets", Json::Array{"Linear"}}}});
  };
  if (four) group(4, false);
  if (eight) group(8, activations);
  return Json::Object{{"quant_method", "compressed-tensors"}, {"config_groups", std::move(groups)}};
}

class ChangedCheckpoint {
 public:
  explicit ChangedCheckpoint(Input& in) : in_(in) {
    k3_ = in.pick(2) == 1;
    config_ = k3_ ? Json::Object{{"architectures", Json::Array{"KimiK3ForConditionalGeneration"}},
                                 {"text_config", text_config()}}
                  : text_config();
    if (const size_t said = in.pick(4); said > 0)
      fields().set("quantization_config", mx_config(said & 1, said & 2, said == 3));
    write_config();
    for (const PlacedSpec& p : make_model(read_config(directory()))->weights()) add(p);
    // Half of the time some matrices are quantised as they should be, so that what follows meets whole loaders.
    for (size_t i = in.pick(32); i > 0; --i) quantise(tensors_[in.pick(tensors_.size())]);
    for (int i = 0; i < 12 && !in.empty(); ++i) change();
    write_config();
    write_shards();
  }

  static const std::string& directory() {
    static const std::string path = [] {
      const std::filesystem::path p =
          std::filesystem::temp_directory_path() / ("kdelta_fuzz_" + std::to_string(getpid()));
      std::filesystem::create_directories(p / "model");
      return (p / "model").string();
    }();
    return path;
  }

 private:
  Json text_config() const {
    Json c = Json::Object{{"vocab_size", 8},
                          {"hidden_size", 32},
                          {"intermediate_size", 32},
                          {"rms_norm_eps", 1e-5},
                          {"num_hidden_layers", 3},
                          {"linear_attn_config", Json::Object{{"num_heads", 2},
                                                              {"head_dim", 16},
                                                              {"short_conv_kernel_size", 4},
                                                              {"kda_layers", Json::Array{1, 2}},
                                                              {"full_attn_layers", Json::Array{3}}}},
                          {"num_attention_heads", 2},
                          {"num_key_value_heads", 2},
                          {"qk_nope_head_dim", 16},
                          {"qk_rope_head_dim", 8},
                          {"v_head_dim", 16},
                          {"kv_lora_rank", 32},
                          {"mla_use_nope", true},
                          {"num_experts", 2},
                          {"first_k_dense_replace", 1},
                          {"moe_layer_freq", 1},
                          {"num_experts_per_token", 1},
                          {"moe_intermediate_size", 32},
                          {"num_shared_experts", 1},
                          {"moe_renormalize", true},
                          {"routed_scaling_factor", 1.5},
                          {"moe_router_activation_func", "sigmoid"},
                          {"hidden_act", "silu"}};
    if (!k3_) {
      c.set("architectures", Json::Array{"KimiLinearForCausalLM"});
      return c;
    }
    Json linear = *c.find("linear_attn_config");
    linear.set("use_full_rank_gate", true);
    linear.set("gate_lower_bound", -5.0);
    c.set("linear_attn_config", std::move(linear));
    for (auto& [name, value] :
         std::initializer_list<std::pair<const char*, Json>>{{"hidden_act", "situ"},
                                                             {"activation_situ_beta", 4.0},
                                                             {"activation_situ_linear_beta", 25.0},
                                                             {"attn_res_block_size", 2},
                                                             {"q_lora_rank", 32},
                                                             {"mla_use_output_gate", true},
                                                             {"routed_expert_hidden_size", 32},
                                                             {"latent_moe_use_norm", true}})
      c.set(name, value);
    return c;
  }

  void add(const PlacedSpec& p) {
    const WeightSpec& s = p.spec;
    const auto parts = static_cast<int64_t>(s.names.size());
    for (const std::string& name : s.names) {
      FileTensor t{.name = p.prefix + name + s.suffix, .dtype = "F32"};
      if (s.kind == WeightKind::matrix)
        t.dtype = "BF16", t.shape = {s.shape[0], s.shape[1]};
      else if (s.kind == WeightKind::conv_taps)
        t.shape = {s.shape[0] / parts, 1, s.shape[1]};
      else
        t.shape = {s.shape[0]};
      fit(t);
      tensors_.push_back(std::move(t));
    }
  }

  // As many bytes as the shape asks for, when that is a reasonable number.
  static void fit(FileTensor& t) {
    DType dtype;
    int64_t bytes = 0;
    if (parse_dtype(t.dtype, &dtype) && tensor_bytes(dtype, t.shape, &bytes) && bytes <= 1 << 16)
      t.bytes.resize(static_cast<size_t>(bytes), 0x3c);
  }

  void quantise(FileTensor& t) {
    constexpr std::string_view kWeight = ".weight";
    if (t.dtype != "BF16" || t.shape.size() != 2 || !t.name.ends_with(kWeight)) return;
    FileTensor scale{.name = t.name + "_scale", .dtype = in_.pick(4) == 1 ? "F8_E8M0" : "U8", .shape = t.shape};
    scale.shape[1] /= 32;
    fit(scale);
    switch (in_.pick(3)) {
      case 0:
        t.dtype = "F8_E4M3";
        break;
      case 1:
        t.dtype = "F8_E5M2";
        break;
      default:
        t.dtype = "U8";
        t.name += "_packed";
        t.shape[1] /= 2;
    }
    fit(t);
    tensors_.push_back(std::move(scale));
  }

  void change() {
    FileTensor& t = tensors_[in_.pick(tensors_.size())];
    switch (in_.pick(14)) {
      case 0:
        return quantise(t);
      case 1: {
        static constexpr const char* kTypes[] = {"F32", "BF16", "F16", "F8_E4M3", "F8_E5M2", "F8_E8M0",
                                                 "U8",  "I8",   "I32", "I64",     "F4",      "BOOL"};
        t.dtype = in_.of(kTypes);
        return fit(t);
      }
      case 2: {
        static constexpr int64_t kSizes[] = {0, 1, 2, 3, 16, 31, 32, 33, 48, 64, 1 << 20, int64_t{1} << 40, INT64_MAX};
        if (!t.shape.empty()) t.shape[in_.pick(t.shape.size())] = in_.of(kSizes);
        return fit(t);
      }
      case 3:
        if (in_.pick(2) == 0 && !t.shape.empty())
          t.shape.pop_back();
        else
          t.shape.push_back(static_cast<int64_t>(in_.pick(3)));
        return fit(t);
      case 4:
        if (tensors_.size() > 1) std::swap(t, tensors_.back()), tensors_.pop_back();
        return;
      case 5: {
        static constexpr const char* kEnds[] = {"_scale", "_packed", ".weight", "_scale_packed", "", "x"};
        t.name += in_.of(kEnds);
        return;
      }
      case 6: {
        FileTensor copy = t;
        static constexpr const char* kHeads[] = {"language_model.", "model.", "vision_tower.", ""};
        copy.name = in_.of(kHeads) + copy.name;
        tensors_.push_back(std::move(copy));
        return;
      }
      case 7:
        if (!t.bytes.empty()) t.bytes[in_.pick(t.bytes.size())] = in_.byte();
        return;
      case 8:
        t.shard = static_cast<int>(in_.pick(3));
        return;
      case 9:
        t.bytes.resize(in_.pick(64));  // not what the shape says
        return;
      case 10:
        truncated_ = in_.pick(512);
        return;
      case 11:
        return change_field(fields());
      case 12:
        if (Json* q = find(fields(), "quantization_config")) return change_deeply(*q);
        return;
      default:
        return change_deeply(config_);
    }
  }

  static Json* find(Json& object, std::string_view key) {
    if (object.kind() != Json::Kind::object) return nullptr;
    for (JsonMember& m : object.object())
      if (m.key == key) return &m.value;
    return nullptr;
  }

  void change_field(Json& object) {
    if (object.kind() != Json::Kind::object || object.object().empty()) return;
    auto& members = object.object();
    const size_t i = in_.pick(members.size());
    if (in_.pick(8) == 0)
      members.erase(members.begin() + static_cast<std::ptrdiff_t>(i));
    else
      members[i].value = odd_value(in_);
  }

  // A member at any depth.
  void change_deeply(Json& object) {
    if (object.kind() != Json::Kind::object || object.object().empty()) return;
    Json& inner = object.object()[in_.pick(object.object().size())].value;
    if (inner.kind() == Json::Kind::object && in_.pick(4) != 0) return change_deeply(inner);
    change_field(object);
  }

  Json& fields() {
    Json* text = k3_ ? find(config_, "text_config") : nullptr;
    return text != nullptr ? *text : config_;
  }

  void write_config() const { std::ofstream(directory() + "/config.json") << json_text(config_); }

  void write_shards() const {
    namespace fs = std::filesystem;
    for (const auto& entry : fs::directory_iterator(directory()))
      if (entry.path().filename() != "config.json") fs::remove(entry.path());
    const bool sharded = std::any_of(tensors_.begin(), tensors_.end(), [](const FileTensor& t) { return t.shard > 0; });
    if (!sharded) return write_shard(0, "model.safetensors");
    Json::Object map;
    for (int shard = 0; shard < 3; ++shard) {
      const std::string name = str("model-", shard, ".safetensors");
      write_shard(shard, name);
      for (const FileTensor& t : tensors_)
        if (t.shard == shard &&
            std::none_of(map.begin(), map.end(), [&](const JsonMember& m) { return m.key == t.name; }))
          map.push_back({t.name, name});
    }
    std::ofstream(directory() + "/model.safetensors.index.json")
        << json_text(Json::Object{{"weight_map", std::move(map)}});
  }

  void write_shard(int shard, const std::string& name) const {
    Json::Object header;
    std::string data;
    for (const FileTensor& t : tensors_) {
      if (t.shard != shard) continue;
      Json::Array shape(t.shape.begin(), t.shape.end());
      header.push_back(
          {t.name, Json::Object{{"dtype", t.dtype},
                                {"shape", std::move(shape)},
                                {"data_offsets", Json::Array{static_cast<int64_t>(data.size()),
                                                             static_cast<int64_t>(data.size() + t.bytes.size())}}}});
      data.append(t.bytes.begin(), t.bytes.end());
    }
    const std::string text = json_text(header);
    const uint64_t length = text.size();
    std::string file(8, '\0');
    std::memcpy(file.data(), &length, 8);
    file += text + data;
    file.resize(file.size() - std::min(file.size(), truncated_));
    std::ofstream(directory() + "/" + name, std::ios::binary) << file;
  }

  Input& in_;
  bool k3_ = false;
  Json config_;
  std::vector<FileTensor> tensors_;
  size_t truncated_ = 0;  // bytes that every shard lacks at its end
};

}  // namespace kdelta::fuzz
