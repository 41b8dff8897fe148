#include "kdelta/io/grammar/json_schema.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <utility>

#include "kdelta/core/check.h"
#include "kdelta/io/grammar/json_formats.h"
#include "kdelta/io/grammar/json_numbers.h"
#include "kdelta/io/grammar/json_rules.h"
#include "kdelta/io/grammar/regex.h"
#include "kdelta/io/grammar/schema_tree.h"

namespace kdelta::grammar {
namespace {

constexpr int64_t kMostPrefixItems = 100;  // of arrays

// Which types a keyword speaks of: of others it says nothing.
struct Keyword {
  std::string_view name, type;
};
constexpr Keyword kKeywords[] = {{"properties", "object"},
                                 {"required", "object"},
                                 {"additionalProperties", "object"},
                                 {"items", "array"},
                                 {"prefixItems", "array"},
                                 {"minItems", "array"},
                                 {"maxItems", "array"},
                                 {"uniqueItems", "array"},
                                 {"minLength", "string"},
                                 {"maxLength", "string"},
                                 {"pattern", "string"},
                                 {"format", "string"},
                                 {"minimum", "number"},
                                 {"maximum", "number"},
                                 {"exclusiveMinimum", "number"},
                                 {"exclusiveMaximum", "number"},
                                 {"multipleOf", "number"}};
constexpr std::string_view kCombining[] = {"type", "enum", "const", "anyOf", "allOf", "oneOf", "$ref"};
constexpr std::string_view kTypes[] = {"object", "array", "string", "number", "integer", "boolean", "null"};

ExprId bare_text(Grammar& g) {
  return g.repeat(g.chars(CharSet::all()), 0, kNoEnd);
}

class Compiler {
 public:
  Compiler(Grammar& out, const std::string& name, const Json& root)
      : g_(out), json_(out), name_(name), tree_(name, root) {}

  RuleId run() {
    const RuleId root = rule_of("#", "");
    define_open();
    return root;
  }

  // The root's properties, each by itself.
  RuleId elements(const ArgumentElement& element) {
    const Json& root = tree_.root();
    check_keywords(root, "");
    const std::vector<std::string> required = required_of(root, "");
    std::vector<ExprId> parts;
    if (const Json* properties = root.find("properties"))
      for (const JsonMember& p : properties->object()) {
        leaf_ = [&](std::string_view type, ExprId value) { return element(p.key, type, value); };
        const ExprId e = schema(p.value, below("properties", p.key));
        leaf_ = {};
        parts.push_back(std::ranges::find(required, p.key) != required.end() ? e : g_.optional(e));
      }
    const RuleId rule = g_.rule("arguments");
    g_.define(rule, g_.sequence(std::move(parts)));
    define_open();
    return rule;
  }

 private:
  using Leaf = std::function<ExprId(std::string_view type, ExprId value)>;

  void define_open() {
    while (!open_.empty()) {
      const Open next = std::move(open_.front());
      open_.pop_front();
      g_.define(next.rule, schema(*next.schema, next.path));
    }
  }

  struct Open {
    RuleId rule;
    const Json* schema;
    std::string path;
  };

  [[noreturn]] void refuse(const std::string& path, const std::string& why) const { tree_.refuse(path, why); }
  [[noreturn]] void wrong(const std::string& path, const Json& found, const char* expected) const {
    refuse(path, describe(found) + ", expected " + expected);
  }

  // Each place that a $ref names is one rule, compiled later: schemas may call themselves.
  RuleId rule_of(const std::string& ref, const std::string& path) {
    const auto [it, added] = refs_.try_emplace(ref, -1);
    if (!added) return it->second;
    const Json& target = tree_.target(ref, path);
    it->second = g_.rule(ref);
    open_.push_back({it->second, &target, ref == "#" ? "" : ref});
    return it->second;
  }

  // References with keywords beside them are compiled in place, so that schemas may nest deeper than their text.
  ExprId schema(const Json& s, const std::string& path) {
    if (depth_ == kMostNested) refuse(path, str("schemas nested more than ", kMostNested, " deep"));
    ++depth_;
    const ExprId e = schema_inside(s, path);
    --depth_;
    return e;
  }

