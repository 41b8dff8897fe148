#include "kdelta/model/quantization.h"

#include <algorithm>

#include "kdelta/core/check.h"

namespace kdelta {
namespace {

// MX formats are floats of 4 or 8 bits that share a scale of powers of two in blocks of 32 columns.
bool is_mx(const JsonReader& r, int64_t bits) {
  return r.find<std::string>("type") == "float" && r.find<int64_t>("num_bits") == bits &&
         r.find<std::string>("strategy") == "group" && r.find<int64_t>("group_size") == 32 &&
         r.find<bool>("symmetric").value_or(true);
}

// "8-bit int, strategy channel"
std::string describe(const JsonReader& r) {
  const auto size = r.find<int64_t>("group_size");
  return str(r.find<int64_t>("num_bits").value_or(0), "-bit ", r.find<std::string>("type").value_or("?"), ", strategy ",
             r.find<std::string>("strategy").value_or("?"), size ? str(", group_size ", *size) : std::string());
}

[[noreturn]] void refuse(const JsonReader& group, const char* field, const JsonReader& found, const char* expected) {
  fail(ErrorCode::bad_file, group.source(), ": ", group.path_of(field), ": ", describe(found), ", expected ", expected);
}

Precision read_group(const JsonReader& group) {
  const auto weights = group.get<JsonReader>("weights");
  const bool four = is_mx(weights, 4), eight = is_mx(weights, 8);
  if (!four && !eight)
    refuse(group, "weights", weights, "MXFP4 or MXFP8: 4-bit or 8-bit float, symmetric, strategy group, group_size 32");
  if (const auto inputs = group.find<JsonReader>("input_activations"); inputs && !is_mx(*inputs, 8))
    refuse(group, "input_activations", *inputs, "null or MXFP8: 8-bit float, symmetric, strategy group, group_size 32");
  return four ? Precision::mxfp4 : Precision::mxfp8;
}

}  // namespace

const char* to_string(Precision precision) {
  switch (precision) {
    case Precision::floating:
      return "floating point";
    case Precision::mxfp8:
      return "MXFP8";
    case Precision::mxfp4:
      return "MXFP4";
  }
  KDELTA_UNREACHABLE("precision", precision);
}

bool Quantization::names(Precision precision) const {
  return std::find(schemes.begin(), schemes.end(), precision) != schemes.end();
}

std::string Quantization::list() const {
  std::string out;
  for (Precision p : schemes) out += (out.empty() ? "" : ", ") + std::string(to_string(p));
  return out.empty() ? "nothing" : out;
}

std::optional<Quantization> read_quantization(const JsonReader& config) {
  const auto r = config.find<JsonReader>("quantization_config");
  if (!r) return {};
  (void)config.raw("quantization_config");  // targets and ignore lists are for writers of tensors
  if (r->get<std::string>("quant_method") != "compressed-tensors") r->refuse("quant_method", "\"compressed-tensors\"");
  Quantization q;
  const auto groups = r->get<JsonReader>("config_groups");
  for (const std::string& name : groups.keys()) {
    const Precision p = read_group(groups.get<JsonReader>(name));
    if (!q.names(p)) q.schemes.push_back(p);
  }
  return q;
}

}  // namespace kdelta
