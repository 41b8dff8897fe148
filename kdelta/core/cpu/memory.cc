#include "kdelta/core/cpu/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "kdelta/core/error.h"

namespace kdelta {

namespace {
constexpr int64_t kHuge = 2 << 20;
int64_t alignment(int64_t bytes) {
  return bytes >= kHuge ? kHuge : 64;
}
}  // namespace

int64_t cpu_rounded(int64_t bytes) {
  const int64_t align = alignment(bytes);
  return (bytes + align - 1) / align * align;
}

void* cpu_allocate(int64_t bytes) {
  if (bytes == 0) return nullptr;
  const int64_t align = alignment(bytes), rounded = cpu_rounded(bytes);
  void* data = std::aligned_alloc(static_cast<size_t>(align), static_cast<size_t>(rounded));
  if (data == nullptr) fail(ErrorCode::out_of_memory, "cannot allocate ", bytes, " bytes of CPU memory");
  // Advice only: a kernel without transparent huge pages serves small ones.
  if (bytes >= kHuge) (void)madvise(data, static_cast<size_t>(rounded), MADV_HUGEPAGE);
  return data;
}

void cpu_free(void* data) noexcept {
  std::free(data);
}

int64_t resident_bytes() {
  std::ifstream in("/proc/self/statm");
  int64_t total = 0, resident = 0;
  in >> total >> resident;
  return in ? resident * sysconf(_SC_PAGESIZE) : 0;
}

int64_t program_file_bytes() {
  std::error_code none;
  const auto bytes = std::filesystem::file_size("/proc/self/exe", none);
  return none ? 0 : static_cast<int64_t>(bytes);
}

}  // namespace kdelta
