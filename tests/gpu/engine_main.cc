// kdelta_gpu_engine_tests [GoogleTest flags]: the tests of whole engines, on the first CUDA device. It runs in the root
// of the repository, whose checkpoints it reads.
#include <gtest/gtest.h>

#include <cstdio>

#include "tests/e2e/support.h"

int main(int argc, char** argv) {
  std::printf("%s\n", kdelta::cuda_device_summary().c_str());
  if (kdelta::cuda_device_count() == 0) return 3;
  kdelta::test::test_device() = {kdelta::DeviceKind::cuda, 0};
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
