#include "kdelta/ops/common/cpu/test_simd_probe.h"

namespace kdelta::test {

SimdProbe simd_probe_portable() {
  return simd_probe<simd::Portable>("portable", IsaLevel::portable);
}

}  // namespace kdelta::test
