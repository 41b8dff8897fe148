#include "kdelta/core/error.h"

#include "kdelta/core/check.h"

namespace kdelta {

const char* to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_argument:
      return "invalid argument";
    case ErrorCode::bad_file:
      return "bad file";
    case ErrorCode::unsupported:
      return "unsupported";
    case ErrorCode::out_of_memory:
      return "out of memory";
    case ErrorCode::failed:
      return "failed";
    case ErrorCode::internal:
      return "internal error";
  }
  KDELTA_UNREACHABLE("error code", code);
}

void check_failed(const char* file, int line, const std::string& what) {
  fail(ErrorCode::internal, "internal check failed at ", file, ":", line, ": ", what);
}

void unhandled_value(const char* file, int line, const char* what, long long value) {
  check_failed(file, line, str("unhandled ", what, " ", value));
}

}  // namespace kdelta
