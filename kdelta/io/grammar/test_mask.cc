#include <gtest/gtest.h>

#include <bit>

#include "kdelta/core/error.h"
#include "kdelta/io/grammar/test_earley.h"
#include "kdelta/io/grammar/test_vocabulary.h"
#include "tests/support/op_test.h"

namespace kdelta::grammar {
namespace {

using test::Rng;

constexpr char kLetters[] = "abc";

// Expressions of every kind over few letters, so that many ways to read one text meet.
class RandomGrammar {
 public:
  RandomGrammar(Rng& rng, int32_t rules, int32_t first_special, int32_t specials)
      : rng_(rng), grammar_("test"), first_special_(first_special), specials_(specials) {
    for (int32_t r = 0; r < rules; ++r) grammar_.rule("r" + std::to_string(r));
    for (int32_t r = 0; r < rules; ++r) grammar_.define(r, expr(4));
  }
  Grammar take() { return std::move(grammar_); }

 private:
  size_t pick(size_t n) { return rng_() % n; }

  std::string text() {
    std::string t;
    for (size_t n = pick(4); n > 0; --n) t += kLetters[pick(3)];
    return t;
  }

  ExprId expr(int depth) {
    const size_t kind = pick(depth == 0 ? 5 : 10);
    std::vector<ExprId> parts;
    switch (kind) {
      case 0:
        return grammar_.bytes('a', static_cast<uint8_t>('a' + pick(3)));
      case 1:
        return grammar_.literal(text());
      case 2:
        return grammar_.strings({text(), text(), text()});
      case 3:
        return grammar_.call(static_cast<RuleId>(pick(static_cast<size_t>(grammar_.rules()))));
      case 4:
        return pick(3) == 0
                   ? grammar_.token(first_special_ + static_cast<int32_t>(pick(static_cast<size_t>(specials_))))
                   : grammar_.chars(CharSet({{'b', 0x1F600}}));
      case 5:
      case 6:
        for (size_t n = pick(4); n > 0; --n) parts.push_back(expr(depth - 1));
        return grammar_.sequence(parts);
      case 7:
      case 8:
        for (size_t n = 1 + pick(3); n > 0; --n) parts.push_back(expr(depth - 1));
        return grammar_.choice(parts);
      default: {
        const auto least = static_cast<int64_t>(pick(3));
        return grammar_.repeat(expr(depth - 1), least, pick(2) == 0 ? kNoEnd : least + static_cast<int64_t>(pick(3)));
      }
    }
  }

