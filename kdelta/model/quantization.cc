// g++ 12 warns about std::regex itself in sanitized builds.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#include "kdelta/model/quantization.h"

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <regex>
#include <unordered_map>
#include <unordered_set>

#include "kdelta/core/check.h"

namespace kdelta {
namespace {

// MX formats are floats of 4 or 8 bits that share a scale of powers of two in blocks of 32 columns.
bool is_mx(const JsonReader& r, int64_t bits) {
  return r.find<std::string>("type") == "float" && r.find<int64_t>("num_bits") == bits &&
         r.find<std::string>("strategy") == "group" && r.find<int64_t>("group_size") == 32 &&
         r.find<bool>("symmetric").value_or(true);
}

// Symmetric int8: weights by output row, inputs by token.
bool is_int8(const JsonReader& r, const char* strategy, bool dynamic) {
  return r.find<std::string>("type") == "int" && r.find<int64_t>("num_bits") == 8 &&
         r.find<std::string>("strategy") == strategy && r.find<bool>("symmetric").value_or(true) &&
         r.find<bool>("dynamic").value_or(dynamic) == dynamic;
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

// For fields that change what the numbers mean wherever they say something; null, false and {} do not.
void expect_none(const JsonReader& r, std::initializer_list<const char*> fields) {
  for (const char* field : fields) {
    const Json* value = r.raw(field);
    const bool none = value == nullptr || value->is_null() ||
                      (value->kind() == Json::Kind::boolean && !value->boolean()) ||
                      (value->kind() == Json::Kind::object && value->object().empty());
    if (!none) r.refuse(field, "null");
  }
}

// For fields of a writer's own: how it came to the tensors.
void pass_over(const JsonReader& r, std::initializer_list<const char*> fields) {
  for (const char* field : fields) (void)r.raw(field);
}

// Of weights and of activations in an MX format.
void check_arguments(const JsonReader& r) {
  expect_none(r, {"actorder", "block_structure"});
  const auto scale = r.find<std::string>("scale_dtype");
  if (scale && *scale != "torch.uint8" && *scale != "torch.float8_e8m0fnu")
    r.refuse("scale_dtype", "\"torch.uint8\" or \"torch.float8_e8m0fnu\"");
  pass_over(r, {"observer", "zp_dtype"});
}

const char* format_name(Precision precision) {
  switch (precision) {
    case Precision::mxfp8:
      return "mxfp8-quantized";
    case Precision::mxfp4:
      return "mxfp4-pack-quantized";
    case Precision::int8:
      return "int-quantized";
    case Precision::floating:
      break;
  }
  KDELTA_UNREACHABLE("precision of a scheme", precision);
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
  check_arguments(*r);
  return {DType::f8_e4m3, read_rule(*r)};
}

Precision read_weights(const JsonReader& group, Schemes schemes) {
  const auto weights = group.get<JsonReader>("weights");
  if (schemes == Schemes::all && is_int8(weights, "channel", false)) return Precision::int8;
  const bool four = is_mx(weights, 4), eight = is_mx(weights, 8);
  if (!four && !eight)
    refuse(group, "weights", weights,
           weights.find<std::string>("type") == "int"
               ? "MXFP4 or MXFP8: kdelta does not compute with integer weights, which are for other engines"
               : "MXFP4 or MXFP8: 4-bit or 8-bit float, symmetric, strategy group, group_size 32");
  check_arguments(weights);
  if (weights.find<bool>("dynamic").value_or(false)) weights.refuse("dynamic", "false");
  pass_over(weights, {"observer_kwargs"});
  return four ? Precision::mxfp4 : Precision::mxfp8;
}

QuantizationScheme read_group(const JsonReader& group, const std::string& name, Schemes schemes) {
  const Precision weights = read_weights(group, schemes);
  const auto inputs = group.find<JsonReader>("input_activations");
  const bool int8_input = weights == Precision::int8 && inputs && is_int8(*inputs, "token", true);
  if (const auto format = group.find<std::string>("format"); format && *format != format_name(weights))
    group.refuse("format", str("\"", format_name(weights), "\", as its weights are ", to_string(weights)));
  expect_none(group, {"output_activations"});
  return {.group = name,
          .weights = weights,
          .input = int8_input ? MxInput{} : read_input(group),
          .int8_input = int8_input,
          .targets = group.find<std::vector<std::string>>("targets").value_or(std::vector<std::string>{})};
}

// "format" is of the groups that have none of their own, and of one group at least.
void check_format(const JsonReader& r, const JsonReader& groups, const std::vector<QuantizationScheme>& schemes) {
  const auto format = r.find<std::string>("format");
  if (!format || *format == "mixed-precision") return;
  bool known =
      schemes.empty() && (*format == format_name(Precision::mxfp4) || *format == format_name(Precision::mxfp8));
  for (const QuantizationScheme& s : schemes) {
    if (*format == format_name(s.weights))
      known = true;
    else if (!groups.get<JsonReader>(s.group).find<std::string>("format"))
      r.refuse("format", str("\"", format_name(s.weights), "\" or \"mixed-precision\", as the weights of ", s.group,
                             " are ", to_string(s.weights)));
  }
  if (!known) r.refuse("format", "the format of one of config_groups or \"mixed-precision\"");
}

using Matcher = std::function<bool(const std::string& module)>;

// `pattern` of entry "re:PATTERN" fits the beginning of a module's name, as compressed-tensors has it. Whoever wrote
// the pattern decides how long a backtracking search takes, and how deep a long pattern is read: hence the search in
// polynomial time, which refuses back-references, and the limit.
Matcher read_pattern(const std::string& pattern, const char* field) {
  constexpr size_t kLongest = 1000;
  if (pattern.size() > kLongest)
    fail(ErrorCode::bad_file, "config.json: quantization_config: ", field, ": a pattern of ", pattern.size(),
         " characters, expected at most ", kLongest);
  const auto refuse_pattern = [pattern, field](const std::regex_error& e) {
    fail(ErrorCode::bad_file, "config.json: quantization_config: ", field, ": pattern \"", pattern, "\": ", e.what());
  };
  try {
    const std::regex expression(pattern, std::regex_constants::ECMAScript | std::regex_constants::__polynomial);
    return [expression, refuse_pattern](const std::string& module) {
      try {
        return std::regex_search(module, expression, std::regex_constants::match_continuous);
      } catch (const std::regex_error& e) {
        refuse_pattern(e);
        return false;
      }
    };
  } catch (const std::regex_error& e) {
    refuse_pattern(e);
    return {};
  }
}

// An entry of targets or of ignore.
Matcher read_entry(const std::string& entry, const char* field) {
  if (entry == "Linear") return [](const std::string&) { return true; };
  if (entry.starts_with("re:")) return read_pattern(entry.substr(3), field);
  return [entry](const std::string& module) { return module == entry; };
}

// Entries of one list. A release has a quarter of a million expert matrices and a pattern takes microseconds for each:
// names are looked up for all of them, patterns only for some.
class Entries {
 public:
  // An entry that cannot be read names none and is told of.
  Entries(const std::vector<std::string>& entries, const char* field, std::vector<std::string>& told) {
    for (const std::string& entry : entries) try {
        if (entry == "Linear")
          any_ = true;
        else if (entry.starts_with("re:"))
          patterns_.push_back(read_entry(entry, field));
        else
          names_.insert(entry);
      } catch (const Error& e) {
        told.push_back(str(e.what(), ", taken to name nothing"));
      }
  }
  bool has_patterns() const { return !patterns_.empty(); }
  bool name(const std::string& module, bool with_patterns) const {
    return any_ || names_.contains(module) ||
           (with_patterns && std::ranges::any_of(patterns_, [&](const Matcher& m) { return m(module); }));
  }

 private:
  bool any_ = false;
  std::unordered_set<std::string> names_;
  std::vector<Matcher> patterns_;
};

// The numbers that patterns write out.
void add_numbers(const std::vector<std::string>& entries, std::unordered_set<std::string>& numbers) {
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  for (const std::string& entry : entries)
    for (auto at = entry.begin(); entry.starts_with("re:") && at != entry.end();) {
      const auto begin = std::find_if(at, entry.end(), digit);
      at = std::find_if_not(begin, entry.end(), digit);
      if (begin != at) numbers.emplace(begin, at);
    }
}

// Which modules patterns are tried on: all but experts; of each layer's experts the first and those whose number a
// pattern writes out; and all of the first layer that has experts. Left out is what names some experts of some later
// layers without their numbers.
std::vector<bool> tried(const std::vector<StoredModule>& stored, const std::unordered_set<std::string>& numbers) {
  constexpr std::string_view kExperts = ".experts.";
  std::vector<bool> out;
  std::unordered_set<std::string> seen;  // a matrix of a layer's experts
  std::string first_layer;
  for (const StoredModule& m : stored) {
    const size_t at = m.name.find(kExperts);
    if (at == std::string::npos) {
      out.push_back(true);
      continue;
    }
    const std::string layer = m.name.substr(0, at);
    if (first_layer.empty()) first_layer = layer;
    const size_t begin = at + kExperts.size(), end = std::min(m.name.find('.', begin), m.name.size());
    out.push_back(layer == first_layer || numbers.contains(m.name.substr(begin, end - begin)) ||
                  seen.insert(layer + m.name.substr(end)).second);
  }
  return out;
}

// How well a scheme's targets name a module: 0 not at all, 1 as any linear layer, 2 by its own name.
int fit(const QuantizationScheme& scheme, const std::string& module) {
  int best = 0;
  for (const std::string& target : scheme.targets) {
    if (read_entry(target, "targets")(module)) best = std::max(best, target == "Linear" ? 1 : 2);
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
    case Precision::int8:
      return "int8";
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
  for (const Precision p : {Precision::mxfp4, Precision::mxfp8, Precision::int8})
    if (names(p)) out += (out.empty() ? "" : ", ") + std::string(to_string(p));
  return out.empty() ? "nothing" : out;
}

std::vector<const QuantizationScheme*> Quantization::meant(const std::string& module, Precision precision) const {
  std::vector<const QuantizationScheme*> all;
  for (const QuantizationScheme& s : schemes)
    if (s.weights == precision) all.push_back(&s);
  if (all.size() < 2) return all;
  int best = 0;
  for (const QuantizationScheme* s : all) best = std::max(best, fit(*s, module));
  if (best > 0) std::erase_if(all, [&](const QuantizationScheme* s) { return fit(*s, module) < best; });
  return all;
}

MxInput Quantization::input_of(const std::string& module, Precision precision) const {
  const auto agree = [](const auto& some) {
    return std::ranges::all_of(some, [&](const auto& s) { return s->input == some.front()->input; });
  };
  std::vector<const QuantizationScheme*> fitting;
  for (const QuantizationScheme& s : schemes)
    if (s.weights == precision) fitting.push_back(&s);
  if (fitting.empty()) return {};
  if (agree(fitting)) return fitting.front()->input;
  fitting = meant(module, precision);
  if (agree(fitting)) return fitting.front()->input;
  std::string groups;
  for (const QuantizationScheme* s : fitting) groups += (groups.empty() ? "" : ", ") + s->group;
  fail(ErrorCode::bad_file, "config.json: quantization_config.config_groups: ", groups, " describe ",
       to_string(precision), " weights with different input_activations, and their targets do not say which ", module,
       " is of");
}

void Quantization::check_codes(const std::vector<StoredModule>& stored) const {
  std::unordered_map<const QuantizationScheme*, const StoredModule*> first;
  for (const StoredModule& m : stored) {
    if (m.precision != Precision::mxfp8) continue;
    const auto of = meant(m.name, m.precision);
    if (of.size() != 1) continue;
    const StoredModule* other = first.try_emplace(of.front(), &m).first->second;
    if (other->codes != m.codes)
      fail(ErrorCode::bad_file, "config.json: quantization_config.config_groups.", of.front()->group, ": ", other->name,
           " is ", dtype_name(other->codes), ", ", m.name, " is ", dtype_name(m.codes),
           ": expected one type of codes in a group");
  }
}

Precision Quantization::meant_for(const std::string& module) const {
  if (schemes.empty()) return Precision::floating;
  for (const std::string& entry : ignored)
    if (read_entry(entry, "ignore")(module)) return Precision::floating;
  // Of releases that say "Linear" more is plain than their ignore lists name.
  int best = module.find(".experts.") == std::string::npos ? 1 : 0;
  Precision precision = Precision::floating;
  for (const QuantizationScheme& s : schemes)
    if (const int f = fit(s, module); f > best) best = f, precision = s.weights;
  return precision;
}

std::vector<std::string> Quantization::doubts(const std::vector<StoredModule>& stored) const {
  std::vector<std::string> out;
  const auto tell = [&](const std::vector<const StoredModule*>& found, const char* what) {
    if (!found.empty())
      out.push_back(str(found.front()->name, " is stored in ", to_string(found.front()->precision), ", although ", what,
                        found.size() > 1 ? ", and it is not the only one" : ""));
  };
  std::unordered_set<std::string> numbers;
  add_numbers(ignored, numbers);
  for (const QuantizationScheme& s : schemes) add_numbers(s.targets, numbers);
  const std::vector<bool> with_patterns = tried(stored, numbers);
  std::vector<bool> meant(stored.size());
  for (const QuantizationScheme& s : schemes) {
    const Entries targets(s.targets, "targets", out);
    for (size_t i = 0; i < stored.size(); ++i)
      if (!meant[i] && stored[i].precision == s.weights)
        meant[i] = s.targets.empty() || targets.name(stored[i].name, with_patterns[i]) ||
                   (targets.has_patterns() && !with_patterns[i]);
  }
  std::vector<const StoredModule*> nameless, excluded;
  const Entries ignore(ignored, "ignore", out);
  for (size_t i = 0; i < stored.size(); ++i) {
    if (!meant[i]) nameless.push_back(&stored[i]);
    if (ignore.name(stored[i].name, with_patterns[i])) excluded.push_back(&stored[i]);
  }
  tell(nameless, "no targets of its scheme in quantization_config.config_groups name it");
  tell(excluded, "quantization_config.ignore names it");
  return out;
}

std::optional<Quantization> read_quantization(const JsonReader& config, Schemes schemes) {
  const auto r = config.find<JsonReader>("quantization_config");
  if (!r) return {};
  if (r->get<std::string>("quant_method") != "compressed-tensors") r->refuse("quant_method", "\"compressed-tensors\"");
  Quantization q;
  const auto groups = r->get<JsonReader>("config_groups");
  for (const std::string& name : groups.keys())
    q.schemes.push_back(read_group(groups.get<JsonReader>(name), name, schemes));
  check_format(*r, groups, q.schemes);
  if (r->find<std::string>("quantization_status").value_or("compressed") != "compressed")
    r->refuse("quantization_status", "\"compressed\"");
  expect_none(*r, {"kv_cache_scheme", "sparsity_config", "transform_config"});
  q.ignored = r->find<std::vector<std::string>>("ignore").value_or(std::vector<std::string>{});
  pass_over(*r, {"global_compression_ratio", "version"});
  return q;
}

}  // namespace kdelta
