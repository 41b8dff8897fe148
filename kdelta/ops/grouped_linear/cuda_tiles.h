// How a grid that knows capacities alone covers pairs whose experts only the device knows. Tiles of at most `tile`
// pairs of one expert each are the slots of the grid; a slot finds out by itself which tile it is, if any, so nothing
// has to be counted beforehand. Pairs past the last boundary are those of one more "expert" E, who gives zeros.
// Plain arithmetic, so that it is tested without a device.
#pragma once

#include <cstdint>

namespace kdelta::grouped {

struct Slots {
  int64_t count;  // of the grid
  // Few pairs: slot s is the tile that begins at pair s. Otherwise tile j of expert e, whose pairs begin at b, is slot
  // b / tile + e + j: the next expert's first slot is never among them.
  bool by_pair;
};
constexpr Slots slots_of(int64_t pairs, int64_t experts, int64_t tile) {
  const int64_t spread = pairs / tile + experts + 1;
  return pairs <= spread ? Slots{pairs, true} : Slots{spread, false};
}

// The first of the expert's pairs [begin, end) in slot `slot`; -1 when the slot is none of his.
constexpr int64_t first_pair(int64_t slot, bool by_pair, int64_t expert, int64_t begin, int64_t end, int64_t tile) {
  const int64_t at = by_pair ? slot : begin + (slot - begin / tile - expert) * tile;
  return at >= begin && at < end && (at - begin) % tile == 0 ? at : -1;
}

// Tiles of rows that a block of cuda_fp4 does one behind the other, of `tiles` in all, idle ones counted, where
// `resident` blocks run at once. Finding the expert and its pairs takes a block as long as most of a tile, so all
// blocks run at once if that is possible with few tiles a block; if not, there are several rounds of them, and the last
// is a small part of all.
constexpr int64_t fp4_tiles(int64_t tiles, int64_t resident) {
  constexpr int64_t kMostAtOnce = 16, kInRounds = 8;
  const int64_t at_once = (tiles + resident - 1) / resident;
  return at_once <= kMostAtOnce ? at_once : kInRounds;
}

// A table of the experts' addresses.
constexpr int64_t table_bytes(int64_t experts) {
  return 32 * experts;
}

// Scratch of cuda_gemm: the list of its tiles, the first tile of each round, and rows of x in the order of the pairs of
// a round. A tile belongs to the round in which it begins.
constexpr int64_t kRoundPairs = 65536;
constexpr int64_t rounds_of(int64_t pairs) {
  return (pairs + kRoundPairs - 1) / kRoundPairs;
}
struct GemmScratch {
  int64_t rounds, rows, bytes;  // where they begin, and all of it
  int64_t gathered;             // rows of x
};
constexpr GemmScratch gemm_scratch(int64_t pairs, int64_t experts, int64_t K, int64_t tile) {
  const int64_t rounds = 16 * (pairs / tile + experts);
  const int64_t rows = (rounds + 4 * (rounds_of(pairs) + 1) + 255) / 256 * 256;
  const int64_t gathered = pairs < kRoundPairs + tile ? pairs : kRoundPairs + tile;
  return {rounds, rows, rows + gathered * K * 2, gathered};
}

}  // namespace kdelta::grouped
