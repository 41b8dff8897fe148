#include "frontends/cli/parse_errors.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>

#include "frontends/cli/option_table.h"
#include "frontends/cli/usage.h"

namespace kdelta::cli {
namespace {

// "A: 5": the option of `command` whose names a message begins with, or that ends a message of the parser.
const CLI::Option* option_named(const CLI::App& command, const std::string& name) {
  for (const CLI::Option* o : command.get_options())
    if (o->get_name() == name || o->check_name(name)) return o;
  return nullptr;
}

std::string kind_of(const CLI::Option* o) {
  const std::string type = o == nullptr ? "" : o->get_type_name();
  if (type.starts_with("INT") || type.starts_with("UINT")) return "a whole number";
  if (type.starts_with("FLOAT")) return "a number";
  if (type.find("DIR") != std::string::npos) return "a directory";
  if (type.find("FILE") != std::string::npos) return "a file";
  return "a value";
}

// How a person writes it: a positional by its word.
std::string spelled(const CLI::Option* o, const std::string& name) {
  if (o == nullptr || !o->get_positional()) return name;
  std::string word = o->get_name(true);
  for (char& c : word) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return word;
}

// 0.100000 -> 0.1
std::string plain(const std::string& number) {
  if (number.find('.') == std::string::npos) return number;
  const size_t last = number.find_last_not_of('0');
  return number.substr(0, number[last] == '.' ? last : last + 1);
}

std::string commas(std::string list) {
  for (size_t at = list.find(','); at != std::string::npos; at = list.find(',', at + 2)) list.insert(at + 1, " ");
  return list;
}

// `fault`: what stands behind "--flag: ".
std::string wrong_value(const CLI::Option* o, const std::string& fault) {
  if (const size_t in = fault.find(" not in {"); in != std::string::npos)
    return fmt::format("'{}', accepted: {}", fault.substr(0, in), commas(fault.substr(in + 9, fault.size() - in - 10)));
  const std::string value = "Value ", range = " not in range ";
  if (const size_t in = fault.find(range); in != std::string::npos && fault.starts_with(value)) {
    const std::string given = fault.substr(value.size(), in - value.size()), limits = fault.substr(in + range.size());
    const size_t to = limits.find(" to ");
    return fmt::format("{}, expected {} from {} to {}", given, kind_of(o), plain(limits.substr(0, to)),
                       plain(limits.substr(to + 4)));
  }
  for (const auto& [theirs, ours] : {std::pair("File does not exist: ", "no such file"),
                                     std::pair("Directory does not exist: ", "no such directory"),
                                     std::pair("File is actually a directory: ", "a directory, expected a file"),
                                     std::pair("Directory is actually a file: ", "a file, expected a directory")})
    if (fault.starts_with(theirs)) return fmt::format("'{}': {}", fault.substr(std::string(theirs).size()), ours);
  return fault;
}

std::string unexpected(const CLI::App& command) {
  const std::vector<std::string> words = command.remaining(true);
  const auto flag =
      std::ranges::find_if(words, [](const std::string& w) { return w.size() > 1 && w.starts_with('-'); });
  if (flag == words.end())
    return fmt::format("'{}': not expected here; {} takes one model, and a flag one value at a time", words.front(),
                       command.get_name());
  const std::string name = flag->substr(0, flag->find('='));
  std::vector<std::string> known;
  for (const CLI::Option* o : command.get_options())
    for (const std::string& l : o->get_lnames()) known.push_back("--" + l);
  const std::string near = nearest(name, known);
  return fmt::format("{}: no flag of {}{}", name, command.get_name(),
                     near.empty() ? "" : "; did you mean " + near + "?");
}

std::string words_of(const CLI::App& command, const CLI::ParseError& error) {
  const std::string what = error.what();
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr) return unexpected(command);
  if (const std::string tail = " is required"; what.ends_with(tail)) {
    const std::string name = what.substr(0, what.size() - tail.size());
    const CLI::Option* o = option_named(command, name);
    if (o == nullptr) return what;
    return fmt::format("{}: missing, expected {}: {}", spelled(o, name), kind_of(o), o->get_description());
  }
  if (const std::string head = "Could not convert: "; what.starts_with(head)) {
    const size_t is = what.find(" = ");
    const std::string name = what.substr(head.size(), is - head.size());
    return fmt::format("{}: '{}', expected {}", name, what.substr(is + 3), kind_of(option_named(command, name)));
  }
  const size_t colon = what.find(": ");
  if (colon == std::string::npos) return what;
  const std::string name = what.substr(0, colon), fault = what.substr(colon + 2);
  const CLI::Option* o = option_named(command, name);
  if (fault.ends_with(" missing")) return fmt::format("{}: no value, expected {}", name, kind_of(o));
  return spelled(o, name) + ": " + wrong_value(o, fault);
}

}  // namespace

std::string refusal(const CLI::App& command, const CLI::ParseError& error) {
  const std::string help =
      command.get_parent() == nullptr ? "kdelta --help" : fmt::format("kdelta {} --help", command.get_name());
  return fmt::format("{}\n'{}' lists what it takes\n", words_of(command, error), help);
}

}  // namespace kdelta::cli
