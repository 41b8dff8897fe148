#include "kdelta/io/grammar/chat_answer.h"

#include "kdelta/core/check.h"
#include "kdelta/io/chat_prompt.h"
#include "kdelta/io/grammar/json_rules.h"
#include "kdelta/io/grammar/json_schema.h"

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

  // <|open|>argument key="K" type="T"<|sep|>value<|close|>argument<|sep|>
  ExprId argument(ExprId key, std::string_view type, ExprId value) {
    return all({mark("<|open|>"), g_.literal("argument key=\""), key, g_.literal(str("\" type=\"", type, "\"")),
                mark("<|sep|>"), value, closing("argument")});
  }

  ExprId xtml_arguments(const ChatTool& tool) {
    if (tool.parameters.empty()) {
      const ExprId key = g_.repeat(g_.chars(CharSet::all() - CharSet({{'"', '"'}})), 0, kNoEnd);
      const ExprId any =
          any_argument_element(g_, [&](std::string_view type, ExprId value) { return argument(key, type, value); });
      return g_.repeat(any, 0, kNoEnd);
    }
    const std::string name = name_of(tool);
    const auto element = [&](const std::string& key, std::string_view type, ExprId value) {
      return argument(g_.literal(xtml_escaped(key)), type, value);
    };
    if (const auto rule = read_argument_elements(g_, tool.parameters, name, element)) return g_.call(*rule);
    return all({mark("<|open|>"), g_.literal("json type=\"object\""), mark("<|sep|>"),
                g_.call(read_arguments_schema(g_, tool.parameters, name)), closing("json")});
  }

  ExprId xtml_call(const ChatTool& tool) {
    const ExprId digit = g_.bytes('0', '9');
    return all({mark("<|open|>"), g_.literal(str("call tool=\"", xtml_escaped(tool.name), "\" index=\"")),
                g_.bytes('1', '9'), g_.repeat(digit, 0, kMostDigits), g_.literal("\""), mark("<|sep|>"),
                xtml_arguments(tool), closing("call")});
  }

  ExprId any_xtml_call() {
    const auto element = [&](const char* tag) {
      return all({opening_with_attributes(tag), free_text(), closing(tag)});
    };
    const ExprId some = g_.choice({element("argument"), element("json")});
    return all({opening_with_attributes("call"), g_.repeat(some, 0, kNoEnd), closing("call")});
  }

  ExprId calls(const ChatAnswer& answer, ExprId any, ExprId (Writer::*of)(const ChatTool& tool)) {
    std::vector<ExprId> kinds;
    for (const ChatTool& tool : answer.tools) kinds.push_back((this->*of)(tool));
    const ExprId call = kinds.empty() ? any : g_.choice(std::move(kinds));
    return g_.repeat(call, 1, answer.one_call ? 1 : kNoEnd);
  }

  ExprId xtml(const ChatAnswer& answer, ExprId content) {
    const ExprId response = closing("response");
    ExprId body = all({content, response});
    if (answer.calls || answer.must_call) {
      const ExprId tools =
          all({opening("tools"), calls(answer, any_xtml_call(), &Writer::xtml_call), closing("tools")});
      const ExprId instead = all({response, tools});
      body = answer.must_call ? instead : g_.choice({all({content, response, g_.optional(tools)}), instead});
    }
    const ExprId end = g_.optional(closing("message"));
    if (!answer.thinking) return all({body, end});
    return all({free_text(), closing("think"), opening("response"), body, end});
  }

  // <|tool_call_begin|>ID<|tool_call_argument_begin|>JSON<|tool_call_end|>
  ExprId k2_call(ExprId id, ExprId arguments) {
    return all(
        {mark("<|tool_call_begin|>"), id, mark("<|tool_call_argument_begin|>"), arguments, mark("<|tool_call_end|>")});
  }

  ExprId k2_call_of(const ChatTool& tool) {
    const ExprId number = g_.repeat(g_.bytes('0', '9'), 1, kMostDigits);
    return k2_call(all({g_.literal(str("functions.", tool.name, ":")), number}),
                   tool.parameters.empty() ? JsonRules(g_).object()
                                           : g_.call(read_arguments_schema(g_, tool.parameters, name_of(tool))));
  }

  ExprId k2(const ChatAnswer& answer, ExprId content) {
    ExprId body = content;
    if (answer.calls || answer.must_call) {
      const ExprId some = calls(answer, k2_call(free_text(), JsonRules(g_).object()), &Writer::k2_call_of);
      const ExprId section = all({mark("<|tool_calls_section_begin|>"), some, mark("<|tool_calls_section_end|>")});
      body = answer.must_call ? section : g_.choice({all({content, g_.optional(section)}), section});
    }
    if (!answer.thinking || !has("<think>") || !has("</think>")) return body;
    const ExprId lines = g_.repeat(g_.bytes('\n', '\n'), 0, 2);
    return all({g_.optional(all({mark("<think>"), free_text(), mark("</think>"), lines})), body});
  }

 private:
  static constexpr int64_t kMostDigits = 3;  // of the number of a call

  static std::string name_of(const ChatTool& tool) { return str("tools: ", printable(tool.name)); }

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