  ExprId schema_inside(const Json& s, const std::string& path) {
    if (s.kind() == Json::Kind::boolean)
      return !s.boolean() ? g_.choice({}) : leaf_ ? typed(Json::Object{}, path) : json_.value();
    if (s.kind() != Json::Kind::object) wrong(path, s, "a schema: an object, true or false");
    if (++schemas_ > kMostSchemas) refuse(path, str("more than ", kMostSchemas, " schemas"));
    check_keywords(s, path);
    if (const Json* ref = s.find("$ref")) return reference(s, *ref, path);
    for (const char* key : {"allOf", "anyOf", "oneOf"})
      if (const Json* list = s.find(key)) return combined(s, key, *list, path);
    if (const Json* value = s.find("const")) return one_of(s, {*value}, "const", path);
    if (const Json* values = s.find("enum")) {
      if (values->kind() != Json::Kind::array) wrong(below(path, "enum"), *values, "an array");
      return one_of(s, values->array(), "enum", path);
    }
    return typed(s, path);
  }

  void check_keywords(const Json& s, const std::string& path) const {
    for (const JsonMember& m : s.object()) {
      const bool known = SchemaTree::is_annotation(m.key) ||
                         std::ranges::find(kCombining, m.key) != std::end(kCombining) ||
                         std::ranges::find(kKeywords, m.key, &Keyword::name) != std::end(kKeywords);
      if (!known) refuse(below(path, m.key), "this keyword is not supported");
    }
  }

  ExprId reference(const Json& s, const Json& ref, const std::string& path) {
    if (ref.kind() != Json::Kind::string) wrong(below(path, "$ref"), ref, "a string");
    if (Json rest = without(s, "$ref"); SchemaTree::has_constraints(rest))
      return schema(tree_.both(rest, tree_.target(ref.string(), below(path, "$ref")), path), path);
    if (leaf_) return schema(tree_.target(ref.string(), below(path, "$ref")), path);
    return g_.call(rule_of(ref.string(), below(path, "$ref")));
  }

  static Json without(const Json& s, std::string_view key) {
    Json::Object rest;
    for (const JsonMember& m : s.object())
      if (m.key != key) rest.push_back(m);
    return rest;
  }

  // What stands beside the list holds together with each of its schemas.
  ExprId combined(const Json& s, const char* key, const Json& list, const std::string& path) {
    const std::string here = below(path, key);
    if (list.kind() != Json::Kind::array || list.array().empty()) wrong(here, list, "an array of schemas");
    const Json base = without(s, key);
    const bool alone = !SchemaTree::has_constraints(base);
    const auto joined = [&](const Json& a, const Json& b) {
      ++schemas_;
      return tree_.both(a, b, here);
    };
    if (std::string_view(key) == "allOf") {
      if (alone && list.array().size() == 1) return schema(list.array()[0], here + "[0]");
      Json all = base;
      for (const Json& part : list.array()) all = joined(all, part);
      return schema(all, path);
    }
    std::vector<ExprId> alternatives;
    for (size_t i = 0; i < list.array().size(); ++i) {
      const std::string place = str(here, "[", i, "]");
      const Json& part = list.array()[i];
      for (size_t j = 0; j < i && std::string_view(key) == "oneOf"; ++j) {
        if (++schemas_ > kMostSchemas) refuse(path, str("more than ", kMostSchemas, " schemas"));
        if (!tree_.exclude(list.array()[j], part, place))
          refuse(here, str("[", j, "] and [", i, "] are not known to exclude each other; anyOf is supported"));
      }
      alternatives.push_back(schema(alone ? part : joined(base, part), place));
    }
    return g_.choice(std::move(alternatives));
  }

