#include <gtest/gtest.h>

#include "kdelta/core/error.h"
#include "kdelta/io/detokenizer.h"
#include "kdelta/io/json.h"
#include "tests/support/op_test.h"

namespace kdelta {
namespace {

constexpr std::string_view kReplacement = "\uFFFD";

std::string streamed(const std::vector<std::string>& pieces) {
  Utf8Stream stream;
  std::string all;
  for (const std::string& piece : pieces) {
    const std::string delta = stream.feed(piece);
    EXPECT_TRUE(is_utf8(delta));
    all += delta;
  }
  return all + stream.finish();
}

// Ids 0..255 are the bytes, then `more`.
Tokenizer byte_tokenizer(const std::vector<std::string>& more = {}) {
  std::vector<std::string> tokens;
  for (int b = 0; b < 256; ++b) tokens.emplace_back(1, static_cast<char>(b));
  tokens.insert(tokens.end(), more.begin(), more.end());
  const std::vector<NamedSpecial> named{{static_cast<int64_t>(tokens.size()) + 3, "<|sep|>"}};
  return Tokenizer(tokens, named, "test");
}

TEST(Detokenizer, AnEmojiComesOutWholeHoweverItsBytesArrive) {
  const std::string e = "\U0001F600";
  for (const std::vector<std::string>& pieces :
       std::vector<std::vector<std::string>>{{e.substr(0, 1), e.substr(1)},
                                             {e.substr(0, 2), e.substr(2)},
                                             {e.substr(0, 3), e.substr(3)},
                                             {e.substr(0, 1), e.substr(1, 1), e.substr(2, 1), e.substr(3)},
                                             {str(" ", e.substr(0, 1)), str(e.substr(1), "!")}}) {
    std::string bytes;
    for (const std::string& piece : pieces) bytes += piece;
    EXPECT_EQ(streamed(pieces), bytes);
  }
}

TEST(Detokenizer, AJoinedEmojiIsTheSameForEveryCut) {
  const std::string family = "a\U0001F469\u200D\U0001F467\u00E9z";
  for (size_t i = 0; i <= family.size(); ++i)
    for (size_t j = i; j <= family.size(); ++j)
      EXPECT_EQ(streamed({family.substr(0, i), family.substr(i, j - i), family.substr(j)}), family);
}

TEST(Detokenizer, OnlyAnUnfinishedCharacterIsHeld) {
  Utf8Stream s;
  EXPECT_EQ(s.feed("ab\xF0\x9F"), "ab");
  EXPECT_EQ(s.feed("\x98"), "");
  EXPECT_EQ(s.feed("\x80"
                   "c"),
            "\U0001F600c");
  EXPECT_EQ(s.finish(), "");
}

TEST(Detokenizer, AnInvalidByteIsReplacedAtOnceAndHoldsNothing) {
  Utf8Stream s;
  EXPECT_EQ(s.feed("\xFF"), kReplacement);
  EXPECT_EQ(s.feed("a\x80"), str("a", kReplacement));
  EXPECT_EQ(s.feed("\xF0\x9F"), "");
  EXPECT_EQ(s.feed("x"), str(kReplacement, "x"));
}

TEST(Detokenizer, EachMaximalIllFormedSequenceBecomesOneReplacement) {
  // Unicode 15.0, tables 3-8 to 3-11.
  const auto replaced = [](std::string_view pattern) {
    std::string out;
    for (char c : pattern) out += c == '?' ? std::string(kReplacement) : std::string(1, c);
    return out;
  };
  EXPECT_EQ(streamed({"\xC0\xAF\xE0\x80\xBF\xF0\x81\x82"
                      "A"}),
            replaced("????????A"));
  EXPECT_EQ(streamed({"\xED\xA0\x80\xED\xBF\xBF\xED\xAF"
                      "A"}),
            replaced("????????A"));
  EXPECT_EQ(streamed({"\xF4\x91\x92\x93\xFF"
                      "A\x80\xBF"
                      "B"}),
            replaced("?????A??B"));
  EXPECT_EQ(streamed({"\xE1\x80\xE2\xF0\x91\x92\xF1\xBF"
                      "A"}),
            replaced("????A"));
}

TEST(Detokenizer, AnIncompleteTailIsGivenOnceAtTheEnd) {
  Utf8Stream s;
  EXPECT_EQ(s.feed("a\xF0\x9F\x98"), "a");
  EXPECT_EQ(s.finish(), kReplacement);
  EXPECT_EQ(s.finish(), "");
}

TEST(Detokenizer, JoinedDeltasEqualTheTextDecodedWhole) {
  const Tokenizer t = byte_tokenizer({" \xF0\x9F", "\x98\x80", "the", "\xE5\xAD"});
  test::Rng rng(5);
  for (int round = 0; round < 2000; ++round) {
    std::vector<int32_t> ids(rng() % 12);
    for (int32_t& id : ids) id = static_cast<int32_t>(rng() % 3 ? 256 + rng() % 6 : rng() % 256);
    Detokenizer d(t);
    std::string all;
    for (int32_t id : ids) {
      const std::string delta = d.feed(id);
      EXPECT_TRUE(is_utf8(delta));
      all += delta;
    }
    EXPECT_EQ(all + d.finish(), t.decode(ids));
  }
}

TEST(Detokenizer, SpecialsAreSkippedUnlessAskedFor) {
  const Tokenizer t = byte_tokenizer();
  const std::vector<int32_t> ids{'a', 259, 'b', 256};
  EXPECT_EQ(t.decode(ids), "ab");
  EXPECT_EQ(t.decode(ids, Specials::show), "a<|sep|>b<|reserved_token_256|>");
}

TEST(Detokenizer, ACharacterDoesNotContinueAcrossASpecial) {
  const Tokenizer t = byte_tokenizer();
  const std::vector<int32_t> ids{0xC3, 259, 0xA9};
  EXPECT_EQ(t.decode(ids), str(kReplacement, kReplacement));
}

TEST(Detokenizer, AnIdOutsideTheVocabularyChangesNothing) {
  const Tokenizer t = byte_tokenizer();
  Detokenizer d(t);
  EXPECT_EQ(d.feed(0xC3), "");
  EXPECT_EQ(test::error_of([&] { d.feed(512); }), "token id 512, expected 0 to 511");
  EXPECT_EQ(test::error_of([&] { d.feed(-1); }), "token id -1, expected 0 to 511");
  EXPECT_EQ(d.feed(0xA9), "\u00E9");
}

}  // namespace
}  // namespace kdelta
