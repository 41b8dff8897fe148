#include "kdelta/model/quantization.h"

#include <algorithm>
#include <regex>

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

constexpr const char* kRuleNames[] = {"floor", "rceil", "even"};  // by MxScaleRule

MxScaleRule read_rule(const JsonReader& activations) {
  const auto kwargs = activations.find<JsonReader>("observer_kwargs");
  if (!kwargs) return MxScaleRule::floor;
  std::optional<MxScaleRule> rule;
  if (const auto name = kwargs->find<std::string>("scale_rule")) {
    const auto known = std::ranges::find(kRuleNames, *name);
    if (known == std::end(kRuleNames)) kwargs->refuse("scale_rule", "\"floor\", \"rceil\" or \"even\"");
    rule = static_cast<MxScaleRule>(known - std::begin(kRuleNames));
  }
  if (const auto number = kwargs->find<int64_t>("scale_alg")) {
    if (*number != 0 && *number != 1) kwargs->refuse("scale_alg", "0 (floor) or 1 (rceil)");
    const auto numbered = *number == 0 ? MxScaleRule::floor : MxScaleRule::rceil;
    if (rule.value_or(numbered) != numbered) kwargs->refuse("scale_alg", "the number of scale_rule");
    rule = numbered;
  }
  return rule.value_or(MxScaleRule::floor);
}

MxInput read_input(const JsonReader& group) {
  const auto r = group.find<JsonReader>("input_activations");
  if (!r) return {};
  if (!is_mx(*r, 8) || !r->find<bool>("dynamic").value_or(true))
    refuse(group, "input_activations", *r,
           "null or MXFP8: 8-bit float, symmetric, dynamic, strategy group, group_size 32");
  return {DType::f8_e4m3, read_rule(*r)};
}

QuantizationScheme read_group(const JsonReader& group, const std::string& name) {
  const auto weights = group.get<JsonReader>("weights");
  const bool four = is_mx(weights, 4), eight = is_mx(weights, 8);
  if (!four && !eight)
    refuse(group, "weights", weights, "MXFP4 or MXFP8: 4-bit or 8-bit float, symmetric, strategy group, group_size 32");
  return {.group = name,
          .weights = four ? Precision::mxfp4 : Precision::mxfp8,
          .input = read_input(group),
          .targets = group.find<std::vector<std::string>>("targets").value_or(std::vector<std::string>{})};
}

// `pattern` of target "re:PATTERN" fits the beginning of a module's name, as compressed-tensors has it. Whoever wrote
// the pattern decides how long a backtracking search takes, and how deep a long pattern is read: hence the search in
// polynomial time, which refuses back-references, and the limit.
bool fits(const std::string& pattern, const std::string& module) {
  constexpr size_t kLongest = 1000;
  if (pattern.size() > kLongest)
    fail(ErrorCode::bad_file, "config.json: quantization_config: targets: a pattern of ", pattern.size(),
         " characters, expected at most ", kLongest);
  try {
    const std::regex expression(pattern, std::regex_constants::ECMAScript | std::regex_constants::__polynomial);
    return std::regex_search(module, expression, std::regex_constants::match_continuous);
  } catch (const std::regex_error& e) {
    fail(ErrorCode::bad_file, "config.json: quantization_config: targets: pattern \"", pattern, "\": ", e.what());
  }
}

// How well a scheme's targets name a module: 0 not at all, 1 as any linear layer, 2 by its own name.
int fit(const QuantizationScheme& scheme, const std::string& module) {
  int best = 0;
  for (const std::string& target : scheme.targets) {
    if (target == "Linear") best = std::max(best, 1);
    if (target.starts_with("re:") ? fits(target.substr(3), module) : target == module) best = 2;
  }
  return best;
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

std::string to_string(const MxInput& input) {
  if (!input.quantised()) return {};
  return str(input.format == DType::f8_e4m3 ? "MXFP8 " : "MXFP8 E5M2 ", kRuleNames[static_cast<size_t>(input.rule)]);
}

bool Quantization::names(Precision precision) const {
  return std::ranges::any_of(schemes, [&](const QuantizationScheme& s) { return s.weights == precision; });
}

std::string Quantization::list() const {
  std::string out;
  for (const Precision p : {Precision::mxfp4, Precision::mxfp8})
    if (names(p)) out += (out.empty() ? "" : ", ") + std::string(to_string(p));
  return out.empty() ? "nothing" : out;
}

MxInput Quantization::input_of(const std::string& module, Precision precision) const {
  std::vector<const QuantizationScheme*> fitting;
  for (const QuantizationScheme& s : schemes)
    if (s.weights == precision) fitting.push_back(&s);
  const auto agree = [&] {
    return std::ranges::all_of(fitting, [&](const auto* s) { return s->input == fitting.front()->input; });
  };
  if (fitting.empty()) return {};
  if (agree()) return fitting.front()->input;
  int best = 0;
  for (const QuantizationScheme* s : fitting) best = std::max(best, fit(*s, module));
  std::erase_if(fitting, [&](const QuantizationScheme* s) { return fit(*s, module) < best; });
  if (best > 0 && agree()) return fitting.front()->input;
  std::string groups;
  for (const QuantizationScheme* s : fitting) groups += (groups.empty() ? "" : ", ") + s->group;
  fail(ErrorCode::bad_file, "config.json: quantization_config.config_groups: ", groups, " describe ",
       to_string(precision), " weights with different input_activations, and their targets do not say which ", module,
       " is of");
}

std::optional<Quantization> read_quantization(const JsonReader& config) {
  const auto r = config.find<JsonReader>("quantization_config");
  if (!r) return {};
  (void)config.raw("quantization_config");  // ignore lists and the like are for writers of tensors
  if (r->get<std::string>("quant_method") != "compressed-tensors") r->refuse("quant_method", "\"compressed-tensors\"");
  Quantization q;
  const auto groups = r->get<JsonReader>("config_groups");
  for (const std::string& name : groups.keys()) q.schemes.push_back(read_group(groups.get<JsonReader>(name), name));
  return q;
}

}  // namespace kdelta