  ExprId one_of(const Json& s, const Json::Array& values, const char* key, const std::string& path) {
    for (const JsonMember& m : s.object())
      if (m.key != key && m.key != "type" && !SchemaTree::is_annotation(m.key))
        refuse(below(path, m.key), str("is not supported beside ", key));
    const std::vector<std::string> types = types_of(s, path);
    std::vector<ExprId> all;
    for (const Json& v : values)
      if (s.find("type") == nullptr || fits(v, types))
        all.push_back(leaf_ ? leaf_(value_type(kind_name(v.kind())),
                                    v.kind() == Json::Kind::string ? g_.literal(v.string()) : json_.constant(v))
                            : json_.constant(v));
    return g_.choice(std::move(all));
  }

  // Of an argument: JSON knows no integers.
  static std::string_view value_type(std::string_view type) { return type == "integer" ? "number" : type; }

  static bool fits(const Json& v, const std::vector<std::string>& types) {
    const auto has = [&](std::string_view t) { return std::ranges::find(types, t) != types.end(); };
    const bool whole = v.kind() == Json::Kind::real && v.number() == std::floor(v.number());
    return has(kind_name(v.kind())) || (v.kind() == Json::Kind::integer && has("number")) || (whole && has("integer"));
  }

  std::vector<std::string> types_of(const Json& s, const std::string& path) const {
    const Json* type = s.find("type");
    if (type == nullptr) return {"object", "array", "string", "number", "boolean", "null"};
    std::vector<std::string> out;
    const auto take = [&](const Json& t) {
      if (t.kind() != Json::Kind::string || std::ranges::find(kTypes, t.string()) == std::end(kTypes))
        wrong(below(path, "type"), t, "object, array, string, number, integer, boolean or null");
      out.push_back(t.string());
    };
    if (type->kind() == Json::Kind::array)
      for (const Json& t : type->array()) take(t);
    else
      take(*type);
    return out;
  }

  ExprId typed(const Json& s, const std::string& path) {
    std::vector<std::string> types = types_of(s, path);
    if (std::ranges::find(types, "number") != types.end()) std::erase(types, "integer");
    // A keyword of another type is never looked at by a validator, but somebody meant something by it.
    std::vector<ExprId> all;
    const Leaf leaf = std::exchange(leaf_, {});  // what is inside a value is JSON
    for (const std::string& t : types) {
      const bool plain = std::ranges::none_of(s.object(), [&](const JsonMember& m) {
        const auto* k = std::ranges::find(kKeywords, m.key, &Keyword::name);
        return k != std::end(kKeywords) && (k->type == t || (k->type == "number" && t == "integer"));
      });
      bare_ = leaf && t == "string";
      const ExprId e = plain ? any_of_type(t) : of_type(t, s, path);
      bare_ = false;
      all.push_back(leaf ? leaf(value_type(t), e) : e);
    }
    leaf_ = leaf;
    return g_.choice(std::move(all));
  }

  ExprId any_of_type(const std::string& t) {
    if (t == "object") return json_.object();
    if (t == "array") return json_.array();
    if (t == "string") return bare_ ? bare_text(g_) : json_.string();
    if (t == "number") return json_.number();
    if (t == "integer") return json_.integer();
    return t == "boolean" ? json_.boolean() : g_.literal("null");
  }

  ExprId of_type(const std::string& t, const Json& s, const std::string& path) {
    if (t == "object") return object(s, path);
    if (t == "array") return array(s, path);
    if (t == "string") return string(s, path);
    return number(t == "integer", s, path);
  }

  // A count or a length.
  int64_t count(const Json& s, const char* key, int64_t absent, const std::string& path) const {
    const Json* v = s.find(key);
    if (v == nullptr) return absent;
    const bool whole =
        v->kind() == Json::Kind::integer || (v->kind() == Json::Kind::real && v->number() == std::floor(v->number()));
    if (!whole || v->number() < 0 || v->number() > static_cast<double>(kMostRepeats))
      refuse(below(path, key), describe(*v) + str(", expected a whole number from 0 to ", kMostRepeats));
    return static_cast<int64_t>(v->number());
  }

