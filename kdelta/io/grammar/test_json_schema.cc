#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kdelta/io/grammar/json_numbers.h"
#include "kdelta/io/grammar/json_schema.h"
#include "kdelta/io/grammar/test_vocabulary.h"
#include "tests/support/op_test.h"

namespace kdelta::grammar {
namespace {

using testing::HasSubstr;

Grammar of(std::string_view schema) {
  Grammar g("json_schema");
  const RuleId root = g.rule("");
  g.define(root, g.call(read_json_schema(g, schema)));
  return g;
}

void expect_reads(std::string_view schema, const std::vector<std::string>& good, const std::vector<std::string>& bad) {
  Recogniser g(of(schema));
  for (const std::string& t : good) EXPECT_TRUE(g.reads(t)) << schema << "\n" << t;
  for (const std::string& t : bad) EXPECT_FALSE(g.reads(t)) << schema << "\n" << t;
}

std::string refusal(std::string_view schema) {
  return test::error_of([&] { (void)Program(of(schema)); });
}

TEST(JsonSchema, AnyValueIsReadInTheFormsThatDumpsWrites) {
  expect_reads("{}",
               {"null", "-0.5e-3", "\"a\\u00e9\\ud83d\\ude00\\n\u00e9\"", "[]", "[ ]", "{\"a\": [1, {\"b\": null}]}",
                "{\"a\":[1,{}]}", "{\n  \"a\": [\n    1,\n    2\n  ]\n}"},
               {"", "01", "+1", "nul", "\"\\x\"", "\"\\ud800\"", "\"\n\"", "[1,]", "[1 ,2]", "{\"a\"}", "{'a':1}", " 1",
                "1 ", "\"\xC3\"", "[\n\n1]"});
}

TEST(JsonSchema, MembersComeInOrderTheRequiredOnesAlways) {
  const char* schema =
      R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"boolean"},"c":{"type":"null"}},
                          "required":["b"],"additionalProperties":false})";
  expect_reads(schema,
               {R"({"b": true})", R"({"a": 1, "b": true})", R"({"a":1,"b":true,"c":null})", R"({"b":false,"c":null})"},
               {"{}", R"({"a": 1})", R"({"b":true,"a":1})", R"({"a":1,"c":null})", R"({"b":true,"d":1})",
                R"({,"b":true})", R"({"a":1,})", R"({"a":1 "b":true})"});
  expect_reads(R"({"type":"object","properties":{"a":{},"b":{}},"additionalProperties":false})",
               {"{}", R"({"a":1})", R"({"b":1})", R"({"a":1,"b":2})"}, {R"({"b":1,"a":2})", R"({"a":1,"a":2})", "{,}"});
}

TEST(JsonSchema, OtherMembersAreNoneOfTheNamedOnes) {
  expect_reads(
      R"({"type":"object","properties":{"ab":{"type":"integer"},"\"é":{}},"additionalProperties":{"type":"boolean"}})",
      {"{}", R"({"ab":1,"x":true})", R"({"abc":true,"a":false,"":true})", R"({"\"é":3,"\"è":true,"\"":true})"},
      {R"({"ab":true})", R"({"ab":1,"ab":true})", R"({"x":1})", R"({"\u0061b":true})", R"({"\"é":3,"\"é":true})"});
  expect_reads(R"({"type":"object","required":["z"]})", {R"({"z":1,"a":2})"}, {R"({"a":2})", "{}"});
}

TEST(JsonSchema, ArraysHaveTheirItemsAndAsManyAsTheyMay) {
  expect_reads(R"({"type":"array","items":{"type":"integer"},"minItems":2,"maxItems":3})", {"[1,2]", "[1, 2, 3]"},
               {"[]", "[1]", "[1,2,3,4]", "[1,true]"});
  expect_reads(
      R"({"type":"array","prefixItems":[{"type":"integer"},{"type":"string"}],"items":{"type":"null"},"minItems":1})",
      {"[1]", "[1,\"a\"]", "[1,\"a\",null,null]"}, {"[]", "[\"a\"]", "[1,null]", "[1,\"a\",2]"});
  expect_reads(R"({"type":"array","prefixItems":[{"type":"integer"},{"type":"integer"}],"items":false})",
               {"[]", "[1]", "[1,2]"}, {"[1,2,3]"});
  expect_reads(R"({"type":"array","maxItems":0})", {"[]"}, {"[1]"});
}

