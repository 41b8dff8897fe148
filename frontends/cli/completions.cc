#include <fmt/core.h>

#include "frontends/cli/documents.h"
#include "frontends/cli/usage.h"

namespace kdelta::cli {
namespace {

using Takes = OptionRow::Takes;

std::string joined(const std::vector<std::string>& words, const char* between) {
  std::string out;
  for (const std::string& w : words) out += (out.empty() ? "" : between) + w;
  return out;
}

// In single quotes of a shell.
std::string in_quotes(const std::string& text) {
  std::string out;
  for (const char c : text)
    if (c == '\'')
      out += "'\\''";
    else
      out += c == '\n' ? ' ' : c;
  return out;
}

// The first clause: a line of a menu.
std::string brief(const std::string& help) {
  const size_t end = help.find_first_of(";:\n");
  std::string out = help.substr(0, end);
  return out.size() > 70 ? out.substr(0, out.rfind(' ', 70)) : out;
}

// "bench serve": a command below another.
bool is_nested(const CommandRow& c) {
  return c.name.find(' ') != std::string::npos;
}

std::string command_names(const OptionTable& t) {
  std::vector<std::string> names;
  for (const CommandRow& c : t.commands)
    if (!is_nested(c)) names.push_back(c.name);
  return joined(names, " ");
}

std::string bash_values(const OptionRow& o) {
  switch (o.takes) {
    case Takes::choice:
      return fmt::format("_kdelta_words '{}'", joined(o.choices, " "));
    case Takes::directory:
      return "_kdelta_paths -d";
    case Takes::file:
      return "_kdelta_paths -f";
    case Takes::word:
    case Takes::nothing:
      break;
  }
  return ":";
}

std::string bash(const OptionTable& t) {
  std::string out =
      "# bash completion of kdelta, written by \"kdelta completions bash\"\n"
      "_kdelta_words() { mapfile -t COMPREPLY < <(compgen -W \"$1\" -- \"$word\"); }\n"
      "_kdelta_paths() { compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen \"$1\" -- \"$word\"); }\n"
      "_kdelta() {\n  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}\n  COMPREPLY=()\n"
      "  if ((COMP_CWORD == 1)); then _kdelta_words '" +
      command_names(t) + " --help --version'; return; fi\n  local command=${COMP_WORDS[1]}\n";
  for (const CommandRow& c : t.commands)
    if (is_nested(c)) out += fmt::format("  [[ \"$command ${{COMP_WORDS[2]}}\" != '{0}' ]] || command='{0}'\n", c.name);
  out += "  case $command in\n";
  for (const CommandRow& c : t.commands) {
    std::vector<std::string> all;
    std::string values, positional = ":";
    for (const OptionRow& o : c.options) {
      all.insert(all.end(), o.names.begin(), o.names.end());
      if (o.takes != Takes::nothing && !o.names.empty())
        values += fmt::format("        {}) {}; return ;;\n", joined(o.names, "|"), bash_values(o));
      if (!o.positional.empty() && positional == ":") positional = bash_values(o);
    }
    out += fmt::format("    '{}')\n", c.name);
    if (!values.empty()) out += fmt::format("      case $before in\n{}      esac\n", values);
    out += fmt::format("      if [[ $word == -* ]]; then _kdelta_words '{}'; else {}; fi ;;\n", joined(all, " "),
                       positional);
  }
  return out + "  esac\n}\ncomplete -F _kdelta kdelta\n";
}

std::string zsh_values(const OptionRow& o) {
  switch (o.takes) {
    case Takes::choice:
      return fmt::format("({})", joined(o.choices, " "));
    case Takes::directory:
      return "_directories";
    case Takes::file:
      return "_files";
    case Takes::word:
    case Takes::nothing:
      break;
  }
  return "";
}

// In the brackets of _arguments.
std::string in_brackets(const std::string& text) {
  std::string out;
  for (const char c : in_quotes(text)) out += c == '[' || c == ']' ? std::string{'\\', c} : std::string(1, c);
  return out;
}

std::string zsh(const OptionTable& t) {
  std::string out =
      "#compdef kdelta\n# zsh completion of kdelta, written by \"kdelta completions zsh\"\n_kdelta() {\n"
      "  local -a commands=(\n";
  for (const CommandRow& c : t.commands)
    if (!is_nested(c)) out += fmt::format("    '{}:{}'\n", c.name, in_quotes(brief(c.help)));
  out +=
      "  )\n  if ((CURRENT == 2)); then _describe command commands; return; fi\n"
      "  local command=$words[2]\n  shift words\n  ((CURRENT--))\n";
  for (const CommandRow& c : t.commands)
    if (is_nested(c))
      out += fmt::format(
          "  if [[ \"$command $words[2]\" == '{0}' ]] && ((CURRENT > 2)); then command='{0}'; shift words; "
          "((CURRENT--)); "
          "fi\n",
          c.name);
  out += "  case $command in\n";
  for (const CommandRow& c : t.commands) {
    out += fmt::format("    '{}') _arguments -s", c.name);
    int position = 0;
    for (const OptionRow& o : c.options) {
      const std::string value =
          o.takes == Takes::nothing ? "" : fmt::format(":{}:{}", in_brackets(o.value), zsh_values(o));
      for (const std::string& name : o.names)
        out += fmt::format(" \\\n      '{}{}[{}]{}'", o.repeats ? "*" : fmt::format("({})", joined(o.names, " ")), name,
                           in_brackets(brief(o.help)), value);
      if (!o.positional.empty()) out += fmt::format(" \\\n      '{}:{}:{}'", ++position, o.positional, zsh_values(o));
    }
    out += " ;;\n";
  }
  return out + "  esac\n}\n_kdelta \"$@\"\n";
}

std::string fish(const OptionTable& t) {
  std::string out = "# fish completion of kdelta, written by \"kdelta completions fish\"\ncomplete -c kdelta -f\n";
  for (const CommandRow& c : t.commands)
    if (!is_nested(c))
      out +=
          fmt::format("complete -c kdelta -n __fish_use_subcommand -a {} -d '{}'\n", c.name, in_quotes(brief(c.help)));
  for (const CommandRow& c : t.commands)
    for (const OptionRow& o : c.options) {
      std::string names, values;
      for (const std::string& n : o.names) names += n.starts_with("--") ? " -l " + n.substr(2) : " -s " + n.substr(1);
      if (o.takes == Takes::choice) values = fmt::format(" -a '{}'", joined(o.choices, " "));
      if (o.takes == Takes::directory) values = " -a '(__fish_complete_directories)'";
      if (o.takes == Takes::file) values = " -F";
      std::string seen = c.name;
      if (is_nested(c)) seen.replace(seen.find(' '), 1, "; and __fish_seen_subcommand_from ");
      const std::string when = fmt::format("complete -c kdelta -n '__fish_seen_subcommand_from {}'", seen);
      if (!names.empty())
        out += fmt::format("{}{}{}{} -d '{}'\n", when, names, o.takes == Takes::nothing ? "" : " -r", values,
                           in_quotes(brief(o.help)));
      if (!o.positional.empty() && !values.empty()) out += when + values + "\n";
    }
  return out;
}

}  // namespace

std::string completions(const OptionTable& table, const std::string& shell) {
  if (shell == "bash") return bash(table);
  if (shell == "zsh") return zsh(table);
  if (shell == "fish") return fish(table);
  throw UsageError("completions: '" + shell + "', accepted: bash, zsh, fish");
}

}  // namespace kdelta::cli