  ExprId string(const Json& s, const std::string& path) {
    const Json *pattern = s.find("pattern"), *format = s.find("format");
    const bool bounded = s.find("minLength") != nullptr || s.find("maxLength") != nullptr;
    if ((pattern != nullptr) + (format != nullptr) + bounded > 1)
      refuse(below(path, pattern != nullptr ? "pattern" : "format"),
             "is not supported beside format, minLength or maxLength");
    const auto write = [this](const CharSet& set) { return bare_ ? g_.chars(set) : json_.written(set); };
    const auto whole = [this](ExprId inside) { return bare_ ? inside : json_.quoted(inside); };
    if (pattern != nullptr) {
      if (pattern->kind() != Json::Kind::string) wrong(below(path, "pattern"), *pattern, "a string");
      const std::string name = name_ + ": " + below(path, "pattern");
      return whole(read_regex(g_, name, pattern->string(), Anchors::search, write));
    }
    if (format != nullptr) {
      const std::string_view known =
          format->kind() == Json::Kind::string ? format_pattern(format->string()) : std::string_view();
      if (known.empty()) wrong(below(path, "format"), *format, format_names());
      return whole(read_regex(g_, name_, known, Anchors::whole, write));
    }
    const int64_t least = count(s, "minLength", 0, path), most = count(s, "maxLength", kNoEnd, path);
    if (most != kNoEnd && most < least) return g_.choice({});
    return whole(g_.repeat(bare_ ? g_.chars(CharSet::all()) : json_.character(), least, most));
  }

  ExprId number(bool integer, const Json& s, const std::string& path) {
    NumberBounds b;
    const auto bound = [&](const char* key, bool low, bool exclusive) {
      const Json* v = s.find(key);
      if (v == nullptr) return;
      const std::string here = below(path, key);
      if (v->kind() != Json::Kind::integer && v->kind() != Json::Kind::real) wrong(here, *v, "a number");
      const double x = v->number();
      if (std::abs(x) > 9e18) refuse(here, describe(*v) + ", expected a number of at most 18 digits");
      const bool whole = x == std::floor(x);
      if (!integer && !whole)
        refuse(here, describe(*v) + ": for numbers with a fraction only whole bounds are supported");
      int64_t n =
          v->kind() == Json::Kind::integer ? v->integer() : static_cast<int64_t>(low ? std::ceil(x) : std::floor(x));
      if (integer && exclusive && whole) n += low ? 1 : -1;
      std::optional<int64_t>& to = low ? b.low : b.high;
      bool& out = low ? b.above_low : b.below_high;
      if (to && (low ? *to > n : *to < n)) return;
      out = !integer && (exclusive || (to && *to == n && out));
      to = n;
    };
    bound("minimum", true, false);
    bound("exclusiveMinimum", true, true);
    bound("maximum", false, false);
    bound("exclusiveMaximum", false, true);
    if (const Json* m = s.find("multipleOf"); m != nullptr && (!integer || *m != Json(1)))
      refuse(below(path, "multipleOf"), describe(*m) + ", supported: 1, for integers");
    return integer ? integers(g_, b) : decimals(g_, b);
  }

  // As a rule of its own, so that repeating it costs a call.
  ExprId as_rule(ExprId e, const std::string& name) {
    const RuleId rule = g_.rule(name);
    g_.define(rule, e);
    return g_.call(rule);
  }

