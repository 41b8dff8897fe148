// The members of a vector type behind function pointers, so that one test drives every instruction set: each is
// instantiated in a file of its own (test_simd_<isa>.cc) with that set's flags.
#pragma once

#include <cstdint>

#include "kdelta/core/dtype.h"
#include "kdelta/core/isa.h"

namespace kdelta::test {

struct SimdProbe {
  using Map = void (*)(const float* x, float* y, int64_t n);  // n: any number of elements
  const char* name;
  IsaLevel isa;
  int64_t lanes;
  Map exp, sigmoid, silu, tanh, round, pow2i, sqrt, abs;
  void (*min)(const float* a, const float* b, float* y);  // one vector each
  void (*max)(const float* a, const float* b, float* y);
  void (*select_gt)(const float* a, const float* b, const float* x, const float* y, float* z);
  bool (*all_gt)(const float* a, const float* b);
  void (*ldexp)(const float* x, const float* n, float* y);
  void (*fma)(const float* a, const float* b, const float* c, float* y);
  float (*sum)(const float* x);
  float (*max_lane)(const float* x);
  void (*copy_f32)(const float* x, float* y, int64_t n);  // n <= lanes, through load_n and store_n
  void (*narrow_n)(const float* x, bf16* y, int64_t n);
  void (*widen_n)(const bf16* x, float* y, int64_t n);
  void (*narrow)(const float* x, bf16* y);  // one vector
  void (*widen)(const bf16* x, float* y);
  void (*narrow_pair)(const float* x, bf16* y);  // two vectors
};

SimdProbe simd_probe_portable();
SimdProbe simd_probe_avx2();
SimdProbe simd_probe_avx512();

}  // namespace kdelta::test
