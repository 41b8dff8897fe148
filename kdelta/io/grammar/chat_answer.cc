#include "kdelta/io/grammar/chat_answer.h"

#include "kdelta/core/check.h"
#include "kdelta/io/grammar/json_rules.h"

namespace kdelta::grammar {
namespace {

class Writer {
 public:
  Writer(Grammar& g, const Tokenizer& tokenizer) : g_(g), tokenizer_(tokenizer) {}

  ExprId mark(const char* name) {
    const int id = tokenizer_.special_id(name);
    if (id < 0) fail(ErrorCode::unsupported, "the tokenizer has no ", name);
    return g_.token(id);
  }
  bool has(const char* name) const { return tokenizer_.special_id(name) >= 0; }
  ExprId free_text() { return g_.repeat(g_.bytes(0, 255), 0, kNoEnd); }
  ExprId all(std::vector<ExprId> parts) { return g_.sequence(std::move(parts)); }

  // <|open|>tag attributes<|sep|>, <|close|>tag<|sep|>
  ExprId opening(const char* tag) { return all({mark("<|open|>"), g_.literal(tag), mark("<|sep|>")}); }
  ExprId opening_with_attributes(const char* tag) {
    return all({mark("<|open|>"), g_.literal(str(tag, " ")), free_text(), mark("<|sep|>")});
  }
  ExprId closing(const char* tag) { return all({mark("<|close|>"), g_.literal(tag), mark("<|sep|>")}); }

  ExprId xtml(const ChatAnswer& answer, ExprId content) {
    const ExprId argument = [&] {
      const auto element = [&](const char* tag) {
        return all({opening_with_attributes(tag), free_text(), closing(tag)});
      };
      return g_.choice({element("argument"), element("json")});
    }();
    const ExprId call = all({opening_with_attributes("call"), g_.repeat(argument, 0, kNoEnd), closing("call")});
    const ExprId tools = all({opening("tools"), g_.repeat(call, 1, kNoEnd), closing("tools")});
    const ExprId response = closing("response");
    const ExprId body = answer.calls ? g_.choice({all({content, response, g_.optional(tools)}), all({response, tools})})
                                     : all({content, response});
    const ExprId end = g_.optional(closing("message"));
    if (!answer.thinking) return all({body, end});
    return all({free_text(), closing("think"), opening("response"), body, end});
  }

  ExprId k2(const ChatAnswer& answer, ExprId content) {
    ExprId body = content;
    if (answer.calls) {
      const ExprId call = all({mark("<|tool_call_begin|>"), free_text(), mark("<|tool_call_argument_begin|>"),
                               JsonRules(g_).object(), mark("<|tool_call_end|>")});
      const ExprId section =
          all({mark("<|tool_calls_section_begin|>"), g_.repeat(call, 1, kNoEnd), mark("<|tool_calls_section_end|>")});
      body = g_.choice({all({content, g_.optional(section)}), section});
    }
    if (!answer.thinking || !has("<think>") || !has("</think>")) return body;
    const ExprId lines = g_.repeat(g_.bytes('\n', '\n'), 0, 2);
    return all({g_.optional(all({mark("<think>"), free_text(), mark("</think>"), lines})), body});
  }

 private:
  Grammar& g_;
  const Tokenizer& tokenizer_;
};

}  // namespace

ExprId chat_answer(Grammar& out, const Tokenizer& tokenizer, ChatFormat format, const ChatAnswer& answer,
                   ExprId content) {
  switch (format) {
    case ChatFormat::xtml:
      return Writer(out, tokenizer).xtml(answer, content);
    case ChatFormat::k2:
      return Writer(out, tokenizer).k2(answer, content);
  }
  KDELTA_UNREACHABLE("chat format", format);
}

}  // namespace kdelta::grammar
