#include "kdelta/ops/common/cpu/test_simd_probe.h"

namespace kdelta::test {

SimdProbe simd_probe_avx2() {
  return simd_probe<simd::Avx2>("avx2", IsaLevel::avx2);
}

}  // namespace kdelta::test
