// A line of a batch as a request of the engine. A field that would change the answer is honoured or refused by its
// name, never passed over.
#pragma once

#include <string>

#include "kdelta/api/engine.h"
#include "kdelta/io/json_reader.h"

namespace kdelta {

struct BatchRequest {
  GenerateTask task;
  bool chat = false;
  bool thinking = true;  // chat: whether the answer begins with a thinking part
  int64_t choices = 1;   // answers to one prompt
};

// `defaults`: where the body says nothing. Throws Error(invalid_argument) naming the field.
BatchRequest read_request(const Engine& engine, const JsonReader& line, const GenerateOptions& defaults);

}  // namespace kdelta
