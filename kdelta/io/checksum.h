// Of what this program wrote and reads again: tells a changed, torn or foreign file from the one that was written. Not
// against somebody who means harm.
#pragma once

#include <cstdint>
#include <span>

namespace kdelta {

uint64_t checksum(std::span<const char> bytes);

}  // namespace kdelta
