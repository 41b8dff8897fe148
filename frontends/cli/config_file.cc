#include "frontends/cli/config_file.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>

#include "frontends/cli/environment.h"
#include "frontends/cli/usage.h"
#include "kdelta/api/json.h"

namespace kdelta::cli {
namespace {

constexpr const char* kFlag = "--config";

const CommandRow* command_of(const std::vector<std::string>& words, const OptionTable& table) {
  const CommandRow* found = nullptr;
  for (const CommandRow& c : table.commands) {
    const bool nested = words.size() > 1 && c.name == words[0] + " " + words[1];
    if (nested || (c.name == words[0] && found == nullptr)) found = &c;
  }
  return found;
}

std::string file_of(const std::vector<std::string>& words) {
  const char* variable = std::getenv(environment_name({"config"}).c_str());
  std::string file = variable == nullptr ? "" : variable;
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i] == kFlag && i + 1 < words.size()) file = words[i + 1];
    if (words[i].starts_with(kFlag + std::string("="))) file = words[i].substr(std::string(kFlag).size() + 1);
  }
  return file;
}

class Config {
 public:
  Config(const CommandRow& command, std::string file, const std::vector<std::string>& words)
      : command_(command), file_(std::move(file)), words_(words) {}

  std::vector<std::string> flags() const {
    Json json;
    try {
      json = parse_json_file(file_);
    } catch (const std::exception& e) {
      throw UsageError(fmt::format("{}: {}", kFlag, e.what()));
    }
    if (json.kind() != Json::Kind::object)
      throw UsageError(fmt::format("{}: {}: {}, expected an object of flags", kFlag, file_, describe(json)));
    std::vector<std::string> out;
    for (const JsonMember& m : json.object()) add(m, out);
    return out;
  }

 private:
  [[noreturn]] void refuse(const std::string& key, const std::string& why) const {
    throw UsageError(fmt::format("{}: {}: {}: {}", kFlag, file_, printable(key), why));
  }

  const OptionRow& row_of(const std::string& key) const {
    std::vector<std::string> known;
    for (const OptionRow& row : command_.options)
      for (const std::string& name : row.names) {
        if (name == "--" + key && name != kFlag && name != "--help") return row;
        if (name.starts_with("--")) known.push_back(name.substr(2));
      }
    const std::string near = nearest(key, known);
    refuse(key, "no flag of " + command_.name + " for a file" + (near.empty() ? "" : "; did you mean " + near + "?"));
  }

  // A list that was typed, and any flag of the environment, replaces the file's.
  bool given_elsewhere(const OptionRow& row) const {
    std::vector<std::string> long_names;
    for (const std::string& name : row.names) {
      if (name.starts_with("--")) long_names.push_back(name.substr(2));
      const bool typed =
          std::ranges::any_of(words_, [&](const std::string& w) { return w == name || w.starts_with(name + "="); });
      if (row.repeats && typed) return true;
    }
    return std::getenv(environment_name(long_names).c_str()) != nullptr;
  }

  void add(const JsonMember& m, std::vector<std::string>& out) const {
    const OptionRow& row = row_of(m.key);
    if (given_elsewhere(row)) return;
    const std::string flag = "--" + m.key;
    const bool is_bool = m.value.kind() == Json::Kind::boolean;
    if (row.takes == OptionRow::Takes::nothing) {
      if (!is_bool) refuse(m.key, describe(m.value) + ", expected true or false");
      if (m.value.boolean()) out.push_back(flag);
      return;
    }
    if (m.value.kind() != Json::Kind::array) {
      out.push_back(flag + "=" + text_of(m.key, m.value));
      return;
    }
    if (!row.repeats) refuse(m.key, describe(m.value) + ", expected one value");
    for (const Json& v : m.value.array()) out.push_back(flag + "=" + text_of(m.key, v));
  }

  std::string text_of(const std::string& key, const Json& value) const {
    switch (value.kind()) {
      case Json::Kind::string:
        return value.string();
      case Json::Kind::integer:
      case Json::Kind::real:
        return json_text(value);
      default:
        refuse(key, describe(value) + ", expected text or a number");
    }
  }

  const CommandRow& command_;
  std::string file_;
  const std::vector<std::string>& words_;
};

}  // namespace

std::vector<std::string> with_config(std::vector<std::string> words, const OptionTable& table) {
  if (words.empty()) return words;
  const CommandRow* command = command_of(words, table);
  const std::string file = command == nullptr ? "" : file_of(words);
  if (file.empty()) return words;
  const std::vector<std::string> flags = Config(*command, file, words).flags();
  const auto behind = command->name.find(' ') == std::string::npos ? 1 : 2;
  words.insert(words.begin() + behind, flags.begin(), flags.end());
  return words;
}

}  // namespace kdelta::cli
