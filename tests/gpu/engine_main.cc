// kdelta_gpu_engine_tests [GoogleTest flags]: the tests of whole engines, on the first CUDA device.
// kdelta_gpu_engine_tests --model=FOLDER [--parts=decode,mixed,prefill,profile] [--batches=1,8,64] [--overlap_rows=N]
// [--most_prompt=N] [--exact] [--results=FILE] [--commit=HASH]: a model of random weights, timed.
// kdelta_gpu_engine_tests --model=FOLDER --parts=trace [--batches=1]: two decode steps for a profiler, which finds them
// with ncu --profile-from-start off --graph-profiling node. It runs in the root of the repository, whose checkpoints
// and configurations it reads.
#include <gtest/gtest.h>

#include <cstdio>
#include <exception>
#include <sstream>
#include <string>

#include "tests/e2e/support.h"
#include "tests/gpu/model_bench.h"

int main(int argc, char** argv) {
  std::printf("%s\n", kdelta::cuda_device_summary().c_str());
  if (kdelta::cuda_device_count() == 0) return 3;
  kdelta::gpu_bench::ModelFlags flags;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    const size_t eq = arg.find('=');
    const std::string key = arg.substr(0, eq), value = eq == std::string::npos ? "" : arg.substr(eq + 1);
    if (key == "--model") flags.config = value;
    if (key == "--parts") flags.parts = value;
    if (key == "--results") flags.results = value;
    if (key == "--commit") flags.commit = value;
    if (key == "--most_prompt") flags.most_prompt = std::stoll(value);
    if (key == "--exact") flags.exact = true;
    if (key == "--batches") {
      flags.batches.clear();
      std::istringstream list(value);
      for (std::string n; std::getline(list, n, ',');) flags.batches.push_back(std::stoll(n));
    }
    if (key == "--overlap_rows") flags.overlap_rows = std::stoll(value);
  }
  if (!flags.config.empty()) {
    try {
      return kdelta::gpu_bench::run_model(flags);
    } catch (const std::exception& e) {
      std::fprintf(stderr, "kdelta_gpu_engine_tests: %s\n", e.what());
      return 1;
    }
  }
  kdelta::test::test_device() = {kdelta::DeviceKind::cuda, 0};
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
