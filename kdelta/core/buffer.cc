#include "kdelta/core/buffer.h"

#include <cstring>
#include <utility>

#include "kdelta/core/check.h"

namespace kdelta {

Buffer::Buffer(Device device, int64_t bytes) : device_(device), data_(device_allocate(device, bytes)), bytes_(bytes) {}

Buffer::~Buffer() {
  device_free(device_, data_);
}

Buffer::Buffer(Buffer&& other) noexcept
    : device_(other.device_), data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Buffer Buffer::zeros(Device device, int64_t bytes) {
  KDELTA_CHECK(device.kind == DeviceKind::cpu, "zeros() fills CPU memory only");
  Buffer b(device, bytes);
  if (bytes > 0) std::memset(b.data_, 0, static_cast<size_t>(bytes));
  return b;
}

void Buffer::require(int64_t bytes) const {
  KDELTA_CHECK(bytes <= bytes_, "view of ", bytes, " of ", bytes_, " bytes");
}

}  // namespace kdelta
