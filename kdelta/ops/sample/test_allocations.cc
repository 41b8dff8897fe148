// Counts the program's allocations. In a file of its own: where the compiler sees both halves it takes them for a
// mismatch.
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace {
std::atomic<int64_t> count{0};
}

namespace kdelta::test {
int64_t allocations();
int64_t allocations() {
  return count;
}
}  // namespace kdelta::test

void* operator new(size_t bytes) {
  ++count;
  if (void* p = std::malloc(bytes)) return p;
  throw std::bad_alloc();
}
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  ++count;
  return std::malloc(bytes);
}
void operator delete(void* p) noexcept {
  std::free(p);
}
void operator delete(void* p, size_t) noexcept {
  std::free(p);
}
