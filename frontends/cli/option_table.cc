#include "frontends/cli/option_table.h"

#include <CLI/CLI.hpp>

namespace kdelta::cli {
namespace {

// "TEXT:{bf16,fp32}" -> bf16, fp32.
std::vector<std::string> choices_in(const std::string& type) {
  std::vector<std::string> out;
  const size_t open = type.find('{'), close = type.find('}', open);
  if (open == std::string::npos || close == std::string::npos) return out;
  for (size_t at = open + 1; at < close;) {
    const size_t comma = std::min(type.find(',', at), close);
    out.push_back(type.substr(at, comma - at));
    at = comma + 1;
  }
  return out;
}

OptionRow row_of(const CLI::Option& o) {
  OptionRow row;
  for (const std::string& n : o.get_snames()) row.names.push_back("-" + n);
  for (const std::string& n : o.get_lnames()) row.names.push_back("--" + n);
  if (o.get_positional()) row.positional = o.get_name(true);
  row.help = o.get_description();
  row.otherwise = o.get_default_str();
  row.required = o.get_required();
  row.repeats = o.get_items_expected_max() > 1;
  if (o.get_items_expected_max() == 0) return row;
  const std::string type = o.get_type_name();
  row.choices = choices_in(type);
  const auto says = [&](const char* what) { return type.find(what) != std::string::npos; };
  using Takes = OptionRow::Takes;
  row.takes = !row.choices.empty() ? Takes::choice
              : says("DIR")        ? Takes::directory
              : says("FILE")       ? Takes::file
                                   : Takes::word;
  row.value = row.takes == Takes::directory ? "DIR"
              : row.takes == Takes::file    ? "FILE"
                                            : type.substr(0, type.find(':'));
  return row;
}

void add_commands(const CLI::App& app, const std::string& before, std::vector<CommandRow>& out) {
  for (const CLI::App* c : app.get_subcommands([](const CLI::App*) { return true; })) {
    CommandRow command{.name = before + c->get_name(), .help = c->get_description(), .options = {}};
    for (const CLI::Option* o : c->get_options()) command.options.push_back(row_of(*o));
    out.push_back(std::move(command));
    add_commands(*c, before + c->get_name() + " ", out);
  }
}

}  // namespace

OptionTable option_table(const CLI::App& program) {
  OptionTable table{.help = program.get_description(), .footer = program.get_footer(), .commands = {}};
  add_commands(program, "", table.commands);
  return table;
}

}  // namespace kdelta::cli
