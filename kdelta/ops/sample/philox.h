// Philox4x32-10, a counter-based generator: draw number i of a seed is a pure function of both. Source: Salmon, Moraes,
// Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011; constants and test vectors as in Random123.
#pragma once

#include <array>
#include <cstdint>

#include "kdelta/core/dtype.h"

namespace kdelta {

KDELTA_INLINE std::array<uint32_t, 4> philox4x32_10(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53u} * counter[0], b = uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key[0] += 0x9E3779B9u;  // golden ratio
    key[1] += 0xBB67AE85u;  // sqrt(3) - 1
  }
  return counter;
}

// Uniform in [0, 1) with 53 bits: draw number `index` of `seed`.
KDELTA_INLINE double philox_uniform(uint64_t seed, uint64_t index) {
  const auto r = philox4x32_10({static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), 0, 0},
                               {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  return static_cast<double>((uint64_t{r[1]} << 32 | r[0]) >> 11) * 0x1p-53;
}

}  // namespace kdelta
