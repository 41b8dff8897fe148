#include "kdelta/core/cpu/memory.h"

#include <sys/mman.h>

#include <cstdlib>

#include "kdelta/core/error.h"

namespace kdelta {

void* cpu_allocate(int64_t bytes) {
  if (bytes == 0) return nullptr;
  constexpr int64_t kHuge = 2 << 20;
  const int64_t align = bytes >= kHuge ? kHuge : 64;
  const int64_t rounded = (bytes + align - 1) / align * align;
  void* data = std::aligned_alloc(static_cast<size_t>(align), static_cast<size_t>(rounded));
  if (data == nullptr) fail(ErrorCode::out_of_memory, "cannot allocate ", bytes, " bytes of CPU memory");
  // Advice only: a kernel without transparent huge pages serves small ones.
  if (bytes >= kHuge) (void)madvise(data, static_cast<size_t>(rounded), MADV_HUGEPAGE);
  return data;
}

void cpu_free(void* data) noexcept { std::free(data); }

}  // namespace kdelta
