#include <gtest/gtest.h>

// g++ 12 with sanitizers takes members of std::regex's own states for uninitialised.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <regex>
#pragma GCC diagnostic pop

#include "kdelta/io/grammar/regex.h"
#include "kdelta/io/grammar/test_vocabulary.h"
#include "tests/support/op_test.h"

namespace kdelta::grammar {
namespace {

Grammar of(std::string_view pattern, Anchors anchors = Anchors::whole) {
  Grammar g("regex");
  const RuleId root = g.rule("");
  g.define(root, read_regex(g, "regex", pattern, anchors, [&](const CharSet& set) { return g.chars(set); }));
  return g;
}

std::string refusal(std::string_view pattern) {
  return test::error_of([&] { (void)Program(of(pattern)); });
}

void expect_reads(std::string_view pattern, const std::vector<std::string>& good, const std::vector<std::string>& bad,
                  Anchors anchors = Anchors::whole) {
  Recogniser g(of(pattern, anchors));
  for (const std::string& t : good) EXPECT_TRUE(g.reads(t)) << pattern << " '" << t << "'";
  for (const std::string& t : bad) EXPECT_FALSE(g.reads(t)) << pattern << " '" << t << "'";
}

TEST(Regex, ReadsTheSyntaxThatEnginesShare) {
  expect_reads("a|b*c+?|(?:de){2,3}|(f)(?<n>g)(?P<m>h)|", {"a", "c", "bbcc", "dede", "dedede", "fgh", ""},
               {"de", "dededede", "ab", "bb"});
  expect_reads("^[a-c\\d_\\]-]+$", {"a", "0_]-c"}, {"", "d", "^"});
  expect_reads("[^a-y]\\.\\x41\\u00e9\\u{1F600}\\/", {"z.A\u00e9\U0001F600/", "\u4e2d.A\u00e9\U0001F600/"},
               {"a.A\u00e9\U0001F600/"});
  expect_reads("\\w+@\\w+\\.(com|org)", {"a_1@b.com"}, {"a@b.net", "a@b.comm"});
  expect_reads(".\\s\\S\\D\\W", {"a\tbc-"}, {"\n bc-", "a bc\u00e9", "a b1-"});
  // Of what engines read differently neither a class nor its complement takes anything.
  expect_reads("[^\\W]+", {"a_1"}, {"\u00e9", "-"});
  expect_reads("[^\\d\\S]+", {" \t"}, {"\u00a0", "1"});
  expect_reads("\\D[^\\w\\s]", {"x-"}, {"\u0663-", "x\u00e9", "x "});
  expect_reads("x{2}{", {"xx{"}, {"xx"});
  expect_reads("a{x", {"a{x"}, {"a"});
}

TEST(Regex, SearchesUnlessAnAlternativeIsBound) {
  expect_reads("b", {"b", "aba", "\n b"}, {"", "a"}, Anchors::search);
  expect_reads("^b", {"b", "ba"}, {"ab"}, Anchors::search);
  expect_reads("^a$|b$", {"a", "xb"}, {"ab ", "aa"}, Anchors::search);
}

TEST(Regex, SaysWhereAndWhyItRefuses) {
  EXPECT_EQ(refusal("a(?=b)"), "regex: column 2: look-ahead is not supported");
  EXPECT_EQ(refusal("(?<!a)b"), "regex: column 1: look-behind is not supported");
  EXPECT_EQ(refusal("(?i)a"), "regex: column 1: flags and special groups are not supported; (?: and (?<name> are");
  EXPECT_EQ(refusal("(a)\\1"), "regex: column 4: back-references are not supported");
  EXPECT_EQ(refusal("\\bword"), "regex: column 1: word boundaries are not supported");
  EXPECT_EQ(refusal("\\p{L}"), "regex: column 1: Unicode properties are not supported");
  EXPECT_EQ(refusal("a^b"),
            "regex: column 2: ^ and $ are supported at the ends of the whole pattern's alternatives only");
  EXPECT_EQ(refusal("(a$)"),
            "regex: column 3: ^ and $ are supported at the ends of the whole pattern's alternatives only");
  EXPECT_EQ(refusal("*a"), "regex: column 1: nothing in front to repeat");
  EXPECT_EQ(refusal("a**"), "regex: column 3: a repetition of a repetition");
  EXPECT_EQ(refusal("(a"), "regex: column 3: the text ends, expected )");
  EXPECT_EQ(refusal("a)"), "regex: column 2: found ')', expected the end of the pattern");
  EXPECT_EQ(refusal("[b-a]"), "regex: column 2: a range that ends before it begins");
  EXPECT_EQ(refusal("[]a]"), "regex: column 1: an empty class; ']' in a class is written \\]");
  EXPECT_EQ(refusal("\\q"), "regex: column 1: an unknown escape");
  EXPECT_EQ(refusal("a{3,1}"), "regex: repeated 3 to 1 times");
  EXPECT_EQ(refusal("[^\\s\\S]a"), "regex: it matches no text");
}

// Patterns of everything that both know, over texts short enough to try all.
TEST(Regex, AgreesWithTheStandardLibraryOnRandomPatterns) {
  test::Rng rng(11);
  const std::function<std::string(int)> pattern = [&](int depth) -> std::string {
    switch (rng() % (depth == 0 ? 4 : 8)) {
      case 0:
        return "a";
      case 1:
        return "b";
      case 2:
        return "[^a]";
      case 3:
        return ".";
      case 4:
        return pattern(depth - 1) + pattern(depth - 1);
      case 5:
        return "(?:" + pattern(depth - 1) + "|" + pattern(depth - 1) + ")";
      case 6:
        return "(" + pattern(depth - 1) + ")" + std::string(1, "*+?"[rng() % 3]);
      default:
        return "(?:" + pattern(depth - 1) + "){" + std::to_string(rng() % 2) + "," + std::to_string(1 + rng() % 3) +
               "}";
    }
  };
  for (int round = 0; round < 150; ++round) {
    const std::string p = pattern(3);
    Recogniser whole(of(p)), searched(of(p, Anchors::search));
    const std::regex reference(p);
    for (int t = 0; t < 3 * 3 * 3 * 3; ++t) {
      std::string text;
      for (int rest = t; rest > 0; rest /= 3) text += "abc"[rest % 3];
      ASSERT_EQ(whole.reads(text), std::regex_match(text, reference)) << p << " '" << text << "'";
      ASSERT_EQ(searched.reads(text), std::regex_search(text, reference)) << p << " '" << text << "'";
    }
  }
}

}  // namespace
}  // namespace kdelta::grammar
