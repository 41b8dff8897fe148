#include <gtest/gtest.h>

#include "kdelta/io/grammar/test_vocabulary.h"
#include "tests/support/op_test.h"

namespace kdelta::grammar {
namespace {

using test::error_of;

std::string refusal(const std::string& text) {
  return error_of([&] { (void)Program(parse_gbnf(text)); });
}

void expect_reads(const std::string& grammar, const std::vector<std::string>& good,
                  const std::vector<std::string>& bad) {
  Recogniser g(parse_gbnf(grammar));
  for (const std::string& t : good) EXPECT_TRUE(g.reads(t)) << grammar << "\n'" << t << "'";
  for (const std::string& t : bad) EXPECT_FALSE(g.reads(t)) << grammar << "\n'" << t << "'";
}

TEST(Gbnf, ReadsEveryElementAsLlamaCppDoes) {
  expect_reads(R"(root ::= "a" [b-d]+ ("x" | "yy")? [^z\n]{2} .)", {"ab12\n", "abcdyyqqz"}, {"ab1", "a12q", "abzqq"});
  expect_reads(R"(root ::= "\x41\u00e9\U0001F600\n\t\r\\\"\[\]")", {"A\u00e9\U0001F600\n\t\r\\\"[]"}, {"A"});
  expect_reads("root ::= [a\\]\\\\-]+", {"]-\\a"}, {"b"});
  expect_reads("root ::= x{2} \"|\" x{1,} \"|\" x{0,2} \"|\" x{ 1 , 2 }\nx ::= [xy]", {"xy|xxx||x", "xy|x|yy|xx"},
               {"x|x||x", "xy||x|x", "xy|x|xxx|x"});
  expect_reads("root ::=\n  # a comment\n  \"a\" # another\nb ::= \"b\" |\n  \"c\"", {"a"}, {"b"});
  expect_reads("root ::= ( \"a\"\n  | b\n)*\n\nb ::= \"b\"\r\n", {"", "abba"}, {"c"});
  expect_reads("root ::= \"\" | [\u4e00-\u9fff]+", {"", "\u4e2d\u6587"}, {"\u4e2d\u6587a", "\u4e2d\xE6"});
}

TEST(Gbnf, ReadsTheJsonGrammarThatLlamaCppUsersHave) {
  expect_reads(R"(root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws

object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws

array  ::=
  "[" ws (
            value
    ("," ws value)*
  )? "]" ws

string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" ws

number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws

# Optional space: by convention, applied in this grammar after literal chars when allowed
ws ::= | " " | "\n" [ \t]{0,20}
)",
               {R"({"a": [1, -2.5e3, "x\n\u00e9é", {"b": null}], "c":{}} )", "{}"}, {"{", "[]", R"({"a" 1})"});
}

TEST(Gbnf, SaysWhereAndWhyItRefuses) {
  EXPECT_EQ(refusal(""), "grammar: column 1: no rules, expected root ::= ...");
  EXPECT_EQ(refusal("a ::= \"x\""), "grammar: column 1: no rule 'root'");
  EXPECT_EQ(refusal("root ::= a b\na ::= \"x\""), "grammar: line 1, column 12: rule 'b' is not defined");
  EXPECT_EQ(refusal("root ::= \"a\"\nroot ::= \"b\""), "grammar: line 2, column 1: rule 'root' is defined twice");
  EXPECT_EQ(refusal("root = \"a\""), "grammar: column 6: found '=', expected ::=");
  EXPECT_EQ(refusal("root ::= \"a"), "grammar: column 12: the text ends, expected \"");
  EXPECT_EQ(refusal("root ::= (\"a\""), "grammar: column 14: the text ends, expected )");
  EXPECT_EQ(refusal("root ::= \"\\q\""), "grammar: column 11: an unknown escape");
  EXPECT_EQ(refusal("root ::= [b-a]"), "grammar: column 11: a range that ends before it begins");
  EXPECT_EQ(refusal("root ::= \"a\"{3,2}"), "grammar: repeated 3 to 2 times");
  EXPECT_EQ(refusal("root ::= \"a\"{9999999}"), "grammar: repeated 9999999 times, expected at most 1000000");
  EXPECT_EQ(refusal("root ::= \"\xFF\""), "grammar: not UTF-8");
  EXPECT_EQ(refusal("root ::= \"\\ud800\""), "grammar: column 13: the number of no character");
}

TEST(Gbnf, ARuleThatBeginsWithItselfIsALoopAndACircleOfRulesIsRefused) {
  expect_reads("root ::= root \"+\" n | n\nn ::= [0-9]", {"1", "1+2+3"}, {"+1", "1+"});
  EXPECT_EQ(refusal("root ::= a \"x\"\na ::= b? root | \"y\"\nb ::= \"b\""),
            "grammar: rule 'root' is left-recursive: its text may begin with a call of itself");
  EXPECT_EQ(refusal("root ::= \"x\" root"), "grammar: rule 'root' matches no text");
  EXPECT_EQ(refusal("root ::= root"), "grammar: rule 'root' matches no text");
}

}  // namespace
}  // namespace kdelta::grammar
