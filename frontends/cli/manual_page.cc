#include <fmt/core.h>

#include "frontends/cli/documents.h"

namespace kdelta::cli {
namespace {

// Text that roff shows as it is: a hyphen stays the one that people copy, and no line is a request.
std::string roff(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if ((c == '.' || c == '\'') && (i == 0 || text[i - 1] == '\n')) out += "\\&";
    if (c == '\\')
      out += "\\e";
    else if (c == '-')
      out += "\\-";
    else
      out += c;
  }
  return out;
}

std::string upper(std::string text) {
  for (char& c : text) c = static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
  return text;
}

std::string title(const OptionRow& o) {
  std::string out = o.positional.empty() ? "" : "\\fI" + roff(upper(o.positional)) + "\\fR";
  for (const std::string& n : o.names) out += (out.empty() ? "\\fB" : ", \\fB") + roff(n) + "\\fR";
  if (o.takes != OptionRow::Takes::nothing && !o.names.empty()) out += " \\fI" + roff(o.value) + "\\fR";
  return out;
}

std::string text(const OptionRow& o) {
  std::string out = o.help;
  if (!o.choices.empty()) {
    out += out.empty() ? "one of " : "; one of ";
    for (size_t i = 0; i < o.choices.size(); ++i) out += (i == 0 ? "" : ", ") + o.choices[i];
  }
  if (!o.otherwise.empty()) out += fmt::format(" [{}]", o.otherwise);
  return roff(out.empty() ? "See above" : out);
}

}  // namespace

std::string manual_page(const OptionTable& table, const std::string& version) {
  std::string out = fmt::format(
      ".\\\" Written by \"kdelta manual\" from the options themselves.\n.TH KDELTA 1 \"\" \"kdelta {}\" \"User "
      "Commands\"\n"
      ".SH NAME\nkdelta \\- runs models built on Kimi Delta Attention\n.SH SYNOPSIS\n",
      roff(version));
  for (const CommandRow& c : table.commands) {
    std::string positional;
    for (const OptionRow& o : c.options)
      if (!o.positional.empty())
        positional +=
            fmt::format("{}\\fI{}\\fR{}", o.required ? " " : " [", upper(o.positional), o.required ? "" : "]");
    out += fmt::format(".br\n\\fBkdelta {}\\fR{} [options]\n", c.name, positional);
  }
  out += ".SH DESCRIPTION\n" + roff(table.help) + ". Results go to standard output, all else to standard error.\n";
  for (const CommandRow& c : table.commands) {
    out += fmt::format(".SH {}\n{}.\n", upper("kdelta " + c.name), roff(c.help));
    for (const OptionRow& o : c.options) out += fmt::format(".TP\n{}\n{}\n", title(o), text(o));
  }
  out += ".SH NOTES\n" + roff(table.footer) + "\n";
  return out;
}

}  // namespace kdelta::cli
