#include "kdelta/api/quantize_plan.h"

#include <algorithm>
#include <charconv>

#include "kdelta/core/check.h"
#include "kdelta/core/matrix.h"
#include "kdelta/io/safetensors.h"

namespace kdelta {
namespace {

constexpr const char* kGroupName[] = {"KDA q|k|v", "routed experts", "the rest"};
constexpr std::string_view kSuffix[] = {".weight", ".weight_packed", ".weight_scale"};

const char* format_name(WeightFormat format) {
  switch (format) {
    case WeightFormat::keep:
      return "as it is";
    case WeightFormat::mxfp8:
      return "MXFP8";
    case WeightFormat::mxfp4:
      return "MXFP4";
    case WeightFormat::int8:
      return "int8";
  }
  KDELTA_UNREACHABLE("weight format", format);
}

WeightFormat parse_format(const char* option, const std::string& name) {
  if (name == "keep") return WeightFormat::keep;
  if (name == "mxfp8") return WeightFormat::mxfp8;
  if (name == "mxfp4") return WeightFormat::mxfp4;
  if (name == "int8") return WeightFormat::int8;
  fail(ErrorCode::invalid_argument, option, ": '", name, "', accepted: mxfp8, mxfp4, int8, keep");
}

MxScaleRule parse_rule(const char* option, const std::string& name) {
  if (name == "floor") return MxScaleRule::floor;
  if (name == "rceil") return MxScaleRule::rceil;
  if (name == "even") return MxScaleRule::even;
  fail(ErrorCode::invalid_argument, option, ": '", name, "', accepted: floor, rceil, even");
}

// Takes `head` off the front of `text` when it is there.
bool take(std::string_view& text, std::string_view head) {
  if (!text.starts_with(head)) return false;
  text.remove_prefix(head.size());
  return true;
}

// A number as names of tensors write it: digits, none of them a leading zero.
bool take_number(std::string_view& text, int64_t* number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
  if (error != std::errc{} || text.front() == '-' || (text.front() == '0' && end != text.data() + 1)) return false;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return true;
}

// The group of a tensor and, of a matrix that belongs to one, the name of its module.
struct Place {
  QuantGroup group = QuantGroup::rest;
  std::string module;
  std::string_view suffix;
};

Place place_of(const std::string& name, const ModelConfig& config) {
  std::string_view rest = name;
  take(rest, "language_model.");
  int64_t layer = 0, expert = 0;
  if (!take(rest, "model.layers.") || !take_number(rest, &layer) || layer >= config.layers()) return {};
  Place p;
  const auto suffix = std::ranges::find_if(kSuffix, [&](std::string_view s) { return rest.ends_with(s); });
  if (suffix == std::end(kSuffix)) return {};
  rest.remove_suffix(suffix->size());
  const bool kda = config.mixer[static_cast<size_t>(layer)] == MixerKind::kda;
  if (rest == ".self_attn.q_proj" || rest == ".self_attn.k_proj" || rest == ".self_attn.v_proj") {
    if (!kda) return {};
    p.group = QuantGroup::qkv;
  } else if (take(rest, ".block_sparse_moe.experts.") && take_number(rest, &expert)) {
    if (rest != ".w1" && rest != ".w2" && rest != ".w3") return {};
    p.group = QuantGroup::experts;
  } else {
    return {};
  }
  p.suffix = *suffix;
  p.module = name.substr(0, name.size() - suffix->size());
  return p;
}

class Planner {
 public:
  Planner(const Checkpoint& checkpoint, const ModelConfig& config, const QuantizeSettings& settings)
      : checkpoint_(checkpoint), config_(config), settings_(settings) {}

