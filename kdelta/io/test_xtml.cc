#include <gtest/gtest.h>

#include "kdelta/core/error.h"
#include "kdelta/io/test_answer_pieces.h"
#include "kdelta/io/xtml.h"
#include "tests/support/op_test.h"

namespace kdelta {
namespace {

const Tokenizer& fixture() {
  static const Tokenizer tokenizer = Tokenizer::load("tests/tokenizer");
  return tokenizer;
}

// Ids of an answer as the model would give them: control tokens by name, text between them.
std::vector<int32_t> ids_of(std::string_view answer) {
  return fixture().encode_with_specials(answer);
}

AnswerDelta parse(std::string_view answer, bool thinking = true) {
  return XtmlParser::parse(fixture(), thinking, ids_of(answer));
}

AnswerDelta answer(std::string reasoning, std::string content, std::vector<ToolCall> calls = {}) {
  return {std::move(reasoning), std::move(content), std::move(calls)};
}

const std::string kCall = "<|open|>call tool=\"f\" index=\"1\"<|sep|>";
const std::string kCallEnd = "<|close|>call<|sep|>";

std::string argument(const std::string& type, const std::string& value, const std::string& key = "k") {
  return "<|open|>argument key=\"" + key + "\" type=\"" + type + "\"<|sep|>" + value + "<|close|>argument<|sep|>";
}

AnswerDelta parse_call(const std::string& body) {
  return parse("<|open|>tools<|sep|>" + kCall + body + kCallEnd + "<|close|>tools<|sep|>");
}

TEST(Xtml, SeparatesReasoningContentAndCalls) {
  EXPECT_EQ(parse("I think.<|close|>think<|sep|><|open|>response<|sep|>Hello "
                  "\"you\".<|close|>response<|sep|><|open|>tools<|sep|>" +
                  kCall + argument("string", "a \"b\"\n", "path") + argument("number", "3") + kCallEnd +
                  "<|open|>call tool=\"a.b/c-d\" index=\"2\"<|sep|>" + kCallEnd +
                  "<|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>"),
            answer("I think.", "Hello \"you\".", {{"", "f", R"({"path":"a \"b\"\n","k":3})"}, {"", "a.b/c-d", "{}"}}));
}

TEST(Xtml, WithoutThinkingItStartsInTheResponse) {
  EXPECT_EQ(parse("Hi<|close|>response<|sep|><|close|>message<|sep|><|end_of_msg|>", false), answer("", "Hi"));
}

TEST(Xtml, AnyOpeningOfALaterPartEndsThinking) {
  EXPECT_EQ(parse("hm <|open|>tools<|sep|>" + kCall + kCallEnd + "<|close|>tools<|sep|>"),
            answer("hm ", "", {{"", "f", "{}"}}));
  EXPECT_EQ(parse("hm <|open|>response<|sep|>yes"), answer("hm ", "yes"));
  EXPECT_EQ(parse("hm " + kCall + kCallEnd), answer("hm ", "", {{"", "f", "{}"}}));
}

TEST(Xtml, ThinkingThatNeverEndsIsReasoning) {
  EXPECT_EQ(parse("still going"), answer("still going", ""));
}

TEST(Xtml, AnEmptyOrMissingThinkingPartGivesNoReasoning) {
  EXPECT_EQ(parse("<|close|>think<|sep|><|open|>response<|sep|>a"), answer("", "a"));
  EXPECT_EQ(parse("<|open|>response<|sep|>a<|close|>response<|sep|>"), answer("", "a"));
}

TEST(Xtml, ClosingWhatIsNotOpenChangesNothing) {
  EXPECT_EQ(parse("t<|close|>think<|sep|><|close|>think<|sep|><|open|>response<|sep|>a<|close|>think<|sep|> "
                  "<|close|>tools<|sep|>\n<|close|>call<|sep|>b"),
            answer("t", "a \nb"));
}

TEST(Xtml, MarkersSpelledAsTextAreText) {
  std::vector<int32_t> ids;
  fixture().encode("say <|close|>think<|sep|><|open|>tools<|sep|> now", ids);
  EXPECT_EQ(XtmlParser::parse(fixture(), true, ids), answer("say <|close|>think<|sep|><|open|>tools<|sep|> now", ""));
}

TEST(Xtml, DeltasJoinedEqualTheWholeAnswer) {
  const std::vector<std::string> answers = {"hm <|open|>tools<|sep|>" + kCall + argument("string", "é😀") + kCallEnd,
                                            "a<|close|>think<|sep|><|open|>response<|sep|>中😀!<|close|>response",
                                            kCall + argument("number", "x") + kCallEnd + "tail"};
  for (const std::string& text : answers) {
    const std::vector<int32_t> ids = ids_of(text);
    XtmlParser parser(fixture(), true);
    AnswerDelta all;
    for (int32_t id : ids) {
      const AnswerDelta delta = parser.feed(id);
      EXPECT_TRUE(is_utf8(delta.reasoning + delta.content));
      all.append(delta);
    }
    all.append(parser.finish());
    EXPECT_EQ(all, XtmlParser::parse(fixture(), true, ids));
  }
}

TEST(Xtml, ReasoningArrivesWhileItIsGenerated) {
  XtmlParser parser(fixture(), true);
  std::string reasoning;
  for (int32_t id : ids_of("one two three")) reasoning += parser.feed(id).reasoning;
  EXPECT_EQ(reasoning, "one two three");
  EXPECT_TRUE(parser.finish().empty());
}

TEST(Xtml, ArgumentsKeepTheirDeclaredTypes) {
  const auto arguments = [](const std::string& body) {
    const AnswerDelta a = parse_call(body);
    return a.calls.size() == 1 && a.content.empty() ? a.calls[0].arguments : "not one call: " + a.content;
  };
  EXPECT_EQ(arguments(argument("string", "true")), R"({"k":"true"})");
  EXPECT_EQ(arguments(argument("string", "")), R"({"k":""})");
  EXPECT_EQ(arguments(argument("string", "\"}\\\n\t" + std::string(1, '\0') + "😀")), R"({"k":"\"}\\\n\t\u0000😀"})");
  EXPECT_EQ(arguments(argument("boolean", "true")), R"({"k":true})");
  EXPECT_EQ(arguments(argument("null", "null")), R"({"k":null})");
  EXPECT_EQ(arguments(argument("number", "-1.5")), R"({"k":-1.5})");
  EXPECT_EQ(arguments(argument("array", "[1, \"a\"]")), R"({"k":[1,"a"]})");
  EXPECT_EQ(arguments(argument("object", "{\"a\": {\"b\": []}}")), R"({"k":{"a":{"b":[]}}})");
  EXPECT_EQ(arguments(argument("string", "v", "a&quot;b&amp;quot;")), R"({"a\"b&quot;":"v"})");
  EXPECT_EQ(arguments("<|open|>json type=\"object\"<|sep|>{\"x\": 1}<|close|>json<|sep|>"), R"({"x":1})");
  EXPECT_EQ(arguments("\n  " + argument("number", "2") + "\n"), R"({"k":2})");
}

TEST(Xtml, ACallThatCannotBeReadBecomesContentInItsOwnSpelling) {
  for (const std::string& body :
       {argument("number", "1e400"), argument("number", "\"1\""), argument("number", ""), argument("object", "[1]"),
        argument("string", "a") + "stray", argument("string", "1") + argument("number", "2"), argument("unheard", "1"),
        std::string("<|open|>json type=\"object\"<|sep|>{\"x\": <|close|>json<|sep|>"),
        std::string("<|open|>other<|sep|>"), std::string("<|open|>argument key=\"k<|sep|>v<|close|>argument<|sep|>")})
    EXPECT_EQ(parse_call(body), answer("", kCall + body + kCallEnd));
}

TEST(Xtml, PiecesOfCallsJoinedAreTheCalls) {
  const std::string s = argument("string", "a \"b\"\n中😀"), n = argument("number", "2", "n");
  const std::string json = "<|open|>json type=\"object\"<|sep|>{\"x\": 1, \"y\": [{}]}<|close|>json<|sep|>";
  const std::string half = "<|open|>argument key=\"h\" type=\"string\"<|sep|>half";
  for (const std::string& body : {std::string(), s, s + n, n + s + json, json, json + n, json + json, s + s, s + half,
                                  n + "stray", s + argument("number", "x", "m") + n, half})
    for (const std::string& end : {kCallEnd, std::string("<|end_of_msg|>"), std::string()}) {
      const AnswerDelta a = parse(kCall + n + kCallEnd + kCall + body + end);
      EXPECT_EQ(joined(a.pieces), a.calls) << body << end;
    }
}

TEST(Xtml, StringArgumentsArriveWhileTheyAreGenerated) {
  XtmlParser parser(fixture(), true);
  AnswerDelta all;
  for (const int32_t id : ids_of(kCall)) all.append(parser.feed(id));
  ASSERT_EQ(all.pieces.size(), 1u) << "a call is announced with its name";
  EXPECT_EQ(all.pieces[0].name, "f");
  std::string told;
  for (const int32_t id : ids_of("<|open|>argument key=\"k\" type=\"string\"<|sep|>one \"two\" three"))
    for (const CallPiece& p : parser.feed(id).pieces) told += p.arguments;
  EXPECT_EQ(told, R"({"k":"one \"two\" three)");
}

TEST(Xtml, ACallWithoutAToolBecomesContent) {
  const std::string call = "<|open|>call index=\"1\"<|sep|><|close|>call<|sep|>";
  EXPECT_EQ(parse(call), answer("", call));
}

TEST(Xtml, AFailedCallLeavesItsNeighboursAlone) {
  EXPECT_EQ(
      parse(kCall + kCallEnd + kCall + argument("number", "x") + kCallEnd + kCall + argument("number", "2") + kCallEnd),
      answer("", kCall + argument("number", "x") + kCallEnd, {{"", "f", "{}"}, {"", "f", R"({"k":2})"}}));
}

TEST(Xtml, ACallThatTheEndCutsOffBecomesContent) {
  EXPECT_EQ(parse("t<|close|>think<|sep|><|open|>tools<|sep|>" + kCall +
                  "<|open|>argument key=\"k\" type=\"string\"<|sep|>half"),
            answer("t", kCall + "<|open|>argument key=\"k\" type=\"string\"<|sep|>half"));
}

TEST(Xtml, ACallLeftOpenEndsWithItsMessageOrTheNextPart) {
  EXPECT_EQ(parse(kCall + argument("number", "1") + "<|close|>tools<|sep|>"),
            answer("", "", {{"", "f", R"({"k":1})"}}));
  EXPECT_EQ(parse(kCall + "<|open|>argument key=\"k\" type=\"string\"<|sep|>v<|end_of_msg|>"),
            answer("", "", {{"", "f", R"({"k":"v"})"}}));
  EXPECT_EQ(parse(kCall + "<|open|>argument key=\"k\" type=\"string\"<|sep|>v<|open|>response<|sep|>r"),
            answer("", "r", {{"", "f", R"({"k":"v"})"}}));
}

TEST(Xtml, UnknownElementsAndTagsLeftForOthersStayVisible) {
  EXPECT_EQ(parse("<|open|>response<|sep|>a<|open|>img src=\"x\"<|sep|>b<|close|>img<|sep|>c"),
            answer("", "a<|open|>img src=\"x\"<|sep|>b<|close|>img<|sep|>c"));
  EXPECT_EQ(parse("<|open|>response<|sep|>a<|open|><|open|>x<|sep|>"), answer("", "a<|open|><|open|>x<|sep|>"));
}

// An answer of every length, as max tokens cuts it: what is shown is a beginning of what the whole answer shows.
TEST(Xtml, ATagThatTheEndCutsOffIsNeverContent) {
  const std::string whole =
      "I think.<|close|>think<|sep|><|open|>response<|sep|>the sun.<|close|>response<|sep|><|close|>message<|sep|>";
  const std::vector<int32_t> ids = ids_of(whole);
  for (size_t n = 0; n <= ids.size(); ++n) {
    const AnswerDelta cut = XtmlParser::parse(fixture(), true, std::span(ids).first(n));
    EXPECT_TRUE(std::string("I think.").starts_with(cut.reasoning)) << n << ": " << cut.reasoning;
    EXPECT_TRUE(std::string("the sun.").starts_with(cut.content)) << n << ": " << cut.content;
  }
  EXPECT_EQ(parse("a<|close|>message", false), answer("", "a"));
  EXPECT_EQ(parse("a<|close|>message<|end_of_msg|>", false), answer("", "a"));
  EXPECT_EQ(parse("a<|close|>response<|sep|><|open|>call tool=\"f", false), answer("", "a"));
  EXPECT_EQ(parse(kCall + argument("number", "1") + "<|close|>ca"), answer("", kCall + argument("number", "1")));
  EXPECT_EQ(parse("a<|close|>no tag, words", false), answer("", "ano tag, words")) << "the mark goes, text stays";
  EXPECT_EQ(XtmlParser::parse(fixture(), false, fixture().encode("a<|close|>message")), answer("", "a<|close|>message"))
      << "spelled in ordinary tokens it is text";
}

TEST(Xtml, TextBetweenThePartsIsContentAndBlanksThereAreLayout) {
  EXPECT_EQ(parse("t<|close|>think<|sep|>\n<|open|>response<|sep|>a<|close|>response<|sep|>\n\nb"), answer("t", "ab"));
}

TEST(Xtml, NothingFollowsTheEndOfTheMessage) {
  XtmlParser parser(fixture(), true);
  AnswerDelta all;
  for (int32_t id : ids_of("a<|close|>message<|sep|>b<|open|>response<|sep|>c")) all.append(parser.feed(id));
  EXPECT_TRUE(parser.ended());
  all.append(parser.finish());
  EXPECT_EQ(all, answer("a", ""));
}

TEST(Xtml, ACharacterCutByAControlTokenIsReplacedOnce) {
  std::vector<int32_t> ids = fixture().encode("😀");
  ASSERT_GT(ids.size(), 1u);
  ids.pop_back();
  ids.push_back(fixture().special_id("<|close|>"));
  fixture().encode("think", ids);
  ids.push_back(fixture().special_id("<|sep|>"));
  EXPECT_EQ(XtmlParser::parse(fixture(), true, ids), answer("\uFFFD", ""));
}

}  // namespace
}  // namespace kdelta
