#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "kdelta/io/json.h"
#include "tests/cli/run_program.h"

namespace kdelta::test {
namespace {

using testing::HasSubstr;

TEST(QuantizeCommand, PrintsSizesAloneOnStdoutAndADryRunWritesNothing) {
  std::string folder = testing::TempDir() + "kdelta_cli_quantize_XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const std::string out = folder + "/q";
  const Result dry = run_program("quantize tests/golden/linear_a " + out + " --dry-run --json");
  EXPECT_EQ(dry.status, 0) << dry.err;
  EXPECT_EQ(dry.err, "");
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  const Json told = parse_json(dry.out, {.name = "stdout"});
  EXPECT_EQ(told.find("groups")->array().size(), 3u);
  const Result done = run_program("quantize tests/golden/linear_a --out " + out);
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_THAT(done.out, testing::AllOf(HasSubstr("9 matrices to MXFP8"), HasSubstr("96 matrices to MXFP4")));
  EXPECT_EQ(done.err, "written to " + out + "\n");
  EXPECT_EQ(run_program("inspect " + out).status, 0);
  const Result again = run_program("quantize tests/golden/linear_a " + out);
  EXPECT_EQ(again.status, 2);
  EXPECT_THAT(again.err, HasSubstr("--out: " + out + " exists"));
  std::filesystem::remove_all(folder);
}

TEST(QuantizeCommand, WrongFlagsAreWrongUsage) {
  EXPECT_EQ(run_program("quantize models/tiny-k3").status, 2);
  EXPECT_EQ(run_program("quantize models/tiny-k3 /nonexistent/x --qkv int3").status, 2);
  const Result none = run_program("quantize models/tiny-k3 /nonexistent/x --qkv keep");
  EXPECT_EQ(none.status, 2);
  EXPECT_THAT(none.err, HasSubstr("nothing would be quantised"));
  EXPECT_EQ(run_program("quantize models/tiny-k3 /nonexistent/x").status, 1);
}

}  // namespace
}  // namespace kdelta::test
