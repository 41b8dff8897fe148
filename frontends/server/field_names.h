// What is wrong with a request by the caller's names: the library speaks of `max_tokens` and `messages[2]`, whoever
// asked may have written max_output_tokens and input[3]. A refusal names the JSON path of the body that he wrote.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kdelta/api/json.h"

namespace kdelta::server {

struct FieldNames {
  std::vector<std::pair<std::string, std::string>> fields;  // the library's name and the caller's path
  struct Message {
    std::string path;
    std::vector<std::string> arguments = {};  // paths of those of its calls
  };
  std::vector<Message> messages;                           // of the conversation that the model is given
  std::vector<std::pair<std::string, std::string>> tools;  // names of functions, and the paths of their schemas

  // "request: PATH: ..." of a message that begins with a field of the library; others stay as they are.
  std::string of(std::string_view message) const;
};

// `f`, whose errors have the caller's names.
template <class F>
auto named(const FieldNames& names, F f) {
  try {
    return f();
  } catch (const Error& e) {
    throw Error(e.code(), names.of(e.what()));
  }
}

// The path of "request: PATH: ..."; "" of a message that names none.
std::string field_of(std::string_view message);

}  // namespace kdelta::server
