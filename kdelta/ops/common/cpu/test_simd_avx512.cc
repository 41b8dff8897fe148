#include "kdelta/ops/common/cpu/test_simd_probe.h"

namespace kdelta::test {

SimdProbe simd_probe_avx512() {
  return simd_probe<simd::Avx512>("avx512", IsaLevel::avx512);
}

}  // namespace kdelta::test