  Rng& rng_;
  Grammar grammar_;
  int32_t first_special_, specials_;
};

TestVocabulary random_vocabulary(Rng& rng) {
  std::vector<std::string> texts{"a", "b", "c", "", "abc", "abc"};  // two of one text, one of none
  for (const std::string& c : {std::string("\u00e9"), std::string("\U0001F600")}) {
    texts.push_back(c);
    for (const char byte : c) texts.push_back({byte});
    texts.push_back("a" + c.substr(0, 1));
    texts.push_back(c.substr(1) + "b");
  }
  while (texts.size() < 60) {
    std::string t;
    for (size_t n = 1 + rng() % 6; n > 0; --n) t += kLetters[rng() % 3];
    texts.push_back(t);
  }
  return TestVocabulary(texts, 3);
}

void append(Earley::Text& text, const TestVocabulary& v, int32_t token) {
  if (v.trie->is_special(token)) return text.push_back(256 + token);
  for (const char c : v.texts[static_cast<size_t>(token)]) text.push_back(static_cast<uint8_t>(c));
}

// Follows one random answer, token by token, and compares every bit of every mask.
void compare_along_one_text(Rng& rng, const Grammar& g, const TestVocabulary& v, int64_t* masks) {
  Earley reference(g);
  Matcher matcher(v.masker(g));
  std::vector<uint32_t> bits = v.bits();
  std::vector<int32_t> tokens;
  Earley::Text text;
  for (int step = 0; step < 6; ++step) {
    matcher.follow(tokens);
    ASSERT_FALSE(matcher.dead());
    const bool some = matcher.mask(bits);
    ++*masks;
    EXPECT_EQ(matcher.accepts(), reference.read(text) == Earley::Verdict::whole) << step;
    std::vector<int32_t> allowed;
    for (int32_t t = 0; t < static_cast<int32_t>(v.texts.size()); ++t) {
      Earley::Text longer = text;
      append(longer, v, t);
      const bool want = !v.texts[static_cast<size_t>(t)].empty() && reference.read(longer) != Earley::Verdict::no;
      ASSERT_EQ(has(bits, t), want) << "step " << step << ", token '" << v.texts[static_cast<size_t>(t)] << "'";
      if (want) allowed.push_back(t);
    }
    EXPECT_EQ(some, !allowed.empty());
    if (allowed.empty()) return;
    tokens.push_back(allowed[rng() % allowed.size()]);
    append(text, v, tokens.back());
  }
}

TEST(Mask, EqualsReadingEveryTokenByteByByteForRandomGrammars) {
  Rng rng(20261130);
  int refused = 0, read = 0;
  int64_t masks = 0;
  for (int round = 0; round < 120; ++round) {
    const TestVocabulary v = random_vocabulary(rng);
    const auto specials = static_cast<int32_t>(v.texts.size()) - 3;
    const Grammar g = RandomGrammar(rng, 1 + static_cast<int32_t>(rng() % 4), specials, 3).take();
    try {
      (void)Program(g);
    } catch (const Error& e) {
      ASSERT_EQ(e.code(), ErrorCode::invalid_argument);
      ++refused;
      continue;
    }
    ++read;
    for (int text = 0; text < 3; ++text) compare_along_one_text(rng, g, v, &masks);
    if (testing::Test::HasFatalFailure()) FAIL() << "round " << round;
  }
  EXPECT_GT(read, 60) << refused << " grammars refused";
  EXPECT_GT(masks, 300);
}

Grammar simple(const char* text) {
  return parse_gbnf(text);
}

std::vector<int32_t> allowed(const TestVocabulary& v, const Grammar& g, std::span<const int32_t> tokens) {
  Matcher m(v.masker(g));
  m.follow(tokens);
  std::vector<uint32_t> bits = v.bits();
  (void)m.mask(bits);
  std::vector<int32_t> out;
  for (int32_t t = 0; t < static_cast<int32_t>(v.texts.size()); ++t)
    if (has(bits, t)) out.push_back(t);
  return out;
}

TEST(Mask, TextNeverMatchesASpecialTokenNorASpecialTokenText) {
  const TestVocabulary v({"<", "|", "0", ">", "<|0|>"}, 1);
  EXPECT_EQ(allowed(v, simple("root ::= \"<|0|>\""), {}), (std::vector<int32_t>{0, 4}));
  Grammar g("test");
  g.define(g.rule("root"), g.sequence({g.token(5), g.literal("<")}));
  EXPECT_EQ(allowed(v, g, {}), (std::vector<int32_t>{5}));
  EXPECT_EQ(allowed(v, g, std::vector<int32_t>{5}), (std::vector<int32_t>{0}));
}

TEST(Mask, EveryCallerOfARuleGoesOnBehindItAlsoThroughItsLastCall) {
  const TestVocabulary v({"a", "b", "c", "cca", "ccb", "ccc"});
  const Grammar g = simple("root ::= x \"a\" | x \"b\"\nx ::= \"c\" y\ny ::= \"c\"");
  EXPECT_EQ(allowed(v, g, {}), (std::vector<int32_t>{2, 3, 4}));
  EXPECT_EQ(allowed(v, g, std::vector<int32_t>{2, 2}), (std::vector<int32_t>{0, 1}));
}

// States that take all prose set its tokens at once, and states that take almost all of it must not.
TEST(Mask, ProseSetAtOnceIsWhatReadingItTokenByTokenAllows) {
  Rng rng(8);
  std::vector<std::string> texts = TestVocabulary::all_bytes();
  const std::vector<std::string> pieces = {"a",    " ",      "zz",      "\"",         "\\",       "\n",
                                           "\x7F", "\u00e9", "\u4e2d",  "\U0001F600", "\xE4\xB8", "\xF0\x9F",
                                           "\xC3", "\xAD",   "\\u00e9", "}",          "\": "};
  while (texts.size() < 3000) {
    std::string t;
    if (rng() % 20 == 0) t.append(rng() % 40, rng() % 2 == 0 ? 'a' : ' ');
    for (uint64_t n = 1 + rng() % 9; n > 0; --n) t += pieces[rng() % pieces.size()];
    texts.push_back(t);
  }
  const TestVocabulary v(texts);
  int64_t prose = 0;
  for (const uint32_t word : v.trie->prose().whole(Prose::kMost)) prose += std::popcount(word);
  EXPECT_GT(prose, 100);
  const std::string any = R"([^"\\\x00-\x1F])";
  for (const std::string& rule :
       {any + "*", any + "{0,30}", any + "{0,12}", std::string("[^\"\\\\\\x00-\\x1Fz]*"), std::string(".*"),
        std::string("[^\\u4e2d]*"), any + "* | [a-z]{3,40}", "(" + any + R"( | "\\" ["\\nu])*)", any + "{24}",
        any + "{25,26}", "([^\"\\\\\\x00-\\x1Fa\\u00e9] " + any + "* | \"az\" | \"\\u00e9\" [zu]*)",
        std::string("text | \"az\" text \"a\""), std::string("few | [#-Z]{3,40}"), std::string("[\\x00-\\x1F]*")}) {
    const Grammar g = parse_gbnf("root ::= \"\\\"\" (" + rule + ") \"\\\"\" \"}\"?\nfew ::= " + any +
                                 "{0,3}\ntext ::= " + any + R"(* ("\\" [nu] text)?)");
    const auto masker = v.masker(g);
    std::vector<uint32_t> bits = v.bits();
    Masker::State s = masker->next(masker->start(), '"');
    for (int step = 0; step < 30 && masker->mask(s, bits); ++step) {
      std::vector<int32_t> allowed;
      for (int32_t t = 0; t < static_cast<int32_t>(texts.size()); ++t) {
        const bool want = masker->next(s, t) != Automaton::kDead;
        ASSERT_EQ(has(bits, t), want) << rule << ", step " << step << ", '" << texts[static_cast<size_t>(t)] << "'";
        if (want && t != '"') allowed.push_back(t);
      }
      if (allowed.empty()) break;
      // Character by character, so that the end of a bound comes near.
      const bool single = has(bits, 'a') && rng() % 8 != 0;
      s = masker->next(s, single ? 'a' : allowed[rng() % allowed.size()]);
    }
  }
}

