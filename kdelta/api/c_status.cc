#include "kdelta/api/c_status.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "kdelta/api/engine.h"
#include "kdelta/core/check.h"
#include "kdelta/io/json.h"

namespace kdelta::c {
namespace {

thread_local std::string last_error;
thread_local const char* last_error_text = "";

// Names that were given come back in messages, and may be any bytes.
std::string as_utf8(const char* message) {
  if (is_utf8(message)) return message;
  std::string out;
  for (const char* c = message; *c != 0; ++c) {
    const auto byte = static_cast<unsigned char>(*c);
    constexpr char kHex[] = "0123456789abcdef";
    if (byte < 0x80)
      out += *c;
    else
      out += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
  }
  return out;
}

}  // namespace

kdelta_status status_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_argument:
      return KDELTA_INVALID_ARGUMENT;
    case ErrorCode::bad_file:
      return KDELTA_BAD_FILE;
    case ErrorCode::unsupported:
      return KDELTA_UNSUPPORTED;
    case ErrorCode::out_of_memory:
      return KDELTA_OUT_OF_MEMORY;
    case ErrorCode::failed:
      return KDELTA_FAILED;
    case ErrorCode::internal:
      return KDELTA_INTERNAL;
  }
  return KDELTA_INTERNAL;
}

kdelta_status failed(kdelta_status status, const char* message) noexcept {
  try {
    last_error = as_utf8(message);
    last_error_text = last_error.c_str();
  } catch (...) {  // no memory for words
    last_error_text = "out of memory";
  }
  return status;
}

void read_struct(void* to, size_t size, size_t least, const void* from, const char* name) {
  if (from == nullptr) fail(ErrorCode::invalid_argument, name, ": null pointer");
  size_t given = 0;
  std::memcpy(&given, from, sizeof(given));
  constexpr size_t kMost = 65536;  // what lies there is no such struct
  if (given < least || given > kMost)
    fail(ErrorCode::invalid_argument, name, ": struct_size ", given, ", expected ", size);
  const auto* bytes = static_cast<const unsigned char*>(from);
  if (std::any_of(bytes + std::min(given, size), bytes + given, [](unsigned char b) { return b != 0; }))
    fail(ErrorCode::unsupported, name, ": fields behind byte ", size, " are set, which this version does not know");
  std::memset(to, 0, size);
  std::memcpy(to, from, std::min(given, size));
}

void expect_given(const void* pointer, const char* function, const char* argument) {
  if (pointer == nullptr) fail(ErrorCode::invalid_argument, function, ": ", argument, ": null pointer");
}

}  // namespace kdelta::c

using namespace kdelta;

const char* kdelta_status_name(int32_t status) {
  switch (status) {
    case KDELTA_OK:
      return "ok";
    case KDELTA_INVALID_ARGUMENT:
      return "invalid_argument";
    case KDELTA_BAD_FILE:
      return "bad_file";
    case KDELTA_UNSUPPORTED:
      return "unsupported";
    case KDELTA_OUT_OF_MEMORY:
      return "out_of_memory";
    case KDELTA_FAILED:
      return "failed";
    case KDELTA_INTERNAL:
      return "internal";
  }
  return "unknown";
}

const char* kdelta_last_error(void) {
  return c::last_error_text;
}

const char* kdelta_version(void) {
  static const std::string text = version();
  return text.c_str();
}

uint32_t kdelta_abi_version(void) {
  return KDELTA_ABI_VERSION;
}
