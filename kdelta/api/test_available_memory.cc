#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "kdelta/api/available_memory.h"
#include "kdelta/api/options.h"
#include "kdelta/core/error.h"
#include "kdelta/model/load.h"

namespace kdelta {
namespace {

namespace fs = std::filesystem;

class FakeSystem : public testing::Test {
 protected:
  FakeSystem() {
    fs::remove_all(root_);
    write("proc/meminfo", "MemTotal: 9000 kB\nMemAvailable: 8000 kB\nBuffers: 1 kB\n");
    write("proc/self/cgroup", "0::/a/b\n");
    fs::create_directories(root_ + "/cgroup/a/b");
  }
  ~FakeSystem() override { fs::remove_all(root_); }
  void write(const std::string& path, const std::string& text) const {
    const fs::path file = root_ + "/" + path;
    fs::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  int64_t available() const { return available_memory(root_ + "/proc", root_ + "/cgroup"); }

  std::string root_ = testing::TempDir() + "kdelta_available_memory";
};

TEST_F(FakeSystem, WithoutGroupsTheSystemsEstimateCounts) {
  EXPECT_EQ(available(), 8000 * 1024);
}

TEST_F(FakeSystem, TheTightestOfTheGroupsAboveCountsAndItsIdleFilesGiveWay) {
  write("cgroup/a/b/memory.max", "max\n");
  write("cgroup/a/b/memory.current", "10\n");
  EXPECT_EQ(available(), 8000 * 1024) << "no limit is no limit";
  write("cgroup/a/memory.max", "5000\n");
  write("cgroup/a/memory.current", "4000\n");
  write("cgroup/a/memory.stat", "anon 100\ninactive_file 300\nactive_file 70\n");
  EXPECT_EQ(available(), 1300);
}

TEST_F(FakeSystem, TheFirstVersionsGroupCountsToo) {
  write("cgroup/memory/memory.limit_in_bytes", "700\n");
  write("cgroup/memory/memory.usage_in_bytes", "600\n");
  write("cgroup/memory/memory.stat", "inactive_file 5\ntotal_inactive_file 20\n");
  EXPECT_EQ(available(), 120);
}

TEST(MemoryCheck, ThePlanAndWeightsToAllocateCountToTheByteAndMappedOnesDoNot) {
  const LoadedModel shapes = load_model("models/tiny-k3", LoadFormat::headers);
  runtime::EngineConfig config;
  config.max_length = 64;
  config.options.threads = 1;
  const int64_t plan = runtime::plan_memory(*shapes.model, config).total();
  EXPECT_NO_THROW(check_memory(*shapes.model, config, 0, plan));
  EXPECT_THROW(check_memory(*shapes.model, config, 0, plan - 1), Error);
  EXPECT_NO_THROW(check_memory(*shapes.model, config, 10, plan + 10));
  EXPECT_THROW(check_memory(*shapes.model, config, 10, plan + 9), Error);
  EXPECT_NO_THROW(check_memory(*shapes.model, config, 10, plan + 15, 5));
  EXPECT_THROW(check_memory(*shapes.model, config, 10, plan + 14, 5), Error) << "the draft model counts";
}

}  // namespace
}  // namespace kdelta
