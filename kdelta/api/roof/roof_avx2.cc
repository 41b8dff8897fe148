#include "kdelta/api/roof/roof.h"
#include "kdelta/api/roof/roof_kernel.h"

namespace kdelta::bench {

double fma_rounds_avx2(int64_t rounds) {
  return fma_rounds<simd::Avx2>(rounds);
}

}  // namespace kdelta::bench
