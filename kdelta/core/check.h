// Always-on checks of our own invariants on the host. A failure is a bug in kdelta, never bad input (that is Error).
#pragma once

#include "kdelta/core/error.h"

namespace kdelta {

[[noreturn]] void check_failed(const char* file, int line, const std::string& what);
[[noreturn]] void unhandled_value(const char* file, int line, const char* what, long long value);

}  // namespace kdelta

#define KDELTA_CHECK(condition, ...)                                                                         \
  do {                                                                                                       \
    if (!(condition)) [[unlikely]]                                                                           \
      ::kdelta::check_failed(__FILE__, __LINE__, ::kdelta::str(#condition __VA_OPT__(, ": ", __VA_ARGS__))); \
  } while (0)

// Every switch over an enum ends in this; it names the value nobody handled.
#define KDELTA_UNREACHABLE(what, value) \
  ::kdelta::unhandled_value(__FILE__, __LINE__, what, static_cast<long long>(value))

#ifdef NDEBUG
#define KDELTA_DCHECK(condition, ...) \
  do {                                \
  } while (0)
#else
#define KDELTA_DCHECK(condition, ...) KDELTA_CHECK(condition __VA_OPT__(, ) __VA_ARGS__)
#endif
