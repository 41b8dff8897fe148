// The prompt of Kimi K2 and Kimi-Linear: <|im_ROLE|>name<|im_middle|>text<|im_end|>, nothing between messages.
#include "kdelta/io/chat_prompt.h"

namespace kdelta {
namespace {

std::string_view opening(Role role) {
  if (role == Role::user) return "<|im_user|>";
  return role == Role::assistant ? "<|im_assistant|>" : "<|im_system|>";
}

void open(PromptWriter& out, Role role, std::string_view name) {
  out.special(opening(role));
  out.text(name);
  out.special("<|im_middle|>");
}

// Names the calls that have no id, and the results that do not say which call they answer.
class CallNames {
 public:
  std::string of(const ToolCall& call) {
    const int index = count_++;
    return call.id.empty() ? str("functions.", call.name, ":", index) : call.id;
  }
  void begin(const Message& assistant) {
    names_.clear();
    result_ = 0;
    for (const ToolCall& call : assistant.calls) names_.push_back(of(call));
  }
  const std::vector<std::string>& names() const { return names_; }
  std::string of_result(const Message& m, size_t position) {
    const size_t i = result_++;
    if (!m.call_id.empty()) return m.call_id;
    if (i < names_.size()) return names_[i];
    fail(ErrorCode::invalid_argument, "messages[", position,
         "]: a tool result without call_id, and no call that it could answer");
  }

 private:
  int count_ = 0;
  std::vector<std::string> names_;  // of the last assistant message's calls
  size_t result_ = 0;
};

void tool_calls(PromptWriter& out, std::span<const ToolCall> calls, std::span<const std::string> names) {
  out.special("<|tool_calls_section_begin|>");
  for (size_t i = 0; i < calls.size(); ++i) {
    out.special("<|tool_call_begin|>");
    out.text(names[i]);
    out.special("<|tool_call_argument_begin|>");
    out.text(is_blank(calls[i].arguments) ? std::string_view("{}") : calls[i].arguments);
    out.special("<|tool_call_end|>");
  }
  out.special("<|tool_calls_section_end|>");
}

void message(PromptWriter& out, const Message& m, size_t position, CallNames& call_names) {
  if (m.role == Role::tool) {
    open(out, m.role, "tool");
    out.text(str("## Return of ", call_names.of_result(m, position), "\n", m.content));
  } else {
    if (has_tools(m.tools, str("messages[", position, "].tools")))
      fail(ErrorCode::unsupported, "messages[", position,
           "].tools: this model's chat format knows tools at the beginning only");
    open(out, m.role, m.name.empty() ? role_name(m.role) : m.name);
    out.text(m.content);
    if (m.role == Role::assistant) {
      call_names.begin(m);
      if (!m.calls.empty()) tool_calls(out, m.calls, call_names.names());
    }
  }
  out.special("<|im_end|>");
}

}  // namespace

void write_k2_prompt(PromptWriter& out, std::span<const Message> messages, const ChatOptions& options) {
  if (!options.effort.empty())
    fail(ErrorCode::invalid_argument, "effort: '", printable(options.effort),
         "': this model's chat format has none");
  if (has_tools(options.tools, "tools")) {
    open(out, Role::system, "tool_declare");
    out.text(json_text(options.tools, {.spaced = true}));
    out.special("<|im_end|>");
  }
  CallNames call_names;
  for (size_t i = 0; i < messages.size(); ++i) message(out, messages[i], i, call_names);
  if (options.generation_prompt) open(out, Role::assistant, role_name(Role::assistant));
}

}  // namespace kdelta
