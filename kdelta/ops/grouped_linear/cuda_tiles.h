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

// A table of the experts' addresses.
constexpr int64_t table_bytes(int64_t experts) {
  return 32 * experts;
}

// Tiles of cuda_gemm are listed on the device, behind 16 bytes that hold their number.
constexpr int64_t tile_list_bytes(int64_t pairs, int64_t experts, int64_t tile) {
  return 16 * (1 + pairs / tile + experts);
}

}  // namespace kdelta::grouped