  ExprId array(const Json& s, const std::string& path) {
    if (const Json* unique = s.find("uniqueItems"); unique != nullptr && *unique != Json(false))
      refuse(below(path, "uniqueItems"), describe(*unique) + ", supported: false");
    const int64_t least = count(s, "minItems", 0, path);
    int64_t most = count(s, "maxItems", kNoEnd, path);
    std::vector<ExprId> prefix;
    if (const Json* list = s.find("prefixItems")) {
      const std::string here = below(path, "prefixItems");
      if (list->kind() != Json::Kind::array || std::ssize(list->array()) > kMostPrefixItems)
        wrong(here, *list, "an array of at most 100 schemas");
      for (size_t i = 0; i < list->array().size(); ++i)
        prefix.push_back(schema(list->array()[i], str(here, "[", i, "]")));
    }
    const auto k = std::ssize(prefix);
    const Json* items = s.find("items");
    if (items != nullptr && items->kind() == Json::Kind::array)
      refuse(below(path, "items"), "a list of schemas is not supported; prefixItems is");
    if (items != nullptr && *items == Json(false)) most = most == kNoEnd ? k : std::min<int64_t>(most, k);
    if (most != kNoEnd && most < least) return g_.choice({});
    ExprId item = -1;
    if (most == kNoEnd || most > k)
      item = as_rule(items == nullptr ? json_.value() : schema(*items, below(path, "items")), below(path, "items"));
    const auto behind = [&](int64_t before, int64_t from, int64_t to) {
      const ExprId more = g_.sequence({json_.comma(), item});
      if (before > 0) return g_.repeat(more, from, to);
      const ExprId all =
          g_.sequence({item, g_.repeat(more, std::max<int64_t>(from - 1, 0), to == kNoEnd ? to : to - 1)});
      return from == 0 ? g_.optional(all) : all;
    };
    ExprId rest = item < 0 ? g_.empty() : behind(k, std::max<int64_t>(least - k, 0), most == kNoEnd ? most : most - k);
    for (int64_t i = k - 1; i >= 0; --i) {
      if (most != kNoEnd && i >= most) continue;
      std::vector<ExprId> parts{prefix[static_cast<size_t>(i)], rest};
      if (i > 0) parts.insert(parts.begin(), json_.comma());
      rest = g_.sequence(std::move(parts));
      if (i >= least) rest = g_.optional(rest);
    }
    return json_.enclosed("[", rest, "]");
  }

  struct Member {
    ExprId text;
    bool required;
  };

  std::vector<std::string> required_of(const Json& s, const std::string& path) const {
    std::vector<std::string> out;
    const Json* list = s.find("required");
    if (list == nullptr) return out;
    if (list->kind() != Json::Kind::array) wrong(below(path, "required"), *list, "an array of names");
    for (const Json& name : list->array()) {
      if (name.kind() != Json::Kind::string) wrong(below(path, "required"), name, "a name");
      out.push_back(name.string());
    }
    return out;
  }

  ExprId object(const Json& s, const std::string& path) {
    const std::vector<std::string> required = required_of(s, path);
    const Json* rest = s.find("additionalProperties");
    const std::string rest_path = below(path, "additionalProperties");
    std::vector<Member> members;
    std::vector<std::string> names;
    const auto add = [&](const std::string& name, ExprId value, bool needed) {
      members.push_back({g_.sequence({json_.constant(name), json_.colon(), value}), needed});
      names.push_back(name);
    };
    if (const Json* properties = s.find("properties")) {
      if (properties->kind() != Json::Kind::object) wrong(below(path, "properties"), *properties, "an object");
      for (const JsonMember& p : properties->object())
        add(p.key, schema(p.value, below(below(path, "properties"), p.key)),
            std::ranges::find(required, p.key) != required.end());
    }
    ExprId other = -1;
    if (rest == nullptr || *rest != Json(false))
      other = as_rule(rest == nullptr ? json_.value() : schema(*rest, rest_path), rest_path);
    for (const std::string& name : required)
      if (std::ranges::find(names, name) == names.end()) {
        if (other < 0)
          refuse(below(path, "required"),
                 str("'", printable(name), "' is neither among properties nor allowed beside them"));
        add(name, other, true);
      }
    const ExprId more = other < 0 ? -1 : g_.sequence({json_.other_than(names), json_.colon(), other});
    return json_.enclosed("{", in_order(members, more), "}");
  }

