#include "kdelta/io/checksum.h"

#include <cstring>

namespace kdelta {

// Sixteen bytes a round through two multiplications; any changed byte changes it.
uint64_t checksum(std::span<const char> given) {
  const char* data = given.data();
  const size_t bytes = given.size();
  uint64_t a = 0x9e3779b97f4a7c15u ^ bytes, b = 0xc2b2ae3d27d4eb4fu;
  const auto round = [&](uint64_t x, uint64_t y) {
    a = (a ^ x) * 0xff51afd7ed558ccdu;
    a ^= a >> 32;
    b = (b ^ y) * 0xc4ceb9fe1a85ec53u;
    b ^= b >> 29;
  };
  size_t i = 0;
  for (; i + 16 <= bytes; i += 16) {
    uint64_t x, y;
    std::memcpy(&x, data + i, 8);
    std::memcpy(&y, data + i + 8, 8);
    round(x, y);
  }
  uint64_t tail[2] = {};
  if (i < bytes) std::memcpy(tail, data + i, bytes - i);
  round(tail[0], tail[1]);
  return (a ^ (b << 1 | b >> 63)) * 0x9e3779b97f4a7c15u;
}

}  // namespace kdelta