TEST(JsonSchema, StringsHaveTheirLengthInCharactersPatternsAndFormats) {
  expect_reads(R"({"type":"string","minLength":2,"maxLength":3})", {"\"ab\"", "\"\\n\u00e9\\ud83d\\ude00\""},
               {"\"a\"", "\"abcd\"", "\"\\ud83d\\ude00\""});
  expect_reads(R"({"type":"string","pattern":"^[A-Z]\"+"})", {"\"A\\\"\"", "\"Z\\\"\\\" \u4e2d\\n\""},
               {"\"A\"", "\"a\\\"\"", "\"A\"\""});
  expect_reads(R"({"type":"string","pattern":"x"})", {"\"x\"", "\"\\u0001x\\\\\""}, {"\"\"", "\"X\""});
  expect_reads(R"({"type":"string","format":"date"})", {"\"2024-02-29\"", "\"1999-12-31\"", "\"2000-02-29\""},
               {"\"2023-02-29\"", "\"1900-02-29\"", "\"2023-13-01\"", "\"2023-04-31\"", "\"0000-01-01\""});
  expect_reads(R"({"type":"string","format":"ipv4"})", {"\"192.168.0.255\""}, {"\"256.1.1.1\"", "\"01.1.1.1\""});
}

TEST(JsonSchema, NumbersKeepTheirBounds) {
  expect_reads(R"({"type":"number","minimum":0,"exclusiveMaximum":1})", {"0", "0.0", "0.999", "-0"},
               {"1", "1.0", "-0.1", "2"});
  expect_reads(R"({"type":"integer","exclusiveMinimum":-3,"maximum":12})", {"-2", "0", "9", "12"},
               {"-3", "13", "100", "1.0"});
  expect_reads(R"({"type":"integer","minimum":2.5,"maximum":3.5})", {"3"}, {"2", "4"});
}

TEST(JsonNumbers, AreExactlyThoseWithinRandomBounds) {
  test::Rng rng(4);
  for (int round = 0; round < 60; ++round) {
    NumberBounds b;
    const auto bound = [&] { return static_cast<int64_t>(rng() % 260) - 130; };
    if (rng() % 4 != 0) b.low = bound();
    if (rng() % 4 != 0) b.high = bound();
    if (b.low && b.high && *b.low > *b.high) std::swap(b.low, b.high);
    Grammar whole("test"), real("test");
    whole.define(whole.rule(""), whole.choice({integers(whole, b), whole.literal("x")}));
    b.above_low = b.low && rng() % 2 == 0;
    b.below_high = b.high && rng() % 2 == 0;
    real.define(real.rule(""), real.choice({decimals(real, b), real.literal("x")}));
    Recogniser of_whole(whole), of_real(real);
    for (int64_t n = -150; n <= 150; ++n) {
      const bool in = (!b.low || n >= *b.low) && (!b.high || n <= *b.high);
      ASSERT_EQ(of_whole.reads(std::to_string(n)), in)
          << n << " in " << b.low.value_or(-999) << " " << b.high.value_or(999);
    }
    for (int64_t tenths = -1500; tenths <= 1500; tenths += 1 + static_cast<int64_t>(rng() % 4)) {
      const auto above = [&](int64_t low) { return b.above_low ? tenths > 10 * low : tenths >= 10 * low; };
      const auto under = [&](int64_t high) { return b.below_high ? tenths < 10 * high : tenths <= 10 * high; };
      const bool in = (!b.low || above(*b.low)) && (!b.high || under(*b.high));
      const std::string text =
          (tenths < 0 ? "-" : "") + std::to_string(std::abs(tenths) / 10) + "." + std::to_string(std::abs(tenths) % 10);
      ASSERT_EQ(of_real.reads(text), in) << text << " in " << b.low.value_or(-999) << " " << b.high.value_or(999) << " "
                                         << b.above_low << b.below_high;
    }
  }
}

TEST(JsonSchema, EnumsAndConstantsAreSpelledAsDumpsDoes) {
  expect_reads(R"({"enum":["a","é\n",1,null,[1,{"x":true}]]})",
               {"\"a\"", "\"é\\n\"", "1", "null", "[1, {\"x\": true}]"}, {"\"b\"", "\"\\u0061\"", "2"});
  expect_reads(R"({"type":"string","enum":["a",1]})", {"\"a\""}, {"1"});
  expect_reads(R"({"const":"x"})", {"\"x\""}, {"\"y\""});
}

