// What kernels found wrong in the live contents of a batch. The host never reads those, so a kernel skips the row whole
// and ors one of these bits into Exec::faults, a device word that the engine reads once per step.
#pragma once

#include <cstdint>
#include <string>

namespace kdelta {

enum class Fault : uint32_t {
  token = 1u << 0,        // a token id outside -1..vocabulary-1
  boundaries = 1u << 1,   // cu does not start at 0, decreases or passes the rows
  accepted = 1u << 2,     // accepted outside 1..columns
  slot = 1u << 3,         // a slot outside 1..capacity-1
  shared_slot = 1u << 4,  // a slot that a lower row names already
  length = 1u << 5,       // a decode row longer than it has columns
  snapshot = 1u << 6,     // a snapshot of no prefill sequence, position or slot
  position = 1u << 7,     // a place in expert order outside -1..pairs-1
  count = 1u << 8,        // an expert's row count below 0, or a sum above the rows
  page = 1u << 9,         // a page outside the pool
  row = 1u << 10,         // a pair whose row is none of the inputs'
};

// "accepted, slot"; empty for 0.
std::string fault_names(uint32_t faults);

}  // namespace kdelta
