#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kdelta/io/grammar/json_numbers.h"
#include "kdelta/io/grammar/json_schema.h"
#include "kdelta/io/grammar/test_vocabulary.h"
#include "kdelta/io/json.h"
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

TEST(JsonSchema, OfAThousandMembersEachHasItsOwnSchemaAndPlace) {
  constexpr int kMembers = 1000;
  Json properties = Json::Object{}, required = Json::Array{};
  std::string all, needed, missing;
  for (int i = 0; i < kMembers; ++i) {
    const std::string name = "m" + std::to_string(i);
    properties.object().push_back({name, Json::Object{{"type", i % 2 == 0 ? "integer" : "null"}}});
    if (i % 3 == 0) required.array().push_back(name);
    const std::string member = "\"" + name + (i % 2 == 0 ? "\":7" : "\":null");
    all += (i == 0 ? "" : ",") + member;
    if (i % 3 == 0) needed += (i == 0 ? "" : ",") + member;
    if (i % 3 == 0 && i != 600) missing += (i == 0 ? "" : ",") + member;
  }
  const std::string schema = json_text(Json::Object{
      {"type", "object"}, {"properties", properties}, {"required", required}, {"additionalProperties", false}});
  expect_reads(schema, {"{" + all + "}", "{" + needed + "}"}, {"{" + missing + "}", "{" + all + ",\"m1\":null}"});
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

TEST(JsonSchema, KeywordsOfStringsHoldTogether) {
  expect_reads(R"({"type":"string","pattern":"^[a-c]+$","minLength":2,"maxLength":3})", {"\"ab\"", "\"cab\""},
               {"\"a\"", "\"abca\"", "\"ad\""});
  expect_reads(R"({"type":"string","format":"date","pattern":"^2024"})", {"\"2024-02-29\""}, {"\"2023-02-28\""});
  expect_reads(R"({"type":"string","pattern":"a","not":{"enum":["a","ba"]},"allOf":[{"pattern":"^.a?$"}]})",
               {"\"xa\"", "\"aa\""}, {"\"a\"", "\"ba\"", "\"xaa\""});
}

TEST(JsonSchema, TheOppositeOfAPatternIsWhatNoEngineMatches) {
  expect_reads(R"({"type":"string","not":{"pattern":"^\\d$"}})", {"\"a\"", "\"12\""},
               {"\"1\"", "\"\u0663\"", "\"1\\n\""});
  expect_reads(R"({"type":"string","not":{"pattern":"\\W"}})", {"\"a_1\"", "\"\""}, {"\"-\"", "\"\u00e9\""});
  expect_reads(R"({"type":"string","not":{"pattern":"a.b"}})", {"\"ab\"", "\"a\""}, {"\"a\\nb\"", "\"axb\""});
  expect_reads(
      R"({"type":"object","patternProperties":{"^\\w$":{"type":"null"}},"additionalProperties":{"type":"integer"}})",
      {R"({"a":null,"bb":1,"-":2})"}, {R"({"a":1})", "{\"\u00e9\":null}", "{\"\u00e9\":1}", R"({"a\n":1})"});
}

TEST(JsonSchema, FormatsAreThoseOfTheirStandards) {
  const auto texts = [](std::vector<std::string> all) {
    for (std::string& t : all) t = "\"" + t + "\"";
    return all;
  };
  expect_reads(R"({"type":"string","format":"ipv6"})",
               texts({"::", "::1", "1::", "2001:db8::ff:0:1", "1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7::", "::ffff:10.0.0.1",
                      "1:2:3:4:5:6:1.2.3.4", "1::2:3:4:5:6:7", "1:2::4:1.2.3.4"}),
               texts({"", ":", ":::", "1", "1:2:3:4:5:6:7:8:9", "1::2::3", "12345::", "1:2:3:4:5:6:7:1.2.3.4",
                      "::256.1.1.1", "1:2:3:4:5:6:7"}));
  expect_reads(R"({"type":"string","format":"hostname"})", texts({"a", "a-b.example.org", "1.2"}),
               texts({"", "-a", "a-", "a..b", ".a", "a_b", "a."}));
  expect_reads(R"({"type":"string","format":"uri"})",
               texts({"http://example.org", "https://u:p@h.org:80/a/b%20?q=1&r=/#f", "mailto:a@b.c", "urn:isbn:0",
                      "file:///x", "http://[::1]/", "x:"}),
               texts({"", "a", "//h", "1x:y", "http://h/ ", "http://h/%2", "http://[::1", "x:\u00e9", "a/b:c"}));
  expect_reads(R"({"type":"string","format":"duration"})", texts({"P1Y", "P1Y2M3DT4H5M6S", "PT5M", "P2W", "P1DT6S"}),
               texts({"P", "PT", "P1", "P1S", "P1Y2D", "PT1H2S", "P1W2D", "P1DT"}));
}

TEST(JsonSchema, NumbersAreMultiplesAndNoneOfTheExcluded) {
  expect_reads(R"({"type":"integer","multipleOf":7,"minimum":-20,"maximum":10000,"not":{"enum":[14,7.0]}})",
               {"0", "-14", "21", "9996"}, {"7", "14", "-21", "20", "10003"});
  expect_reads(R"({"type":"number","multipleOf":10,"allOf":[{"multipleOf":4}]})", {"0", "-20", "1000000000000000020"},
               {"10", "30", "20.5", "1000000000000000010"});
  expect_reads(R"({"type":"integer","not":{"minimum":5}})", {"4", "-100"}, {"5", "6"});
}

TEST(JsonNumbers, MultiplesAreExactlyThoseWithinRandomBounds) {
  test::Rng rng(5);
  for (int round = 0; round < 30; ++round) {
    NumberBounds b;
    const auto bound = [&] { return static_cast<int64_t>(rng() % 2600) - 1300; };
    if (rng() % 4 != 0) b.low = bound();
    if (rng() % 4 != 0) b.high = bound();
    if (b.low && b.high && *b.low > *b.high) std::swap(b.low, b.high);
    const auto divisor = static_cast<int64_t>(1 + rng() % 40);
    Grammar g("test");
    const RuleId root = g.rule("");
    g.define(root, g.choice({multiples(g, b, divisor), g.literal("x")}));
    Recogniser of_multiples(g);
    for (int64_t n = -1500; n <= 1500; ++n)
      ASSERT_EQ(of_multiples.reads(std::to_string(n)),
                n % divisor == 0 && (!b.low || n >= *b.low) && (!b.high || n <= *b.high))
          << n << " of " << divisor << " in " << b.low.value_or(-9999) << " " << b.high.value_or(9999);
  }
}

TEST(JsonSchema, ItemsOfFewValuesDiffer) {
  const char* schema =
      R"({"type":"array","items":{"enum":["a",1,1.0,null]},"uniqueItems":true,"minItems":1,"maxItems":2})";
  expect_reads(schema, {R"(["a"])", R"([null, "a"])", "[1,null]"}, {"[]", R"(["a","a"])", "[1,1]", "[1,null,\"a\"]"});
  expect_reads(R"({"type":"array","items":{"type":"boolean"},"uniqueItems":true})", {"[]", "[true,false]"},
               {"[true,true]"});
}

TEST(JsonSchema, MembersAreCountedAndNeedEachOther) {
  const char* closed = R"({"type":"object","properties":{"a":{},"b":{},"c":{}},"additionalProperties":false,)";
  expect_reads(closed + std::string(R"("minProperties":1,"maxProperties":2})"),
               {R"({"a":1})", R"({"a":1,"c":2})", R"({"c":1})"}, {"{}", R"({"a":1,"b":1,"c":1})"});
  expect_reads(closed + std::string(R"("dependentRequired":{"b":["a","c"]}})"),
               {"{}", R"({"a":1})", R"({"c":1})", R"({"a":1,"b":2,"c":3})"},
               {R"({"b":1})", R"({"a":1,"b":1})", R"({"b":1,"c":1})"});
  expect_reads(closed + std::string(R"("dependentSchemas":{"b":{"required":["c"]}}})"),
               {R"({"a":1})", R"({"b":1,"c":1})"}, {R"({"b":1})"});
  expect_reads(R"({"type":"object","minProperties":1,"maxProperties":2})", {R"({"x":1})", R"({"x":1,"y":2})"},
               {"{}", R"({"x":1,"y":2,"z":3})"});
}

TEST(JsonSchema, NamesOfMembersHaveTheirSchemas) {
  expect_reads(
      R"({"type":"object","propertyNames":{"pattern":"^[a-z]{1,2}$"},"additionalProperties":{"type":"integer"}})",
      {"{}", R"({"a":1,"bc":2})"}, {R"({"abc":1})", R"({"A":1})", R"({"a":true})"});
  expect_reads(R"({"type":"object","properties":{"x":{},"y1":{}},"propertyNames":{"enum":["x","z"]}})",
               {R"({"x":1,"z":2})"}, {R"({"y1":1})", R"({"w":1})"});
  expect_reads(
      R"({"type":"object","properties":{"x1":{"type":"integer"}},"patternProperties":{"^x":{"minimum":3},"9$":{"type":"null"}},
                   "additionalProperties":false})",
      {R"({"x1":3,"x":"a"})", R"({"x9":null,"9":null,"x2":5})"},
      {R"({"x1":2})", R"({"x9":3})", R"({"9":3})", R"({"y":1})"});
}

