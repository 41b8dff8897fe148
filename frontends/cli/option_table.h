// The commands and their options as data, read from the parser: what --help shows, the manual page and the shells'
// completions are written from it, so that none of them can differ from what is accepted.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace kdelta::cli {

struct OptionRow {
  enum class Takes : uint8_t { nothing, word, choice, file, directory };
  std::vector<std::string>
      names;               // as they are typed, "-n" before "--max-tokens"; without any it is a positional alone
  std::string positional;  // "model" where it may stand without a name, else ""
  Takes takes = Takes::nothing;
  std::vector<std::string> choices;
  std::string value;            // what help calls the value: INT, FLOAT, TEXT, FILE, DIR
  std::string help, otherwise;  // otherwise: the default, "" when there is none to tell
  bool required = false, repeats = false;
};

struct CommandRow {
  std::string name, help;  // "run", "bench serve"
  std::vector<OptionRow> options;
};

struct OptionTable {
  std::string help, footer;
  std::vector<CommandRow> commands;
};

OptionTable option_table(const CLI::App& program);

}  // namespace kdelta::cli
