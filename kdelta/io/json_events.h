// JSON as a stream of events: for texts too large for a tree (tensor headers, the index of half a million tensors) and
// for the tree itself. Iterative, so a hostile text cannot exhaust the stack.
#pragma once

#include "kdelta/io/json.h"

namespace kdelta {

// A handler may throw; the parse ends and the exception passes through.
class JsonEvents {
 public:
  virtual ~JsonEvents() = default;
  virtual void scalar(Json&& value) = 0;  // anything but an array or object
  virtual void key(std::string&& name) = 0;
  virtual void begin_object() = 0;
  virtual void end_object() = 0;
  virtual void begin_array() = 0;
  virtual void end_array() = 0;
};

// Errors as parse_json, except that duplicate keys are left to the handler.
void parse_json_events(std::string_view text, const JsonSource& source, const JsonLimits& limits, JsonEvents& events);

}  // namespace kdelta
