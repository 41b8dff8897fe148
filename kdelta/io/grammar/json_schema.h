// JSON Schema as a grammar of the documents that are valid under it. Members come in the order of `properties`, those
// that are only `required` behind them, then any others; numbers and white space are as json_rules.h says, and names,
// constants and what a pattern or format describes are spelled as json.dumps spells them.
//
// Keywords: type, enum, const; properties, required, additionalProperties, patternProperties, propertyNames,
// unevaluatedProperties, minProperties, maxProperties, dependentRequired, dependentSchemas; items, prefixItems,
// minItems, maxItems, uniqueItems (of items of at most 8 values); minLength, maxLength, pattern, format (date-time,
// date, time, uuid, duration, ipv4, ipv6, hostname, uri, email), together too; minimum, maximum, exclusiveMinimum,
// exclusiveMaximum (whole bounds of numbers), multipleOf (whole ones up to 1000: numbers without a fraction); anyOf,
// allOf, oneOf, not, if, then, else, as far as the opposite of a schema can be said; $ref within the document, $defs,
// definitions; annotations. true, false and {} are schemas. What is allowed is exactly what is valid, but for spelling
// and order.
#pragma once

#include <functional>
#include <optional>
#include <string_view>

#include "kdelta/io/grammar/grammar.h"

namespace kdelta::grammar {

// The rule of its documents. Throws Error(invalid_argument) naming the JSON pointer of the keyword: one that is not
// among these or of the wrong type, a $ref to nothing, keywords together that the grammar cannot say; text above 1 MiB.
RuleId read_json_schema(Grammar& out, std::string_view text);
// The same for a document that must be an object, as the arguments of a call are; `name` begins the messages instead of
// the grammar's.
RuleId read_arguments_schema(Grammar& out, std::string_view text, const std::string& name);
// Arguments that a chat format spells one by one: `element` makes the text of one of a type (object, array, string,
// number, boolean, null) whose value is bare text for strings and JSON for all others. They come in the order of
// `properties`. nullopt for a schema whose members are not all known by name: it combines schemas, or
// additionalProperties is neither absent nor false.
using ArgumentElement = std::function<ExprId(const std::string& key, std::string_view type, ExprId value)>;
std::optional<RuleId> read_argument_elements(Grammar& out, std::string_view text, const std::string& name,
                                             const ArgumentElement& element);
// One of every type.
ExprId any_argument_element(Grammar& out, const std::function<ExprId(std::string_view type, ExprId value)>& element);
// Any object.
RuleId json_object_rule(Grammar& out);

}  // namespace kdelta::grammar
