// Any sequence of tokens as an answer of Kimi K2 or Kimi-Linear: every part is UTF-8, arguments are JSON objects, no
// byte of text is lost, the deltas join to what the whole gives, and the answer written as a prompt is read back as the
// same answer.
#include <algorithm>

#include "kdelta/core/check.h"
#include "kdelta/io/k2_answer.h"
#include "kdelta/io/tokenizer.h"

namespace {

using namespace kdelta;

// Tokens that build calls in few steps; bytes 0..255 of the input pick them.
constexpr const char* kWords[] = {"functions.", "functions.f:0",
                                  "f:1",        "functions.:0",
                                  ":",          "{}",
                                  "{\"a\": 1}", "{\"a\": [",
                                  "]}",         "\"b\"",
                                  "[1]",        "{",
                                  "}",          "\"",
                                  "1e400",      "-0.0",
                                  "null",       "\n\n",
                                  "  ",         "\t",
                                  "é",          "\xF0\x9F",
                                  "\x98\x80",   "\xEF\xBF\xBD",
                                  "<|im_end|>"};
constexpr const char* kSpecials[] = {"<|tool_calls_section_begin|>",
                                     "<|tool_calls_section_end|>",
                                     "<|tool_call_begin|>",
                                     "<|tool_call_argument_begin|>",
                                     "<|tool_call_end|>",
                                     "<think>",
                                     "</think>",
                                     "<|im_end|>",
                                     "<|im_assistant|>",
                                     "<|im_middle|>",
                                     "<|im_user|>",
                                     "<|im_system|>"};

const Tokenizer& tokenizer() {
  static const Tokenizer t = [] {
    std::vector<std::string> tokens;
    for (int b = 0; b < 256; ++b) tokens.emplace_back(1, static_cast<char>(b));
    for (const char* word : kWords)
      if (std::string_view(word).size() > 1) tokens.emplace_back(word);
    std::vector<NamedSpecial> named;
    for (const char* name : kSpecials) named.push_back({std::ssize(tokens) + std::ssize(named), name});
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
    else if (b < 176)
      ids.push_back(specials + b % (1 + static_cast<int>(std::size(kSpecials))));  // and a reserved one
    else
      ids.push_back(first_word + (b - 176) % (specials - first_word));
  }
  return ids;
}

void check_answer(const AnswerDelta& a) {
  KDELTA_CHECK(is_utf8(a.reasoning) && is_utf8(a.content));
  for (const ToolCall& call : a.calls) {
    KDELTA_CHECK(is_utf8(call.name) && is_utf8(call.id) && !call.name.empty());
    KDELTA_CHECK(parse_json(call.arguments, {"arguments"}).kind() == Json::Kind::object);
  }
}

// Letters are in no marker that the parser may drop: each fed before the end is somewhere in the answer, in order
// within its part, so their number is kept. Of a call that the end cuts off in its ID they go with the ID.
void check_nothing_lost(const std::vector<int32_t>& ids, const AnswerDelta& a) {
  const auto count = [](std::string_view text) { return std::count(text.begin(), text.end(), 'q'); };
  int64_t fed = 0, open_id = 0;
  bool ended = false, in_id = false;
  for (const int32_t id : ids) {
    ended = id == tokenizer().special_id("<|im_end|>");
    if (ended) break;
    if (tokenizer().is_special(id)) {
      const auto name = tokenizer().token_bytes(id);
      if (!name.starts_with("<|im_") && !name.starts_with("<|reserved"))
        in_id = name == "<|tool_call_begin|>", open_id = 0;
      continue;
    }
    fed += count(tokenizer().token_bytes(id));
    if (in_id) open_id += count(tokenizer().token_bytes(id));
  }
  int64_t kept = count(a.reasoning) + count(a.content);
  for (const ToolCall& call : a.calls) kept += count(call.id) + count(call.arguments);
  KDELTA_CHECK(kept == fed || (kept == fed - open_id && !ended), kept, " of ", fed);
}

void check_round_trip(const AnswerDelta& a) {
  const std::vector<Message> messages{{.role = Role::assistant, .content = a.content, .calls = a.calls}};
  std::vector<int32_t> prompt = ChatEncoder(tokenizer()).encode(messages, {.generation_prompt = false});
  prompt.erase(prompt.begin(), std::find(prompt.begin(), prompt.end(), tokenizer().special_id("<|im_middle|>")) + 1);
  AnswerDelta want = a;
  want.reasoning.clear();  // the prompt of this format has no place for it
  KDELTA_CHECK(K2Parser::parse(tokenizer(), prompt) == want, a.content);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::vector<int32_t> ids = ids_of(data, size);
  K2Parser parser(tokenizer());
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
  KDELTA_CHECK(all == K2Parser::parse(tokenizer(), ids));
  check_nothing_lost(ids, all);
  check_round_trip(all);
  return 0;
}
