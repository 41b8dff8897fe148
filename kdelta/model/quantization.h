// What config.json says about the precision of weights and activations: the quantization_config of compressed-tensors.
// It names the schemes a checkpoint may use; which tensor uses which is said by the tensors themselves
// (".weight_packed" and ".weight_scale" beside or in place of ".weight"), because releases leave tensors unquantised
// that no "ignore" names. "targets" decide only between schemes that differ in nothing but activations.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "kdelta/core/matrix.h"
#include "kdelta/io/json_reader.h"

namespace kdelta {

enum class Precision : uint8_t { floating, mxfp8, mxfp4, int8 };
const char* to_string(Precision precision);

// "MXFP8 floor", or "" for inputs that are taken as they are.
std::string to_string(const MxInput& input);

struct QuantizationScheme {
  std::string group;  // its name in config_groups
  Precision weights = Precision::floating;
  // Of activations: input_activations. The scale rule is its observer_kwargs.scale_rule ("floor", "rceil", "even") or
  // scale_alg (0: floor, 1: rceil); floor when neither is given.
  MxInput input;
  bool int8_input = false;           // int8 weights alone: tokens are quantised, each by its largest magnitude
  std::vector<std::string> targets;  // module names, "re:" and a pattern for their beginning, or "Linear": any

  bool operator==(const QuantizationScheme&) const = default;
};

// A matrix that a checkpoint stores quantised.
struct StoredModule {
  std::string name;
  Precision precision = Precision::floating;
  DType codes = DType::u8;  // of MXFP8: f8_e4m3 or f8_e5m2
};

struct Quantization {
  std::vector<QuantizationScheme> schemes;  // empty: nothing is quantised
  std::vector<std::string> ignored;         // as targets; decides nothing

  bool names(Precision precision) const;
  std::string list() const;  // "MXFP4, MXFP8", or "nothing"
  // What the matrix `module`, stored in `precision`, takes its inputs in. Throws Error(bad_file) naming the module when
  // several schemes could be meant and their targets do not tell which.
  MxInput input_of(const std::string& module, Precision precision) const;
  // Throws Error(bad_file) naming both when modules of one scheme are stored in two types of codes: the description,
  // which says "8-bit float", means one.
  void check_codes(const std::vector<StoredModule>& stored) const;
  // The precision in which a checkpoint of this description would store `module`: that of the scheme whose targets name
  // it, which "Linear" does for routed experts alone, unless the ignore list names it.
  Precision meant_for(const std::string& module) const;
  // Where the targets and the ignore list say something else than what is stored: lines for whoever loads the model.
  std::vector<std::string> doubts(const std::vector<StoredModule>& stored) const;
  bool operator==(const Quantization&) const = default;

 private:
  // The schemes of this precision that `module` may be of: several where targets do not tell.
  std::vector<const QuantizationScheme*> meant(const std::string& module, Precision precision) const;
};

// Which schemes may be described: those that are computed with, or also int8, which is written for other engines and
// can be told apart.
enum class Schemes : uint8_t { computed, all };

// The quantization_config of this object of config.json; none when it has none. Throws Error(bad_file) naming the field
// for a method, a scheme or a format that is not known or not what its weights are, and for what no engine of this kind
// computes: quantised outputs and caches, weights that are reordered, transformed or not yet packed.
std::optional<Quantization> read_quantization(const JsonReader& config, Schemes schemes = Schemes::computed);

}  // namespace kdelta
