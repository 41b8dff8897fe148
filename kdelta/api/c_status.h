// The edge of the C interface: exceptions end here and become a status and a message of the thread.
#pragma once

#include <new>

#include "kdelta/api/c_base.h"
#include "kdelta/core/error.h"

namespace kdelta::c {

kdelta_status status_of(ErrorCode code);
// Keeps the message for kdelta_last_error() and returns the status.
kdelta_status failed(kdelta_status status, const char* message) noexcept;

template <class F>
kdelta_status guarded(F&& f) noexcept {
  try {
    f();
    return KDELTA_OK;
  } catch (const Error& e) {
    return failed(status_of(e.code()), e.what());
  } catch (const std::bad_alloc&) {
    return failed(KDELTA_OUT_OF_MEMORY, "out of memory");
  } catch (const std::exception& e) {
    return failed(KDELTA_INTERNAL, e.what());
  } catch (...) {
    return failed(KDELTA_INTERNAL, "an exception of no known type");
  }
}

// A struct of the caller's whose first field is its size: as this library knows it, 0 where the caller's ends earlier.
// `least` is the size of its first version. Throws Error(invalid_argument) for null and for sizes that no version has,
// Error(unsupported) when fields that this library does not know are set.
void read_struct(void* to, size_t size, size_t least, const void* from, const char* name);
template <class T>
T read_struct(const T* from, const char* name, size_t least = sizeof(T)) {
  T to;
  read_struct(&to, sizeof(T), least, from, name);
  return to;
}

// Throws Error(invalid_argument): "kdelta_kda: context: null, expected ...".
void expect_given(const void* pointer, const char* function, const char* argument);

}  // namespace kdelta::c