  // Behind a member every further one brings its comma; the first that is there has none.
  ExprId in_order(const std::vector<Member>& members, ExprId more) {
    const ExprId others = more < 0 ? g_.empty() : g_.repeat(g_.sequence({json_.comma(), more}), 0, kNoEnd);
    ExprId first = more < 0 ? g_.empty() : g_.optional(g_.sequence({more, others}));
    const auto needed = std::ranges::find(members, true, &Member::required);
    // Members that may be first: all up to the first that is required. What follows each is a rule, said once.
    const auto leading = std::min<size_t>(members.size(), static_cast<size_t>(needed - members.begin()) + 1);
    ExprId tail = others;
    for (size_t i = members.size(); i-- > 0;) {
      const Member& m = members[i];
      if (i < leading) {
        const ExprId begin = g_.sequence({m.text, tail});
        first = m.required ? begin : g_.choice({begin, first});
        if (i > 0) first = as_rule(first, "members");
      }
      const ExprId with_comma = g_.sequence({json_.comma(), m.text});
      tail = g_.sequence({m.required ? with_comma : g_.optional(with_comma), tail});
      if (i > 0) tail = as_rule(tail, "members");
    }
    return first;
  }

  static constexpr int64_t kMostSchemas = 100'000;
  static constexpr int kMostNested = 150;

  Grammar& g_;
  JsonRules json_;
  const std::string name_;
  SchemaTree tree_;
  Leaf leaf_;          // of an argument whose value is being read; else values are JSON
  bool bare_ = false;  // a string is bare text
  std::map<std::string, RuleId> refs_;
  std::deque<Open> open_;
  int64_t schemas_ = 0;
  int depth_ = 0;
};

Json parse_schema(std::string_view text, const std::string& name) {
  return parse_json(text, {name, ErrorCode::invalid_argument}, {.max_bytes = int64_t{1} << 20});
}

// Of an object, whatever the schema says beside that.
Json parse_arguments(std::string_view text, const std::string& name) {
  Json schema = parse_schema(text, name);
  if (schema.kind() != Json::Kind::object)
    fail(ErrorCode::invalid_argument, name, ": ", describe(schema), ", expected a schema of an object");
  if (schema.find("type") == nullptr) schema.set("type", "object");
  if (*schema.find("type") != Json("object"))
    fail(ErrorCode::invalid_argument, name, ": type: ", describe(*schema.find("type")),
         ", expected \"object\": arguments are one");
  return schema;
}

bool names_all(const Json& schema) {
  const Json *properties = schema.find("properties"), *rest = schema.find("additionalProperties");
  if (properties == nullptr ? rest == nullptr : properties->kind() != Json::Kind::object) return false;
  if (rest != nullptr && *rest != Json(false)) return false;
  for (const char* key : {"$ref", "allOf", "anyOf", "oneOf", "enum", "const"})
    if (schema.find(key) != nullptr) return false;
  const Json* required = schema.find("required");
  if (required == nullptr || required->kind() != Json::Kind::array) return required == nullptr;
  return std::ranges::all_of(required->array(), [&](const Json& name) {
    return name.kind() == Json::Kind::string && properties != nullptr && properties->find(name.string()) != nullptr;
  });
}

}  // namespace

RuleId read_json_schema(Grammar& out, std::string_view text) {
  const Json schema = parse_schema(text, out.name());
  return Compiler(out, out.name(), schema).run();
}

RuleId read_arguments_schema(Grammar& out, std::string_view text, const std::string& name) {
  const Json schema = parse_arguments(text, name);
  return Compiler(out, name, schema).run();
}

std::optional<RuleId> read_argument_elements(Grammar& out, std::string_view text, const std::string& name,
                                             const ArgumentElement& element) {
  const Json schema = parse_arguments(text, name);
  if (!names_all(schema)) return std::nullopt;
  return Compiler(out, name, schema).elements(element);
}

ExprId any_argument_element(Grammar& out, const std::function<ExprId(std::string_view, ExprId)>& element) {
  JsonRules json(out);
  return out.choice({element("string", bare_text(out)), element("number", json.number()),
                     element("boolean", json.boolean()), element("null", out.literal("null")),
                     element("object", json.object()), element("array", json.array())});
}

RuleId json_object_rule(Grammar& out) {
  const RuleId rule = out.rule("object");
  out.define(rule, JsonRules(out).object());
  return rule;
}

}  // namespace kdelta::grammar
