// Owns bytes on one device. Move only; allocates at load time, never per token. CPU memory is 64-byte aligned and large
// buffers ask for huge pages.
#pragma once

#include "kdelta/core/device.h"
#include "kdelta/core/tensor.h"

namespace kdelta {

class Buffer {
 public:
  Buffer() = default;
  Buffer(Device device, int64_t bytes);
  ~Buffer();
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  // A zero-filled buffer; on the CPU pages are touched lazily.
  static Buffer zeros(Device device, int64_t bytes);

  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  Device device() const { return device_; }

  template <class T>
  View<T> view(const Shape& shape) const {
    require(shape.numel() * static_cast<int64_t>(sizeof(T)));
    return View<T>(static_cast<T*>(data_), shape);
  }
  AnyView view(DType dtype, const Shape& shape) const {
    require(shape.numel() * dtype_bytes(dtype));
    return AnyView(data_, dtype, shape);
  }

 private:
  void require(int64_t bytes) const;

  Device device_{};
  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace kdelta