TEST(JsonSchema, SchemasAreCombinedAndMayCallThemselves) {
  expect_reads(R"({"anyOf":[{"type":"integer"},{"type":"null"}]})", {"1", "null"}, {"true"});
  expect_reads(R"({"type":"array","anyOf":[{"minItems":2},{"items":{"type":"null"}}]})", {"[1,2]", "[null]"},
               {"[1]", "1"});
  expect_reads(R"({"allOf":[{"$ref":"#/$defs/a"},{"properties":{"y":{"type":"null"}},"required":["y"]}],
                   "$defs":{"a":{"type":"object","properties":{"x":{"type":"integer"}},"required":["x"]}}})",
               {R"({"x":1,"y":null})"}, {R"({"x":1})", R"({"y":null})"});
  expect_reads(
      R"({"$defs":{"n":{"type":"object","properties":{"v":{"type":"integer"},"next":{"anyOf":[{"$ref":"#/$defs/n"},{"type":"null"}]}},
                   "required":["v","next"],"additionalProperties":false}},"$ref":"#/$defs/n"})",
      {R"({"v":1,"next":{"v":2,"next":null}})"}, {R"({"v":1})", R"({"v":1,"next":{}})"});
  expect_reads(R"({"type":"array","items":{"$ref":"#"}})", {"[]", "[[],[[]]]"}, {"[1]"});
  expect_reads(
      R"({"oneOf":[{"type":"object","properties":{"k":{"const":"a"}},"required":["k"],"additionalProperties":false},
                            {"type":"object","properties":{"k":{"const":"b"},"v":{"type":"integer"}},"required":["k","v"]},
                            {"type":"string"}]})",
      {R"({"k":"a"})", R"({"k":"b","v":1})", "\"s\""}, {R"({"k":"b"})", R"({"k":"c"})"});
}

