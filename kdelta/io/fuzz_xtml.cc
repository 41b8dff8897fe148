// Any sequence of tokens as an answer of Kimi K3: every part is UTF-8, arguments are JSON objects, and the answer
// written as a prompt is read back as the same answer.
#include "kdelta/core/check.h"
#include "kdelta/io/tokenizer_file.h"
#include "kdelta/io/xtml.h"

namespace {

using namespace kdelta;

// Tokens that build elements in few steps; bytes 0..255 of the input pick them.
constexpr const char* kWords[] = {"think",
                                  "response",
                                  "tools",
                                  "call",
                                  "argument",
                                  "json",
                                  "message",
                                  " tool=\"f\"",
                                  " index=\"1\"",
                                  " key=\"k\"",
                                  " key=\"l&amp;&quot;\"",
                                  " type=\"string\"",
                                  " type=\"number\"",
                                  " type=\"boolean\"",
                                  " type=\"null\"",
                                  " type=\"object\"",
                                  " type=\"array\"",
                                  "call tool=\"f\" index=\"1\"",
                                  "argument key=\"k\" type=\"string\"",
                                  "argument key=\"n\" type=\"number\"",
                                  "json type=\"object\"",
                                  "true",
                                  "null",
                                  "{\"a\": 1}",
                                  "{\"b\": [",
                                  "]}",
                                  "[[[[[[[[",
                                  "]]]]]]]]",
                                  "1e400",
                                  "-0.0",
                                  "12345678901234567890",
                                  "\"",
                                  "{",
                                  "}",
                                  "[",
                                  "]",
                                  ",",
                                  ":",
                                  "0",
                                  "é",
                                  "\xF0\x9F",
                                  "\x98\x80"};

const Tokenizer& tokenizer() {
  static const Tokenizer t = [] {
    std::vector<std::string> tokens;
    for (int b = 0; b < 256; ++b) tokens.emplace_back(1, static_cast<char>(b));
    for (const char* word : kWords)
      if (std::string_view(word).size() > 1) tokens.emplace_back(word);
    const int64_t base = std::ssize(tokens);
    const std::vector<NamedSpecial> named{
        {base, "<|open|>"}, {base + 1, "<|close|>"}, {base + 2, "<|sep|>"}, {base + 3, "<|end_of_msg|>"}};
    return Tokenizer(tokens, named, "fuzz");
  }();
  return t;
}

// Input bytes from 128 on are control tokens and words, the others are themselves.
std::vector<int32_t> ids_of(const uint8_t* data, size_t size) {
  const int first_word = 256, specials = tokenizer().vocab_size() - Tokenizer::kSpecialCount;
  std::vector<int32_t> ids;
  for (size_t i = 0; i < size; ++i) {
    const int b = data[i];
    if (b < 128)
      ids.push_back(b);
    else if (b < 160)
      ids.push_back(specials + b % 5);  // the four of the format and a reserved one
    else
      ids.push_back(first_word + (b - 160) % (specials - first_word));
  }
  return ids;
}

void check_answer(const AnswerDelta& a) {
  KDELTA_CHECK(is_utf8(a.reasoning) && is_utf8(a.content));
  for (const ToolCall& call : a.calls) {
    KDELTA_CHECK(is_utf8(call.name) && !call.name.empty() && call.id.empty());
    KDELTA_CHECK(parse_json(call.arguments, {"arguments"}).kind() == Json::Kind::object);
  }
}

void check_round_trip(AnswerDelta a) {
  const std::vector<Message> messages{
      {.role = Role::assistant, .content = a.content, .reasoning = a.reasoning, .calls = a.calls}};
  const ChatEncoder encoder(tokenizer());
  const size_t prompt = encoder.encode({}, {}).size();
  const std::vector<int32_t> ids = encoder.encode(messages, {.generation_prompt = false});
  const AnswerDelta again = XtmlParser::parse(tokenizer(), true, std::span(ids).subspan(prompt));
  if (again.reasoning.empty()) a.reasoning.clear();  // blank reasoning is not written
  KDELTA_CHECK(again == a, again.content, " against ", a.content);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const bool thinking = data[0] & 1;
  const std::vector<int32_t> ids = ids_of(data + 1, size - 1);
  XtmlParser parser(tokenizer(), thinking);
  AnswerDelta all;
  for (const int32_t id : ids) {
    const AnswerDelta delta = parser.feed(id);
    check_answer(delta);
    all.append(delta);
  }
  const AnswerDelta last = parser.finish();
  check_answer(last);
  all.append(last);
  KDELTA_CHECK(parser.finish().empty() && parser.ended());
  check_round_trip(std::move(all));
  return 0;
}
