#include <gtest/gtest.h>

#include <algorithm>

#include "kdelta/io/k2_answer.h"
#include "kdelta/io/test_answer_pieces.h"
#include "kdelta/io/test_chat_pieces.h"
#include "tests/support/op_test.h"

namespace kdelta {
namespace {

using test::k2;

const std::string kSection = "<|tool_calls_section_begin|>", kSectionEnd = "<|tool_calls_section_end|>";
const std::string kBegin = "<|tool_call_begin|>", kArgument = "<|tool_call_argument_begin|>",
                  kEnd = "<|tool_call_end|>";

std::string call(const std::string& id, const std::string& arguments) {
  return kBegin + id + kArgument + arguments + kEnd;
}

// Ids of an answer as the model would give them: control tokens by name, text between them.
std::vector<int32_t> ids_of(std::string_view answer) {
  return k2().encode_with_specials(answer);
}

AnswerDelta parse(std::string_view answer) {
  return K2Parser::parse(k2(), ids_of(answer));
}

AnswerDelta answer(std::string content, std::vector<ToolCall> calls = {}, std::string reasoning = "") {
  return {std::move(reasoning), std::move(content), std::move(calls)};
}

TEST(K2Answer, SeparatesContentAndCallsWithTheirIds) {
  EXPECT_EQ(parse("Let me look. " + kSection + call("functions.get_weather:0", "{\"city\": \"Köln\"}") +
                  call("functions.a.b-c:11", "") + kSectionEnd + "<|im_end|>"),
            answer("Let me look. ", {{"functions.get_weather:0", "get_weather", "{\"city\": \"Köln\"}"},
                                     {"functions.a.b-c:11", "a.b-c", "{}"}}));
  EXPECT_EQ(parse("plain<|im_end|>"), answer("plain"));
}

TEST(K2Answer, WhatTheThinkingMarksEncloseIsReasoning) {
  EXPECT_EQ(parse("<think>hm</think>yes<|im_end|>"), answer("yes", {}, "hm"));
  EXPECT_EQ(parse("<think>hm" + kSection + call("functions.f:0", "{}")),
            answer("", {{"functions.f:0", "f", "{}"}}, "hm"));
}

TEST(K2Answer, AnotherIdNamesItsFunctionInFrontOfTheNumber) {
  const auto name = [](const std::string& id) {
    const AnswerDelta a = parse(kSection + call(id, "{}"));
    return a.calls.size() == 1 ? a.calls[0].id + " -> " + a.calls[0].name : "content " + a.content;
  };
  EXPECT_EQ(name("f"), "f -> f");
  EXPECT_EQ(name("f:3"), "f:3 -> f");
  EXPECT_EQ(name("functions.f"), "functions.f -> f");
  EXPECT_EQ(name("functions.ns:f:3"), "functions.ns:f:3 -> ns:f");
  EXPECT_EQ(name("functions.f:x"), "functions.f:x -> f:x");
  EXPECT_EQ(name(" functions.f:0\n"), "functions.f:0 -> f");
  EXPECT_EQ(name("functions.:0"), "content <|tool_call_begin|>functions.:0<|tool_call_argument_begin|>{}");
}

TEST(K2Answer, ArgumentsKeepTheModelsSpelling) {
  EXPECT_EQ(parse(call("functions.f:0", "\n{\"a\" : [1,  2.0], \"b\":\"\\u00e9\"} ")).calls.at(0).arguments,
            "{\"a\" : [1,  2.0], \"b\":\"\\u00e9\"}");
}

TEST(K2Answer, ACallThatCannotBeReadBecomesContentInItsOwnSpelling) {
  for (const std::string arguments : {"[1]", "{\"a\":", "text", "{\"a\":1,\"a\":2}", "{} {}", "null"}) {
    const std::string bad = kBegin + "functions.f:0" + kArgument + arguments;
    EXPECT_EQ(parse(kSection + bad + kEnd + call("functions.g:1", "{}") + kSectionEnd),
              answer(bad, {{"functions.g:1", "g", "{}"}}))
        << arguments;
  }
  EXPECT_EQ(parse(kBegin + "functions.f:0" + kEnd), answer(kBegin + "functions.f:0"));
  EXPECT_EQ(parse(kBegin + "f" + kArgument + "{" + kArgument + "}" + kEnd),
            answer(kBegin + "f" + kArgument + "{" + kArgument + "}"));
}

TEST(K2Answer, PiecesOfCallsJoinedAreTheCalls) {
  for (const std::string arguments :
       {"", " \n", "{}", " {\"a\" : [1, \"中😀\"]} \n", "{} {}", "{\"a\":", "[1]", "text", "null"})
    for (const std::string& end : {kEnd, kSectionEnd, kBegin, std::string("<|im_end|>"), kArgument, std::string()}) {
      const AnswerDelta a =
          parse(kSection + call("functions.g:0", "{\"x\":1}") + kBegin + "functions.f:1" + kArgument + arguments + end);
      EXPECT_EQ(joined(a.pieces), a.calls) << arguments << end;
    }
}

TEST(K2Answer, ArgumentsArriveWhileTheyAreGenerated) {
  K2Parser parser(k2());
  AnswerDelta all;
  for (const int32_t id : ids_of(kSection + kBegin + "functions.f:0" + kArgument)) all.append(parser.feed(id));
  ASSERT_EQ(all.pieces.size(), 1u) << "a call is announced with its ID";
  EXPECT_EQ(all.pieces[0], (CallPiece{.index = 0, .id = "functions.f:0", .name = "f"}));
  std::string told;
  for (const int32_t id : ids_of("\n{\"k\": \"one two"))
    for (const CallPiece& p : parser.feed(id).pieces) told += p.arguments;
  EXPECT_EQ(told, "{\"k\": \"one two");
}

TEST(K2Answer, ACallLeftOpenEndsWithTheNextTheSectionOrTheMessage) {
  const std::string open = kBegin + "functions.f:0" + kArgument + "{}";
  const ToolCall f{"functions.f:0", "f", "{}"};
  EXPECT_EQ(parse(kSection + open + open + kEnd), answer("", {f, f}));
  EXPECT_EQ(parse(kSection + open + kSectionEnd + "after"), answer("after", {f}));
  EXPECT_EQ(parse(kSection + open + "<|im_end|>"), answer("", {f}));
  EXPECT_EQ(parse(open + "</think>x"), answer("x", {f}));
}

TEST(K2Answer, MarkersSpelledAsTextAreText) {
  const std::string spelled = "say " + kSection + call("functions.f:0", "{}") + kSectionEnd + "<|im_end|><think>";
  EXPECT_EQ(K2Parser::parse(k2(), k2().encode(spelled)), answer(spelled));
}

TEST(K2Answer, BlanksBetweenCallsAreLayoutAndOtherTextIsContent) {
  EXPECT_EQ(parse(kSection + "\n" + call("f", "{}") + " \n" + call("g", "{}") + "why" + kSectionEnd + "\n!"),
            answer("why\n!", {{"f", "f", "{}"}, {"g", "g", "{}"}}));
  EXPECT_EQ(parse("a" + kEnd + "b" + kSectionEnd + "c<|im_user|>d"), answer("abcd"));
}

TEST(K2Answer, NothingFollowsTheEndOfTheMessage) {
  K2Parser parser(k2());
  AnswerDelta all;
  for (int32_t id : ids_of("a<|im_end|>b" + kSection)) all.append(parser.feed(id));
  EXPECT_TRUE(parser.ended());
  all.append(parser.finish());
  EXPECT_EQ(all, answer("a"));
}

TEST(K2Answer, ACallThatTheEndCutsOffInItsIdIsNeverContent) {
  for (const std::string id : {"", "functions.", "functions.get_weather:0", " f\n"})
    EXPECT_EQ(parse("a" + kSection + kBegin + id), answer("a")) << id;
  EXPECT_EQ(parse("a" + kSection), answer("a"));
  EXPECT_EQ(parse("a" + kBegin + "no id, words"), answer("ano id, words")) << "the mark goes, text stays";
  EXPECT_EQ(parse("a" + kBegin + "f" + kArgument + "{"), answer("a" + kBegin + "f" + kArgument + "{"));
  EXPECT_EQ(K2Parser::parse(k2(), k2().encode("a" + kBegin)), answer("a" + kBegin)) << "ordinary tokens are text";
}

// What a cut may leave of the answer below: whole calls stay calls, one open in its arguments becomes content, one only
// announced goes, and nothing else is lost.
TEST(K2Answer, CutAnywhereItLosesOnlyAnIdAndTakesBackNothing) {
  const std::string text = "<think>Ü</think>x 😀 ", second = kBegin + "functions.g:1" + kArgument + "{\"é\": \"😀\"}";
  const std::vector<int32_t> ids = ids_of(text + kSection + call("functions.f:0", "{\"a\": 1}") + " \n" + second +
                                          kEnd + kSectionEnd + " tail 中<|im_end|>");
  const AnswerDelta whole = K2Parser::parse(k2(), ids);
  ASSERT_EQ(whole, answer("x 😀  tail 中",
                          {{"functions.f:0", "f", "{\"a\": 1}"}, {"functions.g:1", "g", "{\"é\": \"😀\"}"}}, "Ü"));
  for (size_t cut = 0; cut <= ids.size(); ++cut) {
    K2Parser parser(k2());
    AnswerDelta seen;
    for (size_t i = 0; i < cut; ++i) {
      const AnswerDelta delta = parser.feed(ids[i]);
      EXPECT_TRUE(is_utf8(delta.reasoning + delta.content));
      seen.append(delta);
    }
    // So far nothing that a longer answer would not say as well.
    EXPECT_TRUE(whole.content.starts_with(seen.content)) << cut;
    EXPECT_TRUE(whole.reasoning.starts_with(seen.reasoning)) << cut;
    ASSERT_LE(seen.calls.size(), whole.calls.size());
    EXPECT_TRUE(std::equal(seen.calls.begin(), seen.calls.end(), whole.calls.begin())) << cut;
    // The end adds exactly what was held back: the bytes behind the last closed element.
    const AnswerDelta rest = parser.finish();
    const std::span<const int32_t> fed(ids.data(), cut);
    size_t open = cut;
    for (size_t i = 0; i < cut; ++i) {
      if (ids[i] == k2().special_id(kBegin)) open = i;
      if (ids[i] == k2().special_id(kEnd)) open = cut;
    }
    const std::string held = k2().decode(fed.subspan(open), Specials::show);
    EXPECT_TRUE(rest.calls.empty());
    if (open < cut) {
      EXPECT_EQ(rest.content, held.find(kArgument) == std::string::npos ? "" : held) << cut;
    } else {
      EXPECT_TRUE(rest.empty() || rest.content == "\uFFFD" || rest.reasoning == "\uFFFD") << cut;
    }
  }
}

// Any tokens at all: UTF-8, JSON objects, every q of the text somewhere in the answer but those of an ID that the end
// cuts off, and the answer written as a prompt is read back as the same answer.
TEST(K2Answer, RandomTokensKeepItsPromises) {
  test::Rng rng(7);
  const std::vector<std::string> words = {"q", "qq ", "functions.q:0", "f:1", "{}", "{\"q\": 1}", "{", "\n", " ", "é😀"};
  std::vector<int32_t> specials;
  for (const std::string& name : {kSection, kSectionEnd, kBegin, kArgument, kEnd, std::string("<think>"),
                                  std::string("</think>"), std::string("<|im_user|>")})
    specials.push_back(k2().special_id(name));
  const auto count = [](std::string_view text) { return std::count(text.begin(), text.end(), 'q'); };
  for (int round = 0; round < 20000; ++round) {
    std::vector<int32_t> ids;
    std::string text, id;
    bool in_id = false;
    for (uint64_t i = 0, n = rng() % 14; i < n; ++i) {
      if (rng() % 2 == 0) {
        const int32_t special = specials[rng() % specials.size()];
        ids.push_back(special);
        if (special != k2().special_id("<|im_user|>")) in_id = special == k2().special_id(kBegin), id.clear();
      } else {
        const std::string& word = words[rng() % words.size()];
        k2().encode(word, ids);
        text += word;
        id += word;
      }
    }
    if (rng() % 2 == 0) ids.push_back(k2().special_id("<|im_end|>")), in_id = false;
    const size_t first = id.find_first_not_of(" \n"), last = id.find_last_not_of(" \n");
    const bool spaced =
        first != std::string::npos && id.substr(first, last - first).find_first_of(" \n") != std::string::npos;
    const AnswerDelta a = K2Parser::parse(k2(), ids);
    EXPECT_EQ(joined(a.pieces), a.calls);
    std::string kept = a.reasoning + a.content;
    for (const ToolCall& c : a.calls) {
      kept += c.id + c.arguments;
      EXPECT_EQ(test::json(c.arguments).kind(), Json::Kind::object);
      EXPECT_FALSE(c.name.empty());
    }
    EXPECT_TRUE(is_utf8(kept));
    EXPECT_EQ(count(kept), count(text) - (in_id && !spaced ? count(id) : 0)) << k2().decode(ids, Specials::show);
    std::vector<int32_t> prompt = ChatEncoder(k2()).encode(
        std::vector<Message>{{.role = Role::assistant, .content = a.content, .calls = a.calls}},
        {.generation_prompt = false});
    prompt.erase(prompt.begin(), std::find(prompt.begin(), prompt.end(), k2().special_id("<|im_middle|>")) + 1);
    EXPECT_EQ(K2Parser::parse(k2(), prompt), answer(a.content, a.calls)) << k2().decode(ids, Specials::show);
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace kdelta
