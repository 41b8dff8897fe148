// The tile instructions of AMX, one per function, as a policy that kernels take as a template argument. Written as
// assembly with a memory clobber: the intrinsics of g++ 12 do not tell the compiler that a tile load reads memory, so
// stores just before one may be moved behind it or dropped.
#pragma once

#include <cstdint>

#include "kdelta/core/dtype.h"

namespace kdelta {

struct AmxTiles {
  struct alignas(64) Config {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
  };

  // Tiles 0 to 3 hold products [16 rows][columns] in fp32, 4 and 5 weights [16 rows][32 words], 6 and 7 tokens
  // [16 pairs][columns][2 words].
  static KDELTA_INLINE void configure(int columns) {
    Config c;
    for (int t = 0; t < 8; ++t) {
      c.rows[t] = 16;
      c.row_bytes[t] = static_cast<uint16_t>(t == 4 || t == 5 ? 64 : 4 * columns);
    }
    __asm__ volatile("ldtilecfg %0" ::"m"(c) : "memory");
  }
  static KDELTA_INLINE void release() { __asm__ volatile("tilerelease" ::: "memory"); }
  template <int kTile>
  static KDELTA_INLINE void zero() {
    __asm__ volatile("tilezero %%tmm%c0" ::"i"(kTile));
  }
  template <int kTile>
  static KDELTA_INLINE void load(const void* p, int64_t stride) {
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(p), "r"(stride), "i"(kTile) : "memory");
  }
  template <int kTile>
  static KDELTA_INLINE void store(void* p, int64_t stride) {
    __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(p), "r"(stride), "i"(kTile) : "memory");
  }
  // products += weights x tokens
  template <int kProducts, int kWeights, int kTokens>
  static KDELTA_INLINE void multiply() {
    __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kProducts), "i"(kWeights), "i"(kTokens));
  }
};

}  // namespace kdelta
