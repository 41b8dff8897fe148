// The tile registers of AMX in plain code, for testing the tile kernels on machines without them. Products are added
// pair by pair in fp32, as the instruction does; like it, subnormal operands and results count as zero.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "kdelta/core/dtype.h"

namespace kdelta::test {

struct EmulatedTiles {
  static constexpr int kRows = 16;
  struct State {
    int columns = 0;
    uint32_t tile[8][kRows][16];
  };
  static State& state() {
    static thread_local State s;
    return s;
  }
  static int dwords(int t) { return t == 4 || t == 5 ? 16 : state().columns; }

  static void configure(int columns) {
    std::memset(state().tile, 0xff, sizeof(State::tile));  // a tile nobody loaded is NaN
    state().columns = columns;
  }
  static void release() {}
  template <int kTile>
  static void zero() {
    for (auto& row : state().tile[kTile]) std::memset(row, 0, sizeof(row));
  }
  template <int kTile>
  static void load(const void* p, int64_t stride) {
    for (int r = 0; r < kRows; ++r)
      std::memcpy(state().tile[kTile][r], static_cast<const char*>(p) + r * stride,
                  static_cast<size_t>(4 * dwords(kTile)));
  }
  template <int kTile>
  static void store(void* p, int64_t stride) {
    for (int r = 0; r < kRows; ++r)
      std::memcpy(static_cast<char*>(p) + r * stride, state().tile[kTile][r], static_cast<size_t>(4 * dwords(kTile)));
  }
  template <int kProducts, int kWeights, int kTokens>
  static void multiply() {
    State& s = state();
    for (int r = 0; r < kRows; ++r)
      for (int pair = 0; pair < 16; ++pair)
        for (int c = 0; c < s.columns; ++c) {
          float sum = value(s.tile[kProducts][r][c]);
          const uint32_t w = s.tile[kWeights][r][pair], x = s.tile[kTokens][pair][c];
          for (int half = 0; half < 2; ++half) sum = normal(std::fma(value(word(w, half)), value(word(x, half)), sum));
          std::memcpy(&s.tile[kProducts][r][c], &sum, 4);
        }
  }

 private:
  static uint32_t word(uint32_t dword, int half) { return half == 0 ? dword << 16 : dword & 0xffff0000u; }
  static float value(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, 4);
    return normal(x);
  }
  static float normal(float x) { return std::fabs(x) < std::numeric_limits<float>::min() ? 0.0f : x; }
};

}  // namespace kdelta::test
