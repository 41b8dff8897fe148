// Scratch memory for one step: take() bumps a pointer, a Scope gives everything taken since back. No allocation per
// token. A measuring arena has no memory behind it: it hands out addresses that nobody may touch and records the peak,
// which is how the memory plan is made before anything is allocated (Exec::planning).
#pragma once

#include "kdelta/core/buffer.h"

namespace kdelta {

class Arena {
 public:
  static constexpr int64_t kAlign = 64;

  Arena(Device device, int64_t bytes);
  // Over memory of the caller's, which must outlive it. Any address: up to kAlign - 1 bytes in front are lost.
  Arena(void* memory, int64_t bytes);
  static Arena measuring(Device device);

  // kAlign-aligned, contents undefined; throws Error(out_of_memory) when the plan was too small.
  void* take(int64_t bytes);
  template <class T>
  View<T> take(const Shape& shape) {
    return View<T>(static_cast<T*>(take(shape.numel() * static_cast<int64_t>(sizeof(T)))), shape);
  }
  AnyView take(DType dtype, const Shape& shape) {
    return AnyView(take(shape.numel() * dtype_bytes(dtype)), dtype, shape);
  }

  int64_t used() const { return used_; }
  int64_t peak() const { return peak_; }
  int64_t capacity() const { return capacity_; }
  bool is_measuring() const { return measuring_; }

  class Scope {
   public:
    explicit Scope(Arena& arena) : arena_(arena), mark_(arena.used_) {}
    ~Scope() { arena_.used_ = mark_; }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Arena& arena_;
    int64_t mark_;
  };

 private:
  Arena() = default;

  Buffer buffer_;  // empty when the memory is lent
  char* data_ = nullptr;
  int64_t capacity_ = 0;
  bool measuring_ = false;
  int64_t used_ = 0;
  int64_t peak_ = 0;
};

}  // namespace kdelta
