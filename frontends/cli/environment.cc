#include "frontends/cli/environment.h"

#include <cctype>
#include <cstdlib>
#include <cstring>

#include "frontends/cli/usage.h"

namespace kdelta::cli {
namespace {

std::string variable(const std::string& name) {
  std::string out = "KDELTA_ARG_";
  for (const char c : name) out += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return out;
}

}  // namespace

std::string environment_name(const std::vector<std::string>& names) {
  for (const std::string& name : names)
    if (std::getenv(variable(name).c_str()) != nullptr) return variable(name);
  return variable(names.front());
}

void check_environment(const std::vector<std::string>& names) {
  const std::string first = environment_name(names);
  const char* want = std::getenv(first.c_str());
  for (const std::string& name : names) {
    const char* value = std::getenv(variable(name).c_str());
    if (value != nullptr && std::strcmp(value, want) != 0)
      throw UsageError(first + " and " + variable(name) + " are the same flag with different values");
  }
}

}  // namespace kdelta::cli
