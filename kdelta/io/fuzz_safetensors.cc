// Any bytes as a safetensors file: refused with an Error, or every tensor lies inside the file and the tensors tile it.
#include "kdelta/core/check.h"
#include "kdelta/io/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kdelta;
  try {
    const std::span<const uint8_t> file(data, size);
    int64_t bytes = 0, first = std::ssize(file);
    for (const TensorInfo& t : parse_safetensors(file, "fuzz")) {
      KDELTA_CHECK(t.begin >= 8 && t.bytes >= 0 && t.begin + t.bytes <= std::ssize(file), t.name);
      first = std::min(first, t.begin);
      bytes += t.bytes;
    }
    KDELTA_CHECK(first + bytes == std::ssize(file), first, " + ", bytes, " of ", size);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::bad_file) throw;
  }
  return 0;
}
