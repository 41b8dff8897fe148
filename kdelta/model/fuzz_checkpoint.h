// A small checkpoint that the bytes of a fuzzer have changed: a valid Kimi-Linear or Kimi K3 of three layers first,
// with q|k|v, experts and the rest in formats of their own; then one step after another away from it - single matrices
// in another format, other shapes and dtypes, tensors that are missing, doubled or renamed, fields of the config,
// headers that lie, shards that end early.
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
    write_config();
    for (const PlacedSpec& p : make_model(read_config(directory()))->weights()) add(p);
    quantise_groups();
    if (in.pick(4) == 1) merge_taps();
    for (int i = 0; i < 12 && !in.empty(); ++i) change();
    write_config();
    write_shards();
  }

  // Other tensors under the same config, in new files.
  void change_tensors() {
    for (size_t i = 1 + in_.pick(4); i > 0; --i) change_tensor();
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
                          {"intermediate_size", 64},
                          {"rms_norm_eps", 1e-5},
                          {"num_hidden_layers", 3},
                          {"linear_attn_config", Json::Object{{"num_heads", 4},
                                                              {"head_dim", 16},
                                                              {"short_conv_kernel_size", 4},
                                                              {"kda_layers", Json::Array{1, 2}},
                                                              {"full_attn_layers", Json::Array{3}}}},
                          {"num_attention_heads", 4},
                          {"num_key_value_heads", 4},
                          {"qk_nope_head_dim", 16},
                          {"qk_rope_head_dim", 8},
                          {"v_head_dim", 16},
                          {"kv_lora_rank", 32},
                          {"mla_use_nope", true},
                          {"num_experts", 2},
                          {"first_k_dense_replace", 1},
                          {"moe_layer_freq", 1},
                          {"num_experts_per_token", 1},
                          {"moe_intermediate_size", 64},
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

  // As many bytes as the shape asks for, when that is a reasonable number: near 2^-7 in every format and as scales, no
  // two rows alike.
  static void fit(FileTensor& t) {
    DType dtype;
    int64_t bytes = 0;
    if (!parse_dtype(t.dtype, &dtype) || !tensor_bytes(dtype, t.shape, &bytes) || bytes > 1 << 16) return;
    const auto width = static_cast<size_t>((dtype_bits(dtype) + 7) / 8);
    const bool scale = t.name.ends_with("_scale"), narrow = width == 1 && !scale;
    t.bytes.resize(static_cast<size_t>(bytes));
    for (size_t i = 0; i < t.bytes.size(); ++i) {
      const auto mixed = static_cast<uint8_t>(i * 151 >> 5 ^ i * 37);
      if (scale)
        t.bytes[i] = static_cast<uint8_t>(120 + mixed % 4);
      else if (narrow)
        t.bytes[i] = mixed & 0x9f;  // no code of a NaN
      else
        t.bytes[i] = i % width == width - 1 ? 0x3c : mixed;
    }
  }

  enum class Form : uint8_t { bf16, e4m3, e5m2, fp4 };
  // Mostly one of the two types of 8 bits: a description means one.
  Form pick_form() {
    const Form other = eight_ == Form::e4m3 ? Form::e5m2 : Form::e4m3;
    const Form forms[] = {Form::bf16, eight_, Form::fp4, Form::bf16, eight_, Form::fp4, eight_, other};
    return in_.of(forms);
  }

  static bool is_plain_matrix(const FileTensor& t) {
    return t.dtype == "BF16" && t.shape.size() == 2 && t.name.ends_with(".weight");
  }
  void quantise(size_t i, Form form) {
    if (form == Form::bf16 || !is_plain_matrix(tensors_[i])) return;
    FileTensor& t = tensors_[i];
    FileTensor scale{.name = t.name + "_scale", .dtype = in_.pick(4) == 1 ? "F8_E8M0" : "U8", .shape = t.shape};
    scale.shape[1] /= 32;
    fit(scale);
    scale.shard = t.shard;
    t.dtype = form == Form::e4m3 ? "F8_E4M3" : form == Form::e5m2 ? "F8_E5M2" : "U8";
    if (form == Form::fp4) t.name += "_packed", t.shape[1] /= 2;
    fit(t);
    tensors_.push_back(std::move(scale));
  }

  // q|k|v in one format, experts in one, gates and what else there is perhaps in one: as releases and `kdelta quantize`
  // have it, with a description that fits three times of four.
  void quantise_groups() {
    if (in_.pick(4) == 1) eight_ = Form::e5m2;
    const Form qkv = pick_form(), experts = pick_form(), gates = in_.pick(4) == 1 ? pick_form() : Form::bf16,
               rest = in_.pick(4) == 1 ? pick_form() : Form::bf16;
    const auto form_of = [&](const std::string& name) {
      const auto has = [&](const char* part) { return name.find(part) != name.npos; };
      if (has(".experts.")) return experts;
      const bool kda = !has("layers.2.");
      if (kda && (has(".q_proj.") || has(".k_proj.") || has(".v_proj."))) return qkv;
      if (kda && (has(".b_proj.") || has(".f_a_proj.") || has(".g_a_proj.") || has(".g_proj."))) return gates;
      return has(".gate.") || has("embed") ? Form::bf16 : rest;
    };
    bool four = false, eight = false;
    for (size_t i = 0, n = tensors_.size(); i < n; ++i) {
      const Form form = form_of(tensors_[i].name);
      if (!is_plain_matrix(tensors_[i]) || tensors_[i].shape[1] % 32 != 0) continue;
      quantise(i, form);
      four |= form == Form::fp4;
      eight |= form == Form::e4m3 || form == Form::e5m2;
    }
    const size_t said = in_.pick(8);
    if (said > 5) four = said & 1, eight = true;
    if (!four && !eight && said != 5) return;
    Json config = mx_config(four, eight, said % 2 == 1);
    // A scheme of q|k|v's own, told from the other by its targets.
    if (said == 4)
      find(config, "config_groups")
          ->set("group_qkv", Json::Object{{"weights", mx_arguments(qkv == Form::fp4 ? 4 : 8)},
                                          {"input_activations", mx_arguments(8, true)},
                                          {"targets", Json::Array{"re:.*self_attn\\.(q|k|v)_proj$"}}});
    fields().set("quantization_config", std::move(config));
  }

  // The taps of q, k and v of a layer as the one tensor that kernels read.
  void merge_taps() {
    for (const char* layer : {"layers.0.", "layers.1."}) {
      FileTensor merged{.dtype = "F32"};
      std::vector<FileTensor> kept;
      for (FileTensor& t : tensors_) {
        const size_t at = t.name.find("_conv1d.");
        if (t.name.find(layer) == t.name.npos || at == t.name.npos) {
          kept.push_back(std::move(t));
          continue;
        }
        merged.name = t.name.substr(0, at - 1) + t.name.substr(at + 1);
        merged.shape = t.shape;
      }
      if (merged.name.empty()) return;
      merged.shape[0] *= 3;
      fit(merged);
      tensors_ = std::move(kept);
      tensors_.push_back(std::move(merged));
    }
  }

  void change() {
    switch (in_.pick(14)) {
      case 11:
        return change_field(fields());
      case 12:
        if (Json* q = find(fields(), "quantization_config")) return change_deeply(*q);
        return;
      case 13:
        return change_deeply(config_);
      default:
        return change_tensor();
    }
  }

  void change_tensor() {
    const size_t index = in_.pick(tensors_.size());
    FileTensor& t = tensors_[index];
    switch (in_.pick(11)) {
      case 0:
        return quantise(index, pick_form());
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
      default:
        truncated_ = in_.pick(512);
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
  Form eight_ = Form::e4m3;
  Json config_;
  std::vector<FileTensor> tensors_;
  size_t truncated_ = 0;  // bytes that every shard lacks at its end
};

}  // namespace kdelta::fuzz
