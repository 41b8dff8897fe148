#include "kdelta/io/new_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <optional>

#include "kdelta/io/checkpoint_index.h"
#include "kdelta/io/mapped_file.h"
#include "tests/support/op_test.h"

namespace kdelta {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using testing::HasSubstr;

class NewDirectoryTest : public testing::Test {
 protected:
  NewDirectoryTest() {
    std::string name = testing::TempDir() + "kdelta_directory_XXXXXX";
    folder_ = mkdtemp(name.data());
  }
  ~NewDirectoryTest() override { fs::remove_all(folder_); }
  std::string at(const std::string& name) const { return folder_ + "/" + name; }
  std::string folder_;
};

TEST_F(NewDirectoryTest, AppearsUnderItsNameWithCommitAndNotBefore) {
  NewDirectory d(at("x/"), "job", "one");
  EXPECT_EQ(d.partial(), at("x.partial"));
  EXPECT_FALSE(d.resumed());
  write_text_file(d.partial() + "/a", "text");
  EXPECT_FALSE(fs::exists(at("x")));
  d.commit();
  EXPECT_FALSE(fs::exists(at("x.partial")));
  EXPECT_EQ(read_text_file(at("x/a"), 100), "text");
  EXPECT_FALSE(fs::exists(at("x/job")));
}

TEST_F(NewDirectoryTest, AnEmptyFolderOfThatNameIsTaken) {
  fs::create_directory(at("x"));
  NewDirectory d(at("x"), "job", "one");
  d.commit();
  EXPECT_TRUE(fs::is_directory(at("x")));
}

TEST_F(NewDirectoryTest, TheSameJobGoesOnAndAnotherIsRefused) {
  {
    NewDirectory d(at("x"), "job", "one");
    write_text_file(d.partial() + "/done", "1");
    std::ofstream(d.partial() + "/b.partial-77-1") << "half";
  }
  EXPECT_THAT(error_of([&] { NewDirectory(at("x"), "job", "two"); }), HasSubstr("other settings or another source"));
  EXPECT_TRUE(fs::exists(at("x.partial/b.partial-77-1")));
  NewDirectory again(at("x"), "job", "one");
  EXPECT_TRUE(again.resumed());
  EXPECT_TRUE(fs::exists(again.partial() + "/done"));
  EXPECT_FALSE(fs::exists(again.partial() + "/b.partial-77-1"));
}

TEST_F(NewDirectoryTest, TwoWritersAtATimeAreRefused) {
  std::optional<NewDirectory> first(std::in_place, at("x"), "job", "one");
  EXPECT_THAT(error_of([&] { NewDirectory(at("x"), "job", "one"); }), HasSubstr("another process is writing it"));
  first.reset();
  EXPECT_TRUE(NewDirectory(at("x"), "job", "one").resumed());
}

TEST_F(NewDirectoryTest, LinksFilesAndFullFoldersAreNotReplaced) {
  fs::create_symlink(at("nowhere"), at("link"));
  EXPECT_THAT(error_of([&] { NewDirectory(at("link"), "job", "one"); }), HasSubstr("link exists, expected a new name"));
  EXPECT_EQ(error_of([&] { NewDirectory("", "job", "one"); }), "out: empty name");
  EXPECT_THAT(error_of([&] { NewDirectory(at("no/such/x"), "job", "one"); }), HasSubstr("cannot create"));
}

TEST(CheckpointIndexText, IsReadBackAsItWas) {
  CheckpointIndex index{.shards = {"a.safetensors", "b.safetensors"},
                        .entries = {{"one", 1}, {"quote\"d", 0}, {"two", 0}},
                        .total_size = int64_t{1} << 40};
  const std::string text = checkpoint_index_text(index);
  const CheckpointIndex got = parse_checkpoint_index(text, "text");
  EXPECT_EQ(got.shards, index.shards);
  EXPECT_EQ(got.total_size, index.total_size);
  ASSERT_EQ(got.entries.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(got.entries[i].tensor, index.entries[i].tensor);
    EXPECT_EQ(got.entries[i].shard, index.entries[i].shard);
  }
}

}  // namespace
}  // namespace kdelta