TEST(JsonSchema, ConditionsOppositesAndAlternativesAreExact) {
  const char* kinds = R"({"type":"object","properties":{"kind":{"enum":["a","b"]},"v":{}},"required":["kind","v"],
      "additionalProperties":false,"if":{"properties":{"kind":{"const":"a"}}},"then":{"properties":{"v":{"type":"integer"}}},
      "else":{"properties":{"v":{"type":"string"}}}})";
  expect_reads(kinds, {R"({"kind":"a","v":1})", R"({"kind":"b","v":"x"})"},
               {R"({"kind":"a","v":"x"})", R"({"kind":"b","v":1})"});
  expect_reads(R"({"oneOf":[{"type":"integer","minimum":5},{"type":"integer","maximum":10}]})", {"4", "11", "-7"},
               {"5", "10", "\"a\""});
  expect_reads(R"({"enum":[1,"a",null,[1],{"x":1}],"not":{"type":["string","array"]},"minProperties":1})",
               {"1", "null", R"({"x": 1})"}, {"\"a\"", "[1]", "2"});
  expect_reads(R"({"not":{"anyOf":[{"type":"object"},{"type":"number"},{"minLength":1}]}})", {"\"\""},
               {"{}", "1", "\"a\"", "[]", "null"});
}

TEST(JsonSchema, AllOfJoinsWhatEachSaysOfTheOthersMembers) {
  expect_reads(
      R"({"type":"object","allOf":[{"properties":{"a":{"minimum":3}},"additionalProperties":{"type":"integer"}},
                   {"properties":{"b":{"maximum":5}},"additionalProperties":false,"patternProperties":{"^a":{}}}]})",
      {R"({"a":3,"b":5})", R"({"a":"x","b":1,"ab":2})"},
      {R"({"b":"x"})", R"({"a":2})", R"({"b":6})", R"({"ab":"x"})", R"({"c":1})"});
  expect_reads(R"({"type":"object","allOf":[{"properties":{"a":{}}},{"$ref":"#/$defs/b"}],"properties":{"c":{}},
                   "unevaluatedProperties":false,"$defs":{"b":{"anyOf":[{"properties":{"b":{}},"required":["b"]},{"properties":{"d":{}},"required":["d"]}]}}})",
               {R"({"c":1,"a":2,"b":3})", R"({"b":1})", R"({"b":1,"d":2})"}, {R"({"c":1})", R"({"b":1,"e":2})"});
}

