// What config.json says about the precision of weights: the quantization_config of compressed-tensors. It names the
// schemes a checkpoint may use; which tensor uses which is said by the tensors themselves (".weight_packed" and
// ".weight_scale" beside or in place of ".weight"), because releases leave tensors unquantised that no "ignore" names.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "kdelta/io/json_reader.h"

namespace kdelta {

enum class Precision : uint8_t { floating, mxfp8, mxfp4 };
const char* to_string(Precision precision);

struct Quantization {
  std::vector<Precision> schemes;  // empty: nothing is quantised

  bool names(Precision precision) const;
  std::string list() const;  // "MXFP4, MXFP8", or "nothing"
};

// The quantization_config of this object of config.json; none when it has none. Throws Error(bad_file) naming the field
// for a method or a scheme that is not known.
std::optional<Quantization> read_quantization(const JsonReader& config);

}  // namespace kdelta
