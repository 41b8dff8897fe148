// Address space without memory: pages appear when touched. Lets a test use strides whose products pass 2^31 and 2^32
// elements.
#pragma once

#include <sys/mman.h>

#include <cstdint>

#include "kdelta/core/check.h"

namespace kdelta::test {

template <class T>
class Sparse {
 public:
  explicit Sparse(int64_t elements) : bytes_(static_cast<size_t>(elements) * sizeof(T)) {
    data_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    KDELTA_CHECK(data_ != MAP_FAILED, "no address space for ", bytes_, " bytes");
  }
  ~Sparse() { munmap(data_, bytes_); }
  Sparse(const Sparse&) = delete;
  Sparse& operator=(const Sparse&) = delete;
  T* data() const { return static_cast<T*>(data_); }

 private:
  size_t bytes_;
  void* data_;
};

}  // namespace kdelta::test
