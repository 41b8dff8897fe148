// How an op's bench.cc states its measurements. Each repetition takes a sample of the case's roof and then times the
// op, so both see the same machine; the report gives median, spread and best over the repetitions and the percentage of
// the roof.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "kdelta/api/roof/roof.h"
#include "kdelta/core/error.h"
#include "kdelta/core/exec.h"

namespace kdelta::bench {

struct Case {
  std::string op, variant, shape;  // "norm", "avx512", "T=64 D=7168 bf16"
  Cost cost;                       // of one call
  Roof roof;                       // what limits it: bytes against a bandwidth, flops against a rate
  // Allocates the data and returns the call to time. Only one case's data is alive at a time.
  std::function<std::function<void()>()> make;
};

// The Exec every case runs on: the team of --threads, a large lazily touched arena, --isa.
const Exec& exec();
// The same with a forced variant; lives until the program ends.
const Exec& exec_with(const std::string& op, const std::string& variant);

void add(Case c);

// Names of an op's variants that run on this machine, the reference left out.
template <class Rows>
std::vector<std::string> fast_variants(const Rows& rows) {
  std::vector<std::string> names;
  for (const auto& row : rows)
    if (row.needs.device == DeviceKind::cpu && row.needs.isa <= detect_isa() &&
        std::string_view(row.name) != "reference")
      names.push_back(row.name);
  return names;
}

// Pseudo-random bits that are finite under every weight dtype but f32: bf16 values of magnitude 2^-7 to 1, finite FP8
// codes.
void fill(void* data, int64_t bytes);
// MX scale bytes near one.
void fill_scales(uint8_t* data, int64_t count);

// At namespace scope of a bench.cc: the function runs before main's cases are listed and calls add().
struct Registration {
  explicit Registration(void (*f)());
};

}  // namespace kdelta::bench

#define KDELTA_BENCH(name)                                                                    \
  static void kdelta_bench_##name();                                                          \
  static const ::kdelta::bench::Registration kdelta_registration_##name(kdelta_bench_##name); \
  static void kdelta_bench_##name()