TEST(JsonSchema, WhatItCannotSayIsRefusedByItsKeyword) {
  EXPECT_EQ(refusal(R"({"properties":{"a":{"minProperties":1}}})"),
            "json_schema: properties.a.minProperties: this keyword is not supported");
  for (const char* keyword :
       {"not", "if", "patternProperties", "propertyNames", "contains", "dependentRequired", "unevaluatedProperties",
        "maxProperties", "$dynamicRef", "$anchor", "nullable", "made_up"})
    EXPECT_EQ(refusal(std::string("{\"") + keyword + "\":1}"),
              std::string("json_schema: ") + keyword + ": this keyword is not supported");
  EXPECT_EQ(refusal(R"({"type":"array","uniqueItems":true})"), "json_schema: uniqueItems: true, supported: false");
  EXPECT_EQ(refusal(R"({"type":"float"})"),
            "json_schema: type: string \"float\", expected object, array, string, number, integer, boolean or null");
  EXPECT_THAT(refusal(R"({"type":"string","format":"hostname"})"),
              HasSubstr("format: string \"hostname\", expected date-time"));
  EXPECT_THAT(refusal("{\"type\":\"string\",\"pattern\":\"a(?!b)\"}"),
              HasSubstr("pattern: column 2: look-ahead is not supported"));
  EXPECT_THAT(refusal(R"({"type":"string","pattern":"a","maxLength":3})"),
              HasSubstr("pattern: is not supported beside"));
  EXPECT_THAT(refusal(R"({"type":"number","minimum":0.5})"), HasSubstr("minimum: number 0.5: for numbers"));
  EXPECT_THAT(refusal(R"({"type":"integer","multipleOf":3})"), HasSubstr("multipleOf: integer 3, supported: 1"));
  EXPECT_THAT(refusal(R"({"oneOf":[{"type":"integer"},{"type":"number"}]})"),
              HasSubstr("oneOf: [0] and [1] are not known"));
  EXPECT_THAT(refusal(R"({"$ref":"http://x/y"})"), HasSubstr("$ref: 'http://x/y', expected a place in this document"));
  EXPECT_THAT(refusal(R"({"$ref":"#/$defs/x"})"), HasSubstr("$ref: '#/$defs/x': there is no '$defs'"));
  EXPECT_THAT(refusal(R"({"enum":[1],"minimum":0})"), HasSubstr("minimum: is not supported beside enum"));
  EXPECT_THAT(refusal(R"({"required":["a"],"additionalProperties":false,"type":"object"})"),
              HasSubstr("required: 'a' is neither"));
  EXPECT_THAT(refusal(R"({"type":"string","minLength":-1})"),
              HasSubstr("minLength: integer -1, expected a whole number"));
  EXPECT_THAT(refusal("[1]"), HasSubstr("expected a schema"));
  EXPECT_THAT(refusal("{"), HasSubstr("json_schema"));
  EXPECT_THAT(refusal(R"({"$ref":"#"})"), HasSubstr("matches no text"));
  EXPECT_THAT(refusal("false"), HasSubstr("matches no text"));
}

// Spelled as <KEY TYPE VALUE>.
Grammar elements_of(std::string_view schema) {
  Grammar g("test");
  const RuleId root = g.rule("");
  const auto rule =
      read_argument_elements(g, schema, "f", [&](const std::string& key, std::string_view type, ExprId value) {
        return g.sequence({g.literal(str("<", key, " ", type, " ")), value, g.literal(">")});
      });
  if (!rule) throw Error(ErrorCode::unsupported, "members without a name");
  g.define(root, g.call(*rule));
  return g;
}

TEST(JsonSchema, ArgumentsAreElementsWhoseStringsAreBareText) {
  const auto expect = [](std::string_view schema, const std::vector<std::string>& good,
                         const std::vector<std::string>& bad) {
    Recogniser g(elements_of(schema));
    for (const std::string& t : good) EXPECT_TRUE(g.reads(t)) << schema << "\n" << t;
    for (const std::string& t : bad) EXPECT_FALSE(g.reads(t)) << schema << "\n" << t;
  };
  expect(R"({"type":"object","properties":{"s":{"type":"string"},"n":{"type":"integer"}},"required":["n"]})",
         {"<s string a \"b\"\n\\><n number 3>", "<s string ><n number -1>", "<n number 0>"},
         {"", "<s string a>", "<n number 3><s string a>", "<n integer 3>", "<n number 3.5>", "<n string 3>"});
  expect(R"({"properties":{"e":{"enum":["x\"",1,null,["y"]]},"t":{"type":["string","boolean"],"maxLength":2}}})",
         {"", "<e string x\">", "<e number 1>", "<e null null>", "<e array [\"y\"]>", "<t string \u00e9\u00e9>",
          "<t boolean true>"},
         {"<e string \"x\\\"\">", "<t string abc>", "<t boolean 1>"});
  expect(R"({"properties":{"p":{"pattern":"^[a\"]{2}$"},"d":{"type":"string","format":"date"},"o":{"$ref":"#/$defs/o"}},
             "$defs":{"o":{"anyOf":[{"type":"object","properties":{"k":{"type":"string"}},"required":["k"],"additionalProperties":false},
             {"type":"string","minLength":1}]}}})",
         {"<p string a\"><d string 2026-11-30><o object {\"k\": \"v\"}>", "<o string v>", "<p number 5>"},
         {"<o string >", "<o object {\"k\": v}>", "<o object {}>", "<p string a>"});
  expect(R"({"properties":{"any":{},"none":false}})",
         {"<any string {>", "<any object {\"a\":[\"b\"]}>", "<any null null>"}, {"<any object {>", "<none null null>"});
  for (const char* open : {R"({})", R"({"additionalProperties":{"type":"integer"},"properties":{"a":{}}})",
                           R"({"anyOf":[{"properties":{"a":{}}}]})", R"({"properties":{"a":{}},"required":["b"]})"})
    EXPECT_EQ(test::error_of([&] { (void)elements_of(open); }), "members without a name") << open;
  EXPECT_EQ(test::error_of([&] { (void)elements_of(R"({"properties":{"a":{"items":{"not":1}}}})"); }),
            "f: properties.a.items.not: this keyword is not supported");
  EXPECT_THAT(test::error_of([&] {
                (void)elements_of(R"({"properties":{"a":{"$ref":"#/$defs/a"}},"$defs":{"a":{"$ref":"#/$defs/a"}}})");
              }),
              HasSubstr("deep"));
}

}  // namespace
}  // namespace kdelta::grammar