TEST(Mask, WordsBehindTheVocabularyAreCleared) {
  const TestVocabulary v({"a", "b"});
  Matcher m(v.masker(simple("root ::= \"a\"")));
  m.follow({});
  std::vector<uint32_t> bits(4, ~0u);
  EXPECT_TRUE(m.mask(bits));
  EXPECT_EQ(bits, (std::vector<uint32_t>{1, 0, 0, 0}));
  bits.assign(4, ~0u);
  EXPECT_TRUE(m.mask(bits));  // the one that was kept
  EXPECT_EQ(bits, (std::vector<uint32_t>{1, 0, 0, 0}));
}

TEST(Mask, WhereNoTokenFitsThereIsNoneAndTheTextIsNotWhole) {
  const TestVocabulary v({"a", "c"});
  Matcher m(v.masker(simple("root ::= \"a\" \"b\"")));
  std::vector<uint32_t> bits = v.bits();
  m.follow(std::vector<int32_t>{0});
  EXPECT_FALSE(m.mask(bits));
  EXPECT_FALSE(m.accepts());
  EXPECT_FALSE(m.dead());
  m.follow(std::vector<int32_t>{1});
  EXPECT_TRUE(m.dead());
}

TEST(Matcher, GoesBackToWhateverItIsToldStillStands) {
  const TestVocabulary v({"a", "b", "ab"});
  const Grammar g = simple("root ::= (\"ab\" | \"ba\")*");
  const auto masker = v.masker(g);
  Matcher wandering(masker);
  Rng rng(3);
  std::vector<int32_t> tokens;
  for (int i = 0; i < 300; ++i) {
    if (rng() % 3 == 0) tokens.resize(rng() % (tokens.size() + 1));
    tokens.push_back(static_cast<int32_t>(rng() % 3));
    wandering.follow(tokens);
    Matcher fresh(masker);
    fresh.follow(tokens);
    ASSERT_EQ(wandering.dead(), fresh.dead()) << i;
    ASSERT_EQ(wandering.accepts(), fresh.accepts()) << i;
  }
}

TEST(Matcher, CountsTheDraftsThatMayFollow) {
  const TestVocabulary v({"a", "b", "ab"});
  Matcher m(v.masker(simple("root ::= (\"ab\")* \"b\"")));
  EXPECT_EQ(m.accepted({}, std::vector<int32_t>{2, 0, 1, 0, 0, 1}), 4);
  EXPECT_EQ(m.accepted(std::vector<int32_t>{0}, std::vector<int32_t>{1, 1}), 2);
  EXPECT_EQ(m.accepted(std::vector<int32_t>{1}, std::vector<int32_t>{1}), 0);
}

TEST(Masker, WhatItForgetsItFindsAgain) {
  const TestVocabulary v(TestVocabulary::all_bytes());
  const Grammar g = simple("root ::= \"(\" root \")\" root? | [a-z]{1,20} root?");
  Rng rng(5);
  const auto large = v.masker(g), small = v.masker(g, {.kept_bytes = 50'000});
  Matcher a(large), b(small);
  std::vector<int32_t> tokens;
  std::vector<uint32_t> bits_a = v.bits(), bits_b = v.bits();
  for (int i = 0; i < 300; ++i) {
    a.follow(tokens);
    b.follow(tokens);
    const bool some = a.mask(bits_a);
    ASSERT_EQ(some, b.mask(bits_b));
    ASSERT_EQ(bits_a, bits_b);
    ASSERT_EQ(a.accepts(), b.accepts());
    if (!some) break;
    int32_t token = 0;
    do token = static_cast<int32_t>(rng() % 256);
    while (!has(bits_a, token));
    tokens.push_back(token);
  }
  EXPECT_EQ(tokens.size(), 300u);
  EXPECT_GT(small->epoch(), large->epoch());
}

}  // namespace
}  // namespace kdelta::grammar
