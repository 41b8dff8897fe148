#include <gtest/gtest.h>

#include "kdelta/core/error.h"
#include "kdelta/io/stop_strings.h"
#include "tests/support/op_test.h"

namespace kdelta {
namespace {

using Strings = std::vector<std::string>;

// What a client receives, delta by delta, the last one from finish().
Strings stream(StopStrings& stops, const Strings& pieces) {
  Strings sent;
  for (const std::string& piece : pieces) sent.push_back(stops.feed(piece));
  sent.push_back(stops.finish());
  return sent;
}

std::string joined(const Strings& parts) {
  std::string all;
  for (const std::string& part : parts) all += part;
  return all;
}

// Every way to cut `text` in two, byte by byte, and whole.
std::vector<Strings> cuts(const std::string& text) {
  std::vector<Strings> all{{text}, {}};
  for (size_t i = 0; i <= text.size(); ++i) all.push_back({text.substr(0, i), text.substr(i)});
  for (char c : text) all[1].push_back(std::string(1, c));
  return all;
}

void expect_for_every_cut(const Strings& stops, const std::string& text, const std::string& want, int stopped_by) {
  for (const Strings& pieces : cuts(text)) {
    StopStrings s(stops);
    EXPECT_EQ(joined(stream(s, pieces)), want) << pieces.size() << " pieces, first '" << pieces[0] << "'";
    EXPECT_EQ(s.stopped_by(), stopped_by);
  }
}

TEST(StopStrings, NothingOfAStopStringThatSpansTwoPiecesIsSent) {
  StopStrings s({"azy d"});
  EXPECT_EQ(stream(s, {"over", " the", " la", "zy", " dog"}), (Strings{"over", " the", " l", "", "", ""}));
  EXPECT_TRUE(s.stopped());
}

TEST(StopStrings, ATailIsHeldOnlyWhileItCanBecomeAStopString) {
  StopStrings s({"\nUser:"});
  EXPECT_EQ(stream(s, {"a\n", "Us", "age", "\n", "User"}), (Strings{"a", "", "\nUsage", "", "", "\nUser"}));
  EXPECT_FALSE(s.stopped());
}

TEST(StopStrings, TheTextIsCutAtTheFirstOccurrenceWhateverTheDeltas) {
  expect_for_every_cut({"END"}, "one END two END", "one ", 0);
  expect_for_every_cut({"aab"}, "aaaab", "aa", 0);
  expect_for_every_cut({"abab"}, "abaabab", "aba", 0);
  expect_for_every_cut({"xyz"}, "xyxyz", "xy", 0);
  expect_for_every_cut({"zz"}, "no stop here z", "no stop here z", -1);
}

TEST(StopStrings, TheStringThatIsCompleteFirstWinsAndOfThoseTheLongest) {
  expect_for_every_cut({"abc", "ab"}, "xxabc", "xx", 1);
  expect_for_every_cut({"b", "ab"}, "xxabc", "xx", 1);
  expect_for_every_cut({"b c d", "c"}, "a b c d", "a b ", 1);
  expect_for_every_cut({"q", "b c d", "e f"}, "a b c e f", "a b c ", 2);
}

TEST(StopStrings, TheLongestTailOfAllStringsIsHeldAndNoMore) {
  StopStrings s({"abcd", "cx"});
  EXPECT_EQ(stream(s, {"zabc", "e", "ab", "c", "x"}), (Strings{"z", "abce", "", "", "ab", ""}));
}

// The definition: the first end of any stop string, and of those that end there the longest.
std::string cut_by_definition(const Strings& stops, const std::string& text) {
  for (size_t end = 1; end <= text.size(); ++end) {
    size_t longest = 0;
    for (const std::string& stop : stops)
      if (text.substr(0, end).ends_with(stop)) longest = std::max(longest, stop.size());
    if (longest > 0) return text.substr(0, end - longest);
  }
  return text;
}

TEST(StopStrings, TextsFullOfBeginningsOfStopStringsAreCutAsDefined) {
  test::Rng rng(9);
  for (int round = 0; round < 20000; ++round) {
    Strings stops(2);
    for (std::string& stop : stops)
      for (size_t n = 1 + rng() % 9; n > 0; --n) stop += "ab"[rng() % 2];
    std::string text;
    while (text.size() < 40) text += stops[rng() % 2].substr(0, 1 + rng() % 9) + "ab"[rng() % 2];
    StopStrings s(stops);
    std::string all;
    for (char c : text) all += s.feed({&c, 1});
    ASSERT_EQ(all + s.finish(), cut_by_definition(stops, text)) << text << " by " << stops[0] << ", " << stops[1];
  }
}

TEST(StopStrings, WhatFollowsAStopIsDropped) {
  StopStrings s({"\n"});
  EXPECT_EQ(stream(s, {"a\nb", "c", "\n"}), (Strings{"a", "", "", ""}));
}

TEST(StopStrings, ACharacterThatBeginsLikeAStopStringIsSentWhole) {
  // U+1F600 and U+1F601 share three bytes.
  StopStrings s({"\U0001F601"});
  EXPECT_EQ(stream(s, {"a", "\U0001F600", "\U0001F601"}), (Strings{"a", "\U0001F600", "", ""}));
  EXPECT_TRUE(s.stopped());
}

TEST(StopStrings, WithoutStopStringsNothingIsHeld) {
  StopStrings s({});
  EXPECT_EQ(stream(s, {"a", "b"}), (Strings{"a", "b", ""}));
}

TEST(StopStrings, RefusesWhatCanNeverMatchOrAlwaysDoes) {
  EXPECT_EQ(test::error_of([] { StopStrings s({"a", ""}); }), "stop[1]: empty string");
  EXPECT_EQ(test::error_of([] { StopStrings s({"a\xFF"}); }), "stop[0]: 'a\\xff' is not UTF-8");
}

}  // namespace
}  // namespace kdelta
