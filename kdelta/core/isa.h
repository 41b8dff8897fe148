// What the processor can do, as data: choose() reads this, so a choice can be tested for machines that are not here.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace kdelta {

// Levels are cumulative: each includes the ones before it.
enum class IsaLevel : uint8_t {
  portable,     // baseline x86-64 (or any other processor)
  avx2,         // AVX2, FMA, F16C
  avx512,       // F, BW, DQ, VL
  avx512_bf16,  // + AVX512_BF16, VNNI, VBMI
  amx,          // + AMX-TILE, AMX-BF16, granted by the kernel
};

const char* to_string(IsaLevel level);
// "portable", "avx2", ...; throws Error(invalid_argument) listing the accepted names.
IsaLevel parse_isa(std::string_view name);

// The best level of this machine, found once (CPUID, XCR0, and the kernel's permission for AMX tile data).
IsaLevel detect_isa();

}  // namespace kdelta
