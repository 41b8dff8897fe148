#include "kdelta/core/isa.h"

#include <array>

#include "kdelta/core/check.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace kdelta {
namespace {

struct Name {
  IsaLevel level;
  const char* name;
};
constexpr std::array<Name, 5> kNames = {{{IsaLevel::portable, "portable"},
                                         {IsaLevel::avx2, "avx2"},
                                         {IsaLevel::avx512, "avx512"},
                                         {IsaLevel::avx512_bf16, "avx512_bf16"},
                                         {IsaLevel::amx, "amx"}}};

#if defined(__x86_64__)
struct Leaf {
  unsigned a = 0, b = 0, c = 0, d = 0;
};

Leaf cpuid(unsigned leaf, unsigned sub) {
  Leaf r;
  if (__get_cpuid_count(leaf, sub, &r.a, &r.b, &r.c, &r.d) == 0) return {};
  return r;
}

bool bit(unsigned word, int index) {
  return ((word >> index) & 1u) != 0;
}

uint64_t xcr0() {
  unsigned lo = 0, hi = 0;
  __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
  return (static_cast<uint64_t>(hi) << 32) | lo;
}

// Linux hands out the 8 KB tile state on request only: arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA).
bool amx_permitted() {
  return syscall(SYS_arch_prctl, 0x1023, 18) == 0;
}

IsaLevel detect() {
  const Leaf one = cpuid(1, 0), seven = cpuid(7, 0), seven1 = cpuid(7, 1);
  if (!bit(one.c, 27)) return IsaLevel::portable;  // OSXSAVE
  const uint64_t os = xcr0();
  const bool avx2 = (os & 0x6) == 0x6 && bit(one.c, 12) && bit(one.c, 29) && bit(seven.b, 5);
  if (!avx2) return IsaLevel::portable;
  const bool avx512 =
      (os & 0xe6) == 0xe6 && bit(seven.b, 16) && bit(seven.b, 17) && bit(seven.b, 30) && bit(seven.b, 31);
  if (!avx512) return IsaLevel::avx2;
  if (!(bit(seven1.a, 5) && bit(seven.c, 11) && bit(seven.c, 1))) return IsaLevel::avx512;
  const bool amx = (os & 0x60000) == 0x60000 && bit(seven.d, 24) && bit(seven.d, 22);
  if (!amx || !amx_permitted()) return IsaLevel::avx512_bf16;
  return IsaLevel::amx;
}
#else
IsaLevel detect() {
  return IsaLevel::portable;
}
#endif

}  // namespace

const char* to_string(IsaLevel level) {
  for (const Name& n : kNames)
    if (n.level == level) return n.name;
  KDELTA_UNREACHABLE("isa level", level);
}

IsaLevel parse_isa(std::string_view name) {
  std::string accepted;
  for (const Name& n : kNames) {
    if (name == n.name) return n.level;
    accepted += (accepted.empty() ? "" : ", ") + std::string(n.name);
  }
  fail(ErrorCode::invalid_argument, "isa: '", name, "', accepted: ", accepted);
}

IsaLevel detect_isa() {
  static const IsaLevel level = detect();
  return level;
}

}  // namespace kdelta
