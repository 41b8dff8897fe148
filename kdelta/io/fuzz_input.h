// Bytes of a fuzzer dealt out as choices: the same bytes give the same choices, and when they are used up every choice
// is 0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace kdelta::fuzz {

class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), left_(size) {}

  bool empty() const { return left_ == 0; }
  uint8_t byte() {
    if (left_ == 0) return 0;
    --left_;
    return *data_++;
  }
  // One of 0 .. count-1.
  size_t pick(size_t count) {
    size_t value = byte();
    if (count > 256) value = value << 8 | byte();
    return count == 0 ? 0 : value % count;
  }
  template <class T, size_t N>
  const T& of(const T (&choices)[N]) {
    return choices[pick(N)];
  }
  std::string_view rest() {
    const std::string_view text(reinterpret_cast<const char*>(data_), left_);
    data_ += left_;
    left_ = 0;
    return text;
  }
  // At most `most` bytes, their number first.
  std::string_view bytes(size_t most) {
    size_t count = pick(most + 1);
    if (count > left_) count = left_;
    const std::string_view text(reinterpret_cast<const char*>(data_), count);
    data_ += count;
    left_ -= count;
    return text;
  }

 private:
  const uint8_t* data_;
  size_t left_;
};

}  // namespace kdelta::fuzz