  PlannedTensor plan(const TensorInfo& t) const {
    const Place place = place_of(t.name, config_);
    PlannedTensor p{.source = &t, .group = place.group};
    const WeightFormat wanted = settings_.format[static_cast<size_t>(place.group)];
    if (wanted == WeightFormat::keep || has_format(t, place, wanted)) {
      if (place.group == QuantGroup::rest) refuse_quantised(t);
      p.outputs = {{t.name, t.dtype, t.shape, nullptr}};
      return p;
    }
    check_source(t, place, wanted);
    p.format = wanted;
    const std::string weight = place.module + ".weight", scale = place.module + ".weight_scale";
    const int64_t rows = t.shape[0], cols = t.shape[1];
    switch (wanted) {
      case WeightFormat::mxfp8:
        p.outputs = {{weight, DType::f8_e4m3, {rows, cols}, nullptr},
                     {scale, DType::u8, {rows, cols / kMxBlock}, nullptr}};
        return p;
      case WeightFormat::mxfp4:
        p.outputs = {{weight + "_packed", DType::u8, {rows, cols / 2}, nullptr},
                     {scale, DType::u8, {rows, cols / kMxBlock}, nullptr}};
        return p;
      case WeightFormat::int8:
        p.outputs = {{weight, DType::i8, {rows, cols}, nullptr}, {scale, DType::f32, {rows, 1}, nullptr}};
        return p;
      case WeightFormat::keep:
        break;
    }
    KDELTA_UNREACHABLE("weight format", wanted);
  }

 private:
  // True for a part of a matrix that is stored as wanted already.
  bool has_format(const TensorInfo& t, const Place& place, WeightFormat wanted) const {
    const TensorInfo* weight = checkpoint_.find(place.module + ".weight");
    if (wanted == WeightFormat::mxfp8) return weight != nullptr && weight->dtype == DType::f8_e4m3;
    if (wanted == WeightFormat::int8) return weight != nullptr && weight->dtype == DType::i8;
    return place.suffix != ".weight" && weight == nullptr && t.dtype == DType::u8;
  }

  void check_source(const TensorInfo& t, const Place& place, WeightFormat wanted) const {
    if (place.suffix != ".weight" || (t.dtype != DType::bf16 && t.dtype != DType::f32))
      // The checkpoint is whole: what is wrong is what was asked for.
      fail(ErrorCode::invalid_argument, place.group == QuantGroup::qkv ? "qkv" : "experts", ": ",
           checkpoint_.file_path(t.file), ": tensor ", printable(t.name), ": dtype ", dtype_name(t.dtype), " of ",
           kGroupName[static_cast<size_t>(place.group)],
           ", only BF16 and F32 are quantised; 'keep' leaves the group as it is");
    if (t.shape.size() != 2) refuse(t, str("shape ", shape_text(t.shape), ", expected a matrix"));
    if (wanted != WeightFormat::int8 && t.shape[1] % kMxBlock != 0)
      refuse(t, str(t.shape[1], " columns, expected a multiple of the scale block ", kMxBlock));
  }

  // The description that we write would not name it.
  void refuse_quantised(const TensorInfo& t) const {
    if (t.name.ends_with(".weight_packed") || t.name.ends_with(".weight_scale") || t.dtype == DType::f8_e4m3 ||
        t.dtype == DType::f8_e5m2 || t.dtype == DType::i8)
      refuse(t, str("dtype ", dtype_name(t.dtype),
                    ": quantised already, outside KDA q|k|v and routed experts; start from a BF16 checkpoint"));
  }

  [[noreturn]] void refuse(const TensorInfo& t, const std::string& reason) const {
    fail(ErrorCode::bad_file, checkpoint_.file_path(t.file), ": tensor ", printable(t.name), ": ", reason);
  }

