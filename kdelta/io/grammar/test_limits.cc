// Hostile grammars: each is refused by what is too much of it, or works in the time that a test has.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kdelta/io/grammar/json_schema.h"
#include "kdelta/io/grammar/regex.h"
#include "kdelta/io/grammar/test_vocabulary.h"
#include "tests/support/op_test.h"

namespace kdelta::grammar {
namespace {

using testing::HasSubstr;

Grammar of_regex(std::string_view pattern) {
  Grammar g("regex");
  const RuleId root = g.rule("");
  g.define(root, read_regex(g, "regex", pattern, Anchors::whole, [&](const CharSet& set) { return g.chars(set); }));
  return g;
}

Grammar of_schema(std::string_view schema) {
  Grammar g("json_schema");
  const RuleId root = g.rule("");
  g.define(root, g.call(read_json_schema(g, schema)));
  return g;
}

template <class F>
std::string refusal(const F& grammar) {
  return test::error_of([&] { (void)Program(grammar()); });
}

std::string repeated(const std::string& text, size_t times) {
  std::string out;
  while (times-- > 0) out += text;
  return out;
}

TEST(Limits, WhatIsTooLargeIsRefusedBeforeItTakesMemory) {
  EXPECT_THAT(refusal([] { return of_regex("(((a{1000}){1000}){1000}){1000}"); }), HasSubstr("too large: more than"));
  EXPECT_THAT(refusal([] { return of_regex("(((){1000000}){1000000}){1000000}"); }), HasSubstr("too large: more than"));
  EXPECT_THAT(refusal([] { return of_regex(repeated("(a?){3000}", 1) + repeated("a?", 20000)); }),
              HasSubstr("too large"));
  EXPECT_THAT(refusal([] { return of_regex(repeated("(", 100000)); }), HasSubstr("more than 150 groups"));
  EXPECT_THAT(refusal([] { return parse_gbnf("root ::= " + repeated("(", 100000)); }),
              HasSubstr("more than 200 groups"));
  EXPECT_THAT(refusal([] { return parse_gbnf("root ::= \"a\"" + repeated("*", 100000)); }),
              HasSubstr("nested more than 500"));
  EXPECT_THAT(refusal([] { return parse_gbnf(repeated(" ", 2 << 20)); }), HasSubstr("expected at most 1048576"));
  EXPECT_THAT(refusal([] { return of_schema(repeated("{\"items\":", 5000)); }), HasSubstr("json_schema"));
  EXPECT_THAT(
      refusal([] {
        return of_schema(
            R"({"$defs":{"a":{"anyOf":[{"$ref":"#/$defs/a","type":"object"},{"type":"null"}]}},"$ref":"#/$defs/a"})");
      }),
      HasSubstr("refers to itself with no value in between"));
  EXPECT_THAT(refusal([] { return of_schema(R"({"allOf":[{"$ref":"#"},{"type":"object"}]})"); }),
              HasSubstr("refers to itself with no value in between"));
  std::string doubling = R"({"$ref":"#/$defs/a0","$defs":{)";
  for (int i = 0; i < 40; ++i) {
    const std::string next = R"({"$ref":"#/$defs/a)" + std::to_string(i + 1) + R"(","type":"object"})";
    doubling += "\"a" + std::to_string(i) + "\":{\"anyOf\":[" + next + "," + next + "]},";
  }
  EXPECT_THAT(refusal([&] { return of_schema(doubling + R"("a40":{}}})"); }),
              HasSubstr("more than 2000 ways to combine the schemas"));
}

TEST(Limits, LongListsOfWordsAndChainsOfReferencesWork) {
  std::string words = "[\"w\"", chain = R"({"$ref":"#/$defs/a0","$defs":{)";
  for (int i = 0; i < 20000; ++i) words += ",\"w" + std::to_string(i) + "\"";
  for (int i = 0; i < 5000; ++i)
    chain += "\"a" + std::to_string(i) + "\":{\"$ref\":\"#/$defs/a" + std::to_string(i + 1) + "\"},";
  Recogniser list(of_schema("{\"enum\":" + words + "]}")), linked(of_schema(chain + R"("a5000":{"type":"null"}}})"));
  EXPECT_TRUE(list.reads("\"w19999\""));
  EXPECT_FALSE(list.reads("\"w20000\""));
  EXPECT_TRUE(linked.reads("null"));
  std::string many = R"({"type":"object","additionalProperties":false,"properties":{"p":{})";
  for (int i = 0; i < 300; ++i) many += ",\"p" + std::to_string(i) + "\":{\"type\":\"null\"}";
  EXPECT_TRUE(Recogniser(of_schema(many + "}}")).reads(R"({"p7":null,"p299":null})"));
}

// Reads `text` token by token, a mask for each; the message of the Error that ends it.
std::string follow(const Grammar& g, const std::string& text, const MaskerLimits& limits = {}) {
  const TestVocabulary v([] {
    std::vector<std::string> all = TestVocabulary::all_bytes();
    for (const char* more : {"aa", "aaaa", "aaaaaaaa", "((((", "))))"}) all.push_back(more);
    return all;
  }());
  return test::error_of([&] {
    Matcher m(v.masker(g, limits));
    std::vector<int32_t> tokens;
    std::vector<uint32_t> bits = v.bits();
    for (const char c : text) {
      m.follow(tokens);
      EXPECT_TRUE(m.mask(bits));
      tokens.push_back(static_cast<uint8_t>(c));
    }
  });
}

TEST(Limits, AnAmbiguousGrammarTakesNoExponentialTime) {
  EXPECT_EQ(follow(of_regex("((a|a|aa)*|a*)*b?"), std::string(300, 'a')), "no error");
  EXPECT_EQ(follow(of_regex("((a|b)*a(a|b){200})*"), std::string(300, 'a')), "no error");
  EXPECT_EQ(follow(parse_gbnf("root ::= root root | \"a\""), std::string(60, 'a')), "no error");
  EXPECT_EQ(follow(parse_gbnf("root ::= \"a\" root root | \"a\" root | \"a\""), std::string(60, 'a')), "no error");
  EXPECT_EQ(follow(parse_gbnf("root ::= \"(\" root \")\" | \"a\""), std::string(20000, '(')), "no error");
}

TEST(Limits, WhatTakesTooLongForOneTokenSaysSo) {
  EXPECT_THAT(
      follow(parse_gbnf("root ::= \"a\" root root | \"a\" root | \"a\""), std::string(5000, 'a'), {.work = 5000}),
      HasSubstr("too ambiguous"));
  EXPECT_THAT(follow(of_regex("(a|b){0,200000}"), std::string(3000, 'a'), {.kept_bytes = 100'000}),
              HasSubstr("too large: its states"));
}

}  // namespace
}  // namespace kdelta::grammar
