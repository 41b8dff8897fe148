// The one exception type of the library and the helpers that build its message.
// Three kinds of trouble exist. Caller's fault or bad input: throw Error, naming the argument, what was given and what
// is accepted. Expected at run time (no free slot): a return value. Our own fault: KDELTA_CHECK in check.h.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace kdelta {

enum class ErrorCode {
  invalid_argument,  // a caller passed a wrong value, shape, dtype or option
  bad_file,          // a checkpoint, tokenizer or config file is malformed or incomplete
  unsupported,       // well-formed, but not something this build or machine can do
  out_of_memory,     // an allocation or a memory plan does not fit
  failed,            // a computation produced no usable result (NaN logits) or a device broke
  internal,          // a broken invariant of ours
};

const char* to_string(ErrorCode code);

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

// Concatenates printable parts: str("rows ", 3, " of ", 7).
template <class... Parts>
std::string str(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

template <class... Parts>
[[noreturn]] void fail(ErrorCode code, const Parts&... parts) {
  throw Error(code, str(parts...));
}

}  // namespace kdelta
