#include "frontends/server/field_names.h"

#include <charconv>

namespace kdelta::server {
namespace {

constexpr std::string_view kSource = "request: ", kName = "abcdefghijklmnopqrstuvwxyz_";

std::string said(const std::string& path, std::string_view rest) {
  return std::string(kSource) + path + std::string(rest);
}

// `rest`: behind "messages[N]".
std::string of_message(const FieldNames::Message& message, std::string_view rest) {
  for (size_t i = 0; i < message.arguments.size(); ++i) {
    const std::string field = ".calls[" + std::to_string(i) + "].arguments";
    if (rest.starts_with(field)) return said(message.arguments[i], rest.substr(field.size()));
  }
  return said(message.path, rest);
}

}  // namespace

std::string FieldNames::of(std::string_view message) const {
  if (message.starts_with(kSource)) return std::string(message);
  std::string_view text = message;
  constexpr std::string_view sampling = "sampling: ";
  if (text.starts_with(sampling)) text.remove_prefix(sampling.size());
  for (const auto& [name, path] : tools) {
    const std::string start = "tools: " + name + ": ";
    if (text.starts_with(start)) return said(path, text.substr(start.size() - 2));
  }
  const size_t end = std::min(text.find_first_not_of(kName), text.size());
  const std::string_view name = text.substr(0, end), rest = text.substr(end);
  if (!rest.starts_with(": ") && !rest.starts_with('[')) return std::string(message);
  if (name == "messages" && rest.starts_with('[')) {
    size_t i = messages.size();
    const auto read = std::from_chars(rest.data() + 1, rest.data() + rest.size(), i);
    if (i < messages.size() && *read.ptr == ']')
      return of_message(messages[i], rest.substr(static_cast<size_t>(read.ptr + 1 - rest.data())));
  }
  for (const auto& [ours, path] : fields)
    if (name == ours) return said(path, rest);
  return std::string(message);
}

std::string field_of(std::string_view message) {
  if (!message.starts_with(kSource)) return "";
  message.remove_prefix(kSource.size());
  const std::string_view path = message.substr(0, std::min(message.find(": "), message.size()));
  const bool is_path = path.size() < message.size() && !path.empty() &&
                       path.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_-.[]0123456789") ==
                           std::string_view::npos;
  return is_path ? std::string(path) : "";
}

}  // namespace kdelta::server
