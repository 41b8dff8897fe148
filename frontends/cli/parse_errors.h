// What the parser refuses, in the form of every other error: the flag, what was given, what is accepted.
#pragma once

#include <string>

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace kdelta::cli {

// `command`: the one that was being parsed, or the program itself.
std::string refusal(const CLI::App& command, const CLI::ParseError& error);

}  // namespace kdelta::cli
