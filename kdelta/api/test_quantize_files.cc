// Which files of OUT.partial a quantisation makes, takes over and refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "kdelta/api/quantize.h"
#include "kdelta/io/mapped_file.h"
#include "tests/support/op_test.h"

namespace kdelta {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using testing::AllOf;
using testing::HasSubstr;

constexpr const char *kTiny = "models/tiny-k3", *kFirst = "model-00001-of-000007.safetensors";

std::map<std::string, std::string> contents(const std::string& folder) {
  std::map<std::string, std::string> out;
  for (const auto& entry : fs::directory_iterator(folder))
    out[entry.path().filename()] = read_text_file(entry.path(), int64_t{1} << 26);
  return out;
}

class QuantizeFiles : public testing::Test {
 protected:
  QuantizeFiles() {
    std::string name = testing::TempDir() + "kdelta_quantize_files_XXXXXX";
    folder_ = mkdtemp(name.data());
  }
  ~QuantizeFiles() override { fs::remove_all(folder_); }
  std::string at(const std::string& name) const { return folder_ + "/" + name; }
  QuantizeOptions options(const std::string& model = kTiny) const {
    return {.model = model, .out = at("out"), .threads = 2};
  }

  // tiny-k3 with its first shard under another name.
  std::string with_first_shard_called(const std::string& name) const {
    fs::remove_all(at("source"));
    fs::copy(kTiny, at("source"));
    fs::rename(at(std::string("source/") + kFirst), at("source/" + name));
    const std::string path = at("source/model.safetensors.index.json");
    std::string index = read_text_file(path, int64_t{1} << 20);
    for (size_t i; (i = index.find(kFirst)) != index.npos;) index.replace(i, std::string(kFirst).size(), name);
    std::ofstream(path, std::ios::binary | std::ios::trunc) << index;
    return at("source");
  }

  // Leaves OUT.partial with the first shard finished and no other.
  void stop_after_the_first_file(QuantizeOptions o) const {
    std::atomic<bool> stop{false};
    o.cancel = &stop;
    o.progress = [&](int64_t, int64_t) { stop = fs::exists(o.out + ".partial/" + kFirst); };
    EXPECT_THAT(error_of([&] { quantize(o); }), HasSubstr("cancelled"));
  }

  std::string folder_;
};

TEST_F(QuantizeFiles, AShardNamedAsAFileOfTheRunItselfIsRefusedBeforeAnythingIsWritten) {
  for (const std::string name : {"kdelta_quantize.json", "kdelta_quantize_done.json", "config.json.partial-text"}) {
    const QuantizeOptions o = options(with_first_shard_called(name));
    EXPECT_THAT(error_of([&] { quantize(o); }),
                AllOf(HasSubstr("source/" + name), HasSubstr("expected another name for a file of weights")));
    EXPECT_FALSE(fs::exists(o.out));
    EXPECT_FALSE(fs::exists(o.out + ".partial")) << name;
  }
}

TEST_F(QuantizeFiles, AShardUnderAnyOtherNameIsQuantisedAndNotCopiedOverAsACompanion) {
  QuantizeOptions o = options();
  quantize(o);
  const auto want = contents(o.out).at(kFirst);
  o = options(with_first_shard_called("weights.dat"));
  o.out = at("renamed");
  quantize(o);
  EXPECT_TRUE(contents(o.out).at("weights.dat") == want);
}

}  // namespace
}  // namespace kdelta