TEST(JsonSchema, WhatItCannotSayIsRefusedByItsPlaceAndKeyword) {
  EXPECT_EQ(refusal(R"({"properties":{"a/b":{"minContains":1}}})"),
            "json_schema: #/properties/a~1b/minContains: this keyword is not supported");
  for (const char* keyword :
       {"contains", "minContains", "unevaluatedItems", "dependencies", "$dynamicRef", "$anchor", "nullable", "made_up"})
    EXPECT_EQ(refusal(std::string("{\"") + keyword + "\":1}"),
              std::string("json_schema: #/") + keyword + ": this keyword is not supported");
  EXPECT_EQ(refusal(R"({"type":"array","uniqueItems":true})"),
            "json_schema: #/uniqueItems: true, supported for items of at most 8 values (enum, const)");
  EXPECT_EQ(refusal(R"({"type":"float"})"),
            "json_schema: #/type: string \"float\", expected object, array, string, number, integer, boolean or null");
  EXPECT_THAT(refusal(R"({"type":"string","format":"iri"})"),
              HasSubstr("#/format: string \"iri\", expected date-time, date, time, uuid, duration"));
  EXPECT_THAT(refusal("{\"type\":\"string\",\"pattern\":\"a(?!b)\"}"),
              HasSubstr("#/pattern: column 2: look-ahead is not supported"));
  EXPECT_THAT(refusal(R"({"type":"string","pattern":"a{2000}","maxLength":30000})"),
              HasSubstr("too large to hold together"));
  EXPECT_THAT(refusal(R"({"type":"number","minimum":0.5})"), HasSubstr("#/minimum: number 0.5: for numbers"));
  EXPECT_THAT(refusal(R"({"type":"number","multipleOf":0.5})"), HasSubstr("#/multipleOf: number 0.5, supported: a"));
  EXPECT_THAT(refusal(R"({"oneOf":[{"type":"integer"},{"type":"number"}]})"),
              HasSubstr("numbers that must not be whole"));
  EXPECT_THAT(refusal(R"({"oneOf":[{"items":{}},{"items":{"type":"null"}}]})"),
              HasSubstr("#/oneOf: [0] and [1] are not known to exclude each other (json_schema: #/oneOf/"));
  EXPECT_THAT(refusal(R"({"not":{"items":{"type":"null"}}})"),
              HasSubstr("#/not/items: is not supported where the schema must not hold"));
  EXPECT_THAT(refusal(R"({"type":"string","not":{"format":"date"}})"),
              HasSubstr("#/not/format: is not supported where"));
  EXPECT_THAT(refusal(R"({"type":"number","not":{"const":1}})"), HasSubstr("#: not: a number among numbers with a"));
  EXPECT_THAT(refusal(R"({"type":"object","minProperties":2})"), HasSubstr("#/minProperties: more than one property"));
  EXPECT_THAT(refusal(R"({"type":"object","patternProperties":{"a":{},"b":{},"c":{},"d":{},"e":{},"f":{}}})"),
              HasSubstr("#/patternProperties: more than 5 patterns"));
  EXPECT_THAT(refusal(R"({"$ref":"http://x/y"})"),
              HasSubstr("#/$ref: 'http://x/y', expected a place in this document"));
  EXPECT_THAT(refusal(R"({"$ref":"#/$defs/x"})"), HasSubstr("#/$ref: '#/$defs/x': there is no '$defs'"));
  EXPECT_THAT(refusal(R"({"type":"string","minLength":-1})"),
              HasSubstr("#/minLength: integer -1, expected a whole number"));
  EXPECT_THAT(refusal("[1]"), HasSubstr("expected a schema"));
  EXPECT_THAT(refusal("{"), HasSubstr("json_schema"));
  for (const char* loop : {R"({"$ref":"#"})", R"({"allOf":[{"$ref":"#"},{"type":"object"}]})",
                           R"({"not":{"$ref":"#"}})", R"({"oneOf":[{"type":"null"},{"$ref":"#","minLength":1}]})"})
    EXPECT_THAT(refusal(loop), HasSubstr("refers to itself with no value in between")) << loop;
  EXPECT_THAT(refusal("false"), HasSubstr("matches no text"));
  EXPECT_THAT(refusal(R"({"required":["a"],"additionalProperties":false,"type":"object"})"),
              HasSubstr("matches no text"));
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
  EXPECT_EQ(test::error_of([&] { (void)elements_of(R"({"properties":{"a":{"items":{"contains":1}}}})"); }),
            "f: #/properties/a/items/contains: this keyword is not supported");
  EXPECT_THAT(test::error_of([&] {
                (void)elements_of(R"({"properties":{"a":{"$ref":"#/$defs/a"}},"$defs":{"a":{"$ref":"#/$defs/a"}}})");
              }),
              HasSubstr("refers to itself"));
}

}  // namespace
}  // namespace kdelta::grammar
