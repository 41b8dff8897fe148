// The grammar of calls against the parsers of answers: whatever it lets through is read back as what was asked for.
#include "kdelta/io/grammar/chat_answer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kdelta/io/grammar/test_vocabulary.h"
#include "kdelta/io/k2_answer.h"
#include "kdelta/io/test_chat_pieces.h"
#include "kdelta/io/xtml.h"
#include "tests/support/op_test.h"

namespace kdelta::grammar {
namespace {

using test::error_of;
using testing::HasSubstr;

const Tokenizer& k3() {
  static const Tokenizer tokenizer = [] {
    const std::vector<std::string> tokens = test::fixture_tokens();
    std::vector<NamedSpecial> specials;
    for (const char* name : {"<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"})
      specials.push_back({std::ssize(tokens) + std::ssize(specials), name});
    return Tokenizer(tokens, specials, "k3");
  }();
  return tokenizer;
}

Grammar of(const Tokenizer& t, ChatFormat format, const ChatAnswer& answer, const char* content = "") {
  Grammar g("test");
  const RuleId root = g.rule("");
  g.define(root, chat_answer(g, t, format, answer, g.literal(content)));
  return g;
}

AnswerDelta parse(ChatFormat format, const std::vector<int32_t>& ids) {
  return format == ChatFormat::xtml ? XtmlParser::parse(k3(), false, ids) : K2Parser::parse(test::k2(), ids);
}

// A random text of the grammar, or nothing when it comes to no end.
std::vector<int32_t> random_answer(Matcher& matcher, const Tokenizer& t, test::Rng& rng) {
  std::vector<int32_t> ids;
  std::vector<uint32_t> bits(static_cast<size_t>(mask_words(t.vocab_size())));
  for (int step = 0; step < 400; ++step) {
    matcher.follow(ids);
    if (matcher.accepts()) return ids;
    EXPECT_TRUE(matcher.mask(bits));
    std::vector<int32_t> some;
    for (int32_t id = 0; id < t.vocab_size(); ++id)
      if (has(bits, id)) some.push_back(id);
    if (some.empty()) break;
    ids.push_back(some[rng() % some.size()]);
  }
  return {};
}

TEST(ChatAnswer, WhateverItLetsThroughTheParserReadsAsTheCallThatWasAskedFor) {
  constexpr char kSchema[] =
      R"({"type":"object","properties":{"s":{"type":"string","maxLength":4},"k\"&":{"enum":["a<b","\"",2.5]},
          "o":{"type":"object","properties":{"x":{"type":"null"}},"required":["x"],"additionalProperties":false}},"required":["s","k\"&"]})";
  for (const ChatFormat format : {ChatFormat::xtml, ChatFormat::k2}) {
    const Tokenizer& t = format == ChatFormat::xtml ? k3() : test::k2();
    const Grammar g =
        of(t, format, {.thinking = false, .must_call = true, .one_call = true, .tools = {{"f.g-1", kSchema}}});
    const auto masker = std::make_shared<Masker>(std::make_shared<const Program>(g),
                                                 std::make_shared<const TokenTrie>(TokenTrie::of(t)));
    test::Rng rng(7);
    int whole = 0;
    for (int i = 0; i < 40; ++i) {
      Matcher matcher(masker);
      const std::vector<int32_t> ids = random_answer(matcher, t, rng);
      if (ids.empty()) continue;
      ++whole;
      const AnswerDelta read = parse(format, ids);
      EXPECT_EQ(read.content, "");
      ASSERT_EQ(read.calls.size(), 1u);
      EXPECT_EQ(read.calls[0].name, "f.g-1");
      const Json arguments = test::json(read.calls[0].arguments);
      EXPECT_EQ(arguments.find("s")->kind(), Json::Kind::string);
      EXPECT_THAT(json_text(*arguments.find("k\"&")), testing::AnyOf("\"a<b\"", "\"\\\"\"", "2.5"));
      EXPECT_LE(arguments.object().size(), 3u);
    }
    EXPECT_GT(whole, 30);
  }
}

TEST(ChatAnswer, CallsAreAsManyAndOfTheNamesThatWereAskedFor) {
  const auto reads = [](const ChatAnswer& answer, const std::string& text) {
    const Tokenizer& t = test::k2();
    Matcher m(std::make_shared<Masker>(std::make_shared<const Program>(of(t, ChatFormat::k2, answer, "hi")),
                                       std::make_shared<const TokenTrie>(TokenTrie::of(t))));
    m.follow(t.encode_with_specials(text));
    return m.accepts();
  };
  const std::string begin = "<|tool_calls_section_begin|>", end = "<|tool_calls_section_end|>";
  const auto call = [](const std::string& id) {
    return "<|tool_call_begin|>" + id + "<|tool_call_argument_begin|>{}<|tool_call_end|>";
  };
  const std::string a = call("functions.a:0"), b = call("functions.b:1");
  const ChatAnswer may{.thinking = false, .calls = true, .tools = {{"a"}, {"b"}}};
  for (const std::string& good : {std::string("hi"), "hi" + begin + a + b + end, begin + b + end})
    EXPECT_TRUE(reads(may, good)) << good;
  for (const std::string& bad : {std::string(), "ho" + begin + a + end, begin + end,
                                 begin + call("functions.c:0") + end, begin + call("functions.a:") + end})
    EXPECT_FALSE(reads(may, bad)) << bad;
  ChatAnswer must = may;
  must.must_call = true;
  EXPECT_TRUE(reads(must, begin + a + b + end));
  EXPECT_FALSE(reads(must, "hi")) << "no call";
  EXPECT_FALSE(reads(must, "hi" + begin + a + end)) << "a call takes the place of content";
  must.one_call = true;
  EXPECT_TRUE(reads(must, begin + b + end));
  EXPECT_FALSE(reads(must, begin + a + b + end));
}

TEST(ChatAnswer, WhatAFormatOrASchemaCannotSayIsRefusedByName) {
  ChatAnswer answer{.must_call = true, .tools = {{"f", R"({"properties":{"a":{"contains":{}}}})"}}};
  for (const ChatFormat format : {ChatFormat::xtml, ChatFormat::k2})
    EXPECT_EQ(error_of([&] { (void)of(format == ChatFormat::xtml ? k3() : test::k2(), format, answer); }),
              "tools: f: #/properties/a/contains: this keyword is not supported");
  answer.tools = {{"f"}};
  EXPECT_EQ(error_of([&] { (void)of(k3(), ChatFormat::k2, answer); }), "the tokenizer has no <|tool_call_begin|>");
}

}  // namespace
}  // namespace kdelta::grammar
