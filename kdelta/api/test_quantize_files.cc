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

TEST_F(QuantizeFiles, WhatTheRunDidNotMakeInAnUnfinishedFolderIsRefusedByNameAndKept) {
  QuantizeOptions o = options();
  quantize(o);
  const auto whole = contents(o.out);
  o.out = at("again");
  const std::string partial = o.out + ".partial";
  stop_after_the_first_file(o);
  std::ofstream(partial + "/zzz.safetensors") << "theirs";
  std::ofstream(partial + "/notes.txt") << "theirs";
  fs::create_directory(partial + "/tiktoken.model");  // a name of ours, but not a plain file
  fs::create_directories(partial + "/x.partial-1/theirs");
  for (const char* name : {"notes.txt", "tiktoken.model", "x.partial-1", "zzz.safetensors"}) {
    EXPECT_EQ(error_of([&] { quantize(o); }),
              str("out: ", partial, "/", name, " is not of this run; remove it or give another name"));
    EXPECT_FALSE(fs::exists(o.out));
    ASSERT_GT(fs::remove_all(partial + "/" + name), 0u);
  }
  EXPECT_EQ(quantize(o).files_kept, 1);
  EXPECT_TRUE(contents(o.out) == whole);
}

TEST_F(QuantizeFiles, AFolderThatIsNotOursKeepsEvenWhatLooksUnfinished) {
  fs::create_directory(at("out.partial"));
  std::ofstream(at("out.partial/notes.partial-1")) << "theirs";
  EXPECT_THAT(error_of([&] { quantize(options()); }), HasSubstr("out.partial exists and is not ours"));
  EXPECT_EQ(contents(at("out.partial")), (std::map<std::string, std::string>{{"notes.partial-1", "theirs"}}));
}

TEST_F(QuantizeFiles, ADryRunRefusesWhatTheRunRefusesAndCountsWhatItWouldFind) {
  std::ofstream(at("file")) << "mine";
  fs::create_directory(at("taken.partial"));
  std::ofstream(at("taken.partial/notes.txt")) << "mine";
  stop_after_the_first_file(options());
  QuantizeOptions other = options(), file = options(), taken = options(), missing = options(), under = options();
  other.weight_rule = "floor";
  file.out = at("file");
  taken.out = at("taken/");
  missing.out = at("no/such/x");
  under.out = at("file/x");
  for (const QuantizeOptions& o : {other, file, taken, missing, under}) {
    QuantizeOptions dry = o;
    dry.dry_run = true;
    const std::string refusal = error_of([&] { quantize(o); });
    EXPECT_THAT(refusal, HasSubstr(folder_));
    EXPECT_EQ(error_of([&] { quantize(dry); }), refusal);
  }
  QuantizeOptions dry = options();
  dry.dry_run = true;
  fs::copy_file(std::string(kTiny) + "/model-00002-of-000007.safetensors",
                at("out.partial/model-00002-of-000007.safetensors"));
  const auto before = contents(at("out.partial"));
  QuantizeReport report = quantize(dry);
  EXPECT_EQ(report.files_kept, 1);
  EXPECT_EQ(report.files_redone, 1);
  EXPECT_TRUE(contents(at("out.partial")) == before);
  std::ofstream(at("out.partial/notes.txt")) << "theirs";
  EXPECT_THAT(error_of([&] { quantize(dry); }), HasSubstr("notes.txt is not of this run"));
  dry.out = "";  // sizes alone
  EXPECT_EQ(quantize(dry).files_kept, 0);
}

}  // namespace
}  // namespace kdelta
