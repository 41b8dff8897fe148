#include "frontends/cli/json_text.h"

#include <fmt/core.h>

namespace kdelta::cli {

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto u = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\')
      out += '\\', out += c;
    else if (c == '\n')
      out += "\\n";
    else if (u < 0x20 || u == 0x7f)
      out += fmt::format("\\u{:04x}", u);
    else
      out += c;
  }
  return out + "\"";
}

std::string message_line(const ChatMessage& m) {
  std::string out = fmt::format("{{\"role\":{},\"content\":{}", quoted(m.role), quoted(m.content));
  const auto add = [&](const char* name, const std::string& value) {
    if (!value.empty()) out += fmt::format(",\"{}\":{}", name, quoted(value));
  };
  add("reasoning", m.reasoning);
  for (size_t i = 0; i < m.calls.size(); ++i)
    out += fmt::format("{}{{\"id\":{},\"type\":\"function\",\"function\":{{\"name\":{},\"arguments\":{}}}}}",
                       i == 0 ? ",\"tool_calls\":[" : ",", quoted(m.calls[i].id), quoted(m.calls[i].name),
                       quoted(m.calls[i].arguments));
  if (!m.calls.empty()) out += "]";
  add("name", m.name);
  add("tool_call_id", m.call_id);
  return out + "}";
}

}  // namespace kdelta::cli
