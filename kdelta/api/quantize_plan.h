// What quantize() will do with every tensor, and the config.json that describes the result.
#pragma once

#include <array>
#include <optional>
#include <span>

#include "kdelta/api/quantize.h"
#include "kdelta/io/checkpoint.h"
#include "kdelta/io/json.h"
#include "kdelta/model/config.h"
#include "kdelta/ops/mx_quant/mx_quant.h"

namespace kdelta {

enum class QuantGroup : uint8_t { qkv, experts, rest };
enum class WeightFormat : uint8_t { keep, mxfp8, mxfp4, int8 };

struct QuantizeSettings {
  std::array<WeightFormat, 3> format{};  // by QuantGroup; the rest is kept
  MxScaleRule weight_rule = MxScaleRule::rceil;
  std::string weight_rule_name, activation_rule_name;
};
// Throws Error(invalid_argument) naming the option.
QuantizeSettings parse_settings(const QuantizeOptions& options);

struct PlannedTensor {
  const TensorInfo* source = nullptr;
  QuantGroup group = QuantGroup::rest;
  WeightFormat format = WeightFormat::keep;  // keep: copied as it is
  // One when copied; codes and scales when quantised. No data.
  std::vector<TensorToWrite> outputs;
  int64_t output_bytes(size_t i) const;
  int64_t bytes() const;
};

// The format in which the result holds a matrix of KDA q|k|v or the experts (keep: floating point); none for scales.
std::optional<WeightFormat> stored_format(const PlannedTensor& p);

struct QuantizePlan {
  std::vector<std::vector<PlannedTensor>> files;  // as the source's, tensors in the order of their data
  QuantizeReport report;                          // sizes
};
// Throws Error(bad_file) naming the tensor that cannot be quantised, or two of a group that would differ in format,
// which no description says; Error(invalid_argument) when none would be.
QuantizePlan plan_quantize(const Checkpoint& checkpoint, const ModelConfig& config, const QuantizeSettings& settings);

// config.json of the result: the source's with another quantization_config.
Json quantized_config(Json config, const ModelConfig& model, const QuantizePlan& plan,
                      const QuantizeSettings& settings);

}  // namespace kdelta
