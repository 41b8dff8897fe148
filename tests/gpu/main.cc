// kdelta_gpu_tests [GoogleTest flags]                    every CUDA test
// kdelta_gpu_tests --bench=REGEX [--results=FILE] [--commit=HASH]   the benchmarks whose "op/variant/shape" matches
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <exception>
#include <string>

#include "kdelta/core/device.h"
#include "tests/gpu/bench.h"

int main(int argc, char** argv) {
  kdelta::gpu_bench::Flags flags;
  int kept = 1;
  flags.command = "kdelta_gpu_tests";
  for (int i = 1; i < argc; ++i)  // where the results go is nobody else's matter
    if (std::string(argv[i]).rfind("--results", 0) != 0) flags.command += std::string(" ") + argv[i];
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    const size_t eq = arg.find('=');
    const std::string key = arg.substr(0, eq), value = eq == std::string::npos ? "" : arg.substr(eq + 1);
    if (key == "--bench")
      flags.filter = value.empty() ? "." : value;
    else if (key == "--results")
      flags.results = value;
    else if (key == "--commit")
      flags.commit = value;
    else
      argv[kept++] = argv[i];
  }
  argc = kept;
  std::printf("%s\n", kdelta::cuda_device_summary().c_str());
  if (kdelta::cuda_device_count() == 0) return 3;
  if (!flags.filter.empty()) {
    try {
      return kdelta::gpu_bench::run(flags);
    } catch (const std::exception& e) {
      std::fprintf(stderr, "kdelta_gpu_tests: %s\n", e.what());
      return 1;
    }
  }
  testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