  const Checkpoint& checkpoint_;
  const ModelConfig& config_;
  const QuantizeSettings& settings_;
};

void check_formats(const Checkpoint& checkpoint, const QuantizePlan& plan) {
  const PlannedTensor* first[2] = {};
  for (const auto& file : plan.files)
    for (const PlannedTensor& p : file) {
      const auto format = stored_format(p);
      if (p.group == QuantGroup::rest || !format) continue;
      const PlannedTensor*& other = first[static_cast<size_t>(p.group)];
      if (other == nullptr) other = &p;
      if (stored_format(*other) == format) continue;
      const auto name = [](WeightFormat f) { return f == WeightFormat::keep ? "floating point" : format_name(f); };
      fail(ErrorCode::bad_file, checkpoint.file_path(p.source->file), ": tensor ", printable(p.source->name), ": ",
           name(*format), " in the result, ", printable(other->source->name), " ", name(*stored_format(*other)),
           ": expected one format for all of ", kGroupName[static_cast<size_t>(p.group)]);
    }
}

void add_to_report(const PlannedTensor& p, QuantizeReport& report) {
  const bool quantised = p.format != WeightFormat::keep;
  // What is quantised, then, but of the rest, what is left of the same groups.
  const size_t at = static_cast<size_t>(p.group) + (quantised ? 0 : 2);
  QuantizeReport::Group& g = report.groups[at];
  const int64_t after = p.bytes();
  g.matrices += quantised ? 1 : 0;
  g.bytes_before += p.source->bytes;
  g.bytes_after += after;
  report.bytes_before += p.source->bytes;
  report.bytes_after += after;
}

}  // namespace

QuantizeSettings parse_settings(const QuantizeOptions& o) {
  parse_rule("activation_rule", o.activation_rule);
  return {.format = {parse_format("qkv", o.qkv), parse_format("experts", o.experts), WeightFormat::keep},
          .weight_rule = parse_rule("weight_rule", o.weight_rule),
          .weight_rule_name = o.weight_rule,
          .activation_rule_name = o.activation_rule};
}

std::optional<WeightFormat> stored_format(const PlannedTensor& p) {
  const TensorToWrite& t = p.outputs.front();
  if (t.name.ends_with(".weight_scale")) return {};
  if (t.name.ends_with(".weight_packed")) return WeightFormat::mxfp4;
  if (t.dtype == DType::i8) return WeightFormat::int8;
  if (t.dtype == DType::f8_e4m3 || t.dtype == DType::f8_e5m2) return WeightFormat::mxfp8;
  return WeightFormat::keep;
}

int64_t PlannedTensor::output_bytes(size_t i) const {
  int64_t bytes = 0;
  KDELTA_CHECK(tensor_bytes(outputs[i].dtype, outputs[i].shape, &bytes), outputs[i].name);
  return bytes;
}

int64_t PlannedTensor::bytes() const {
  int64_t sum = 0;
  for (size_t i = 0; i < outputs.size(); ++i) sum += output_bytes(i);
  return sum;
}

QuantizePlan plan_quantize(const Checkpoint& checkpoint, const ModelConfig& config, const QuantizeSettings& settings) {
  QuantizePlan plan;
  plan.files.resize(static_cast<size_t>(checkpoint.file_count()));
  for (size_t g = 0; g < 2; ++g)
    plan.report.groups.push_back({.name = kGroupName[g], .format = format_name(settings.format[g])});
  for (size_t g = 0; g < 3; ++g) {
    const bool keep = settings.format[g] == WeightFormat::keep;
    plan.report.groups.push_back(
        {.name = kGroupName[g], .format = str(format_name(settings.format[g]), keep ? "" : " already")});
  }
  const Planner planner(checkpoint, config, settings);
  for (const TensorInfo& t : checkpoint.tensors()) {
    PlannedTensor p = planner.plan(t);
    add_to_report(p, plan.report);
    plan.files[static_cast<size_t>(t.file)].push_back(std::move(p));
  }
  for (auto& file : plan.files)
    std::ranges::sort(file, {}, [](const PlannedTensor& p) { return std::pair(p.source->begin, p.source->bytes); });
  check_formats(checkpoint, plan);
  plan.report.files = checkpoint.file_count();
  std::erase_if(plan.report.groups, [](const auto& g) { return g.bytes_before == 0 && g.name != kGroupName[2]; });
  if (std::ranges::none_of(plan.report.groups, [](const auto& g) { return g.matrices > 0; }))
    fail(ErrorCode::invalid_argument, "model: ", checkpoint.directory(),
         " has no BF16 or F32 matrix that qkv and experts ask for: nothing would be quantised");
  return plan;
}

}  // namespace kdelta
