#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "kdelta/core/error.h"
#include "kdelta/io/checkpoint_index.h"
#include "kdelta/io/mapped_file.h"
#include "kdelta/io/safetensors.h"
#include "tests/support/op_test.h"

namespace kdelta {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr const char* kShard1 = "model-00001-of-00002.safetensors";
constexpr const char* kShard2 = "model-00002-of-00002.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

// A folder of its own for each test, removed afterwards, with the two-shard checkpoint of case D4.
class CheckpointFolder : public testing::Test {
 protected:
  CheckpointFolder() {
    std::string name = testing::TempDir() + "kdelta_checkpoint_XXXXXX";
    folder_ = mkdtemp(name.data());
  }
  ~CheckpointFolder() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(path(name), std::ios::binary) << text;
  }
  std::string read(const std::string& name) const { return read_text_file(path(name), 1 << 20); }
  void write_index(const std::string& map) const {
    write(kIndex, R"({"metadata":{"total_size":56},"weight_map":)" + map + "}");
  }

  void write_two_shards() const {
    const std::vector<TensorToWrite> first = {{"embed", DType::f32, {2, 3}, values_},
                                              {"norm", DType::bf16, {4}, values_}};
    const std::vector<TensorToWrite> second = {{"head", DType::f32, {6}, values_}};
    write_safetensors(path(kShard1), first);
    write_safetensors(path(kShard2), second);
    write_index(R"({"embed":"model-00001-of-00002.safetensors","norm":"model-00001-of-00002.safetensors",)"
                R"("head":"model-00002-of-00002.safetensors"})");
  }
  std::string open_error() const {
    return test::error_of([&] { Checkpoint::open(folder_); });
  }

  std::string folder_;
  float values_[6] = {0, 1, 2, 3, 4, 5};
};

using CheckpointOpen = CheckpointFolder;

TEST_F(CheckpointOpen, FindsEveryTensorOfEveryShardByName) {
  write_two_shards();
  const Checkpoint c = Checkpoint::open(folder_);
  EXPECT_EQ(c.directory(), folder_);
  EXPECT_EQ(c.file_count(), 2);
  EXPECT_EQ(c.file_path(1), path(kShard2));
  EXPECT_EQ(c.total_bytes(), 56);
  EXPECT_THAT(c.notes(), IsEmpty());
  std::vector<std::string> names;
  for (const TensorInfo& t : c.tensors()) names.push_back(t.name);
  EXPECT_THAT(names, ElementsAre("embed", "head", "norm"));
  const TensorInfo* head = c.find("head");
  ASSERT_NE(head, nullptr);
  EXPECT_EQ(head->file, 1);
  EXPECT_EQ(std::memcmp(c.data(*head), values_, 24), 0);
  EXPECT_EQ(c.find("hea"), nullptr);
  EXPECT_EQ(c.find("zzz"), nullptr);
  EXPECT_EQ(c.find(""), nullptr);
}

TEST_F(CheckpointOpen, StaysMappedAfterTheFilesAreDeletedAndWhenCopied) {
  write_two_shards();
  Checkpoint copy = Checkpoint::open(folder_);
  {
    const Checkpoint original = Checkpoint::open(folder_);
    copy = original;
  }
  std::filesystem::remove(path(kShard1));
  EXPECT_EQ(std::memcmp(copy.data(*copy.find("embed")), values_, 24), 0);
}

TEST_F(CheckpointOpen, AShardCutBy16BytesIsRefusedNamingFileAndTensor) {
  write_two_shards();
  std::filesystem::resize_file(path(kShard1), std::filesystem::file_size(path(kShard1)) - 16);
  EXPECT_EQ(open_error(),
            path(kShard1) + ": tensor embed: data_offsets [0, 24], but the file holds 16 bytes of data: truncated");
}

TEST_F(CheckpointOpen, AShardCutAnywhereIsRefused) {
  write_two_shards();
  for (auto size = std::filesystem::file_size(path(kShard2)); size > 0; --size) {
    std::filesystem::resize_file(path(kShard2), size - 1);
    ASSERT_THAT(open_error(), testing::StartsWith(path(kShard2) + ": ")) << size;
  }
}

TEST_F(CheckpointOpen, AMissingShardIsRefusedByName) {
  write_two_shards();
  std::filesystem::remove(path(kShard2));
  EXPECT_EQ(open_error(), folder_ + ": 1 of 2 shards that model.safetensors.index.json names are missing: " + kShard2);
}

TEST_F(CheckpointOpen, ADanglingLinkIsAMissingShard) {
  write_two_shards();
  std::filesystem::remove(path(kShard2));
  std::filesystem::create_symlink("../nowhere", path(kShard2));
  EXPECT_THAT(open_error(), HasSubstr("1 of 2 shards"));
}

TEST_F(CheckpointOpen, ALinkToAShardElsewhereIsFollowed) {
  write_two_shards();
  std::filesystem::rename(path(kShard2), path("blob"));
  std::filesystem::create_symlink("blob", path(kShard2));
  EXPECT_EQ(open_error(), "no error");
}

TEST_F(CheckpointOpen, ATensorThatOnlyTheIndexKnowsIsRefused) {
  write_two_shards();
  write_index(str(R"({"embed":")", kShard1, R"(","norm":")", kShard1, R"(","head":")", kShard2, R"(","tail":")",
                  kShard2, R"("})"));
  EXPECT_EQ(open_error(), path(kShard2) + ": tensor tail: missing, but model.safetensors.index.json says it is here");
  write_index(str(R"({"aaa":")", kShard1, R"(","embed":")", kShard1, R"(","norm":")", kShard1, R"(","head":")", kShard2,
                  R"("})"));
  EXPECT_EQ(open_error(), path(kShard1) + ": tensor aaa: missing, but model.safetensors.index.json says it is here");
}

TEST_F(CheckpointOpen, ATensorThatOnlyTheShardKnowsIsRefused) {
  write_two_shards();
  for (const char* absent : {"embed", "norm"}) {
    const char* present = std::string(absent) == "embed" ? "norm" : "embed";
    write_index(str("{\"", present, "\":\"", kShard1, "\",\"head\":\"", kShard2, "\"}"));
    EXPECT_EQ(open_error(), path(kShard1) + ": tensor " + absent + ": not in model.safetensors.index.json");
  }
}

TEST_F(CheckpointOpen, ATensorInAnotherShardThanTheIndexSaysIsRefused) {
  write_two_shards();
  write_index(str(R"({"embed":")", kShard2, R"(","norm":")", kShard1, R"(","head":")", kShard2, R"("})"));
  EXPECT_EQ(open_error(), path(kShard2) +
                              ": tensor embed: missing, model.safetensors.index.json says it is here, found it in " +
                              path(kShard1));
}

TEST_F(CheckpointOpen, TheSameTensorInTwoShardsIsRefused) {
  write_two_shards();
  const std::vector<TensorToWrite> second = {{"head", DType::f32, {6}, values_}, {"norm", DType::bf16, {4}, values_}};
  write_safetensors(path(kShard2), second);
  EXPECT_EQ(open_error(), path(kShard2) + ": tensor norm: also in " + path(kShard1));
}

TEST_F(CheckpointOpen, AnUnrelatedFileBesideAnIndexedCheckpointIsANote) {
  write_two_shards();
  write("adapter.safetensors", "not even a safetensors file");
  write("._model-00001-of-00002.safetensors", "left by an archive");
  EXPECT_THAT(Checkpoint::open(folder_).notes(),
              ElementsAre("adapter.safetensors: not named by model.safetensors.index.json, ignored"));
}

TEST_F(CheckpointOpen, ATotalSizeThatIsWrongIsANote) {
  write_two_shards();
  std::string index = read(kIndex);
  index.replace(index.find("56"), 2, "57");
  write(kIndex, index);
  EXPECT_THAT(Checkpoint::open(folder_).notes(),
              ElementsAre("model.safetensors.index.json: metadata.total_size 57, the tensors have 56 bytes"));
}

TEST_F(CheckpointOpen, OneFileNeedsNoIndexWhateverItsName) {
  const std::vector<TensorToWrite> tensors = {{"w", DType::f32, {6}, values_}};
  write_safetensors(path("anything.safetensors"), tensors);
  EXPECT_EQ(Checkpoint::open(folder_).tensors().size(), 1u);
}

TEST_F(CheckpointOpen, SeveralFilesWithoutIndexAreRefused) {
  write_two_shards();
  std::filesystem::remove(path(kIndex));
  EXPECT_EQ(open_error(),
            folder_ + ": 2 safetensors files but no model.safetensors.index.json to say which belong to the model: " +
                kShard1 + ", " + kShard2);
}

TEST_F(CheckpointOpen, FoldersWithoutACheckpointAreRefused) {
  EXPECT_EQ(open_error(), folder_ + ": no model.safetensors.index.json and no *.safetensors file");
  EXPECT_THAT(test::error_of([&] { Checkpoint::open(path("absent")); }),
              HasSubstr("cannot read the directory: No such file"));
  write("file", "");
  EXPECT_THAT(test::error_of([&] { Checkpoint::open(path("file")); }),
              HasSubstr("cannot read the directory: Not a directory"));
}

TEST_F(CheckpointOpen, AFolderInPlaceOfAFileIsRefused) {
  std::filesystem::create_directory(path("model.safetensors"));
  EXPECT_THAT(open_error(), HasSubstr("model.safetensors: not a regular file"));
}

// A test that waits for a writer here has failed.
TEST_F(CheckpointOpen, AFifoInPlaceOfAFileIsRefusedWithoutWaitingForItsWriter) {
  for (const char* name : {kShard1, kIndex}) {
    write_two_shards();
    std::filesystem::remove(path(name));
    ASSERT_EQ(mkfifo(path(name).c_str(), 0600), 0);
    EXPECT_EQ(open_error(), path(name) + ": not a regular file");
    std::filesystem::remove(path(name));
  }
  ASSERT_EQ(mkfifo(path("config.json").c_str(), 0600), 0);
  EXPECT_EQ(test::error_of([&] { read_text_file(path("config.json"), 100); }),
            path("config.json") + ": not a regular file");
}

TEST_F(CheckpointOpen, TensorDataNeedNoAlignment) {
  const uint8_t byte = 7;
  const std::vector<TensorToWrite> tensors = {{"a", DType::u8, {1}, &byte}, {"b", DType::f32, {6}, values_}};
  write_safetensors(path("model.safetensors"), tensors);
  const Checkpoint c = Checkpoint::open(folder_);
  const TensorInfo* b = c.find("b");
  EXPECT_EQ(b->begin % 4, 1);
  EXPECT_EQ(std::memcmp(c.data(*b), values_, 24), 0);
}

TEST_F(CheckpointOpen, ReadsTheGoldens) {
  for (const auto& [folder, files, bytes] :
       {std::tuple("tests/golden/k3_a", 7, 5275360), {"tests/golden/linear_a", 3, 5137560}}) {
    const Checkpoint c = Checkpoint::open(folder);
    EXPECT_EQ(c.file_count(), files);
    EXPECT_EQ(c.total_bytes(), bytes);
    EXPECT_THAT(c.notes(), ElementsAre("golden.safetensors: not named by model.safetensors.index.json, ignored"));
  }
  const Checkpoint k3 = Checkpoint::open("tests/golden/k3_a");
  const TensorInfo* packed = k3.find("language_model.model.layers.1.block_sparse_moe.experts.0.w1.weight_packed");
  ASSERT_NE(packed, nullptr);
  EXPECT_EQ(packed->dtype, DType::u8);
  EXPECT_THAT(packed->shape, ElementsAre(64, 48));
}

// The index alone.
std::string index_error(const std::string& text) {
  return test::error_of([&] { parse_checkpoint_index(text, "i.json"); });
}

TEST(CheckpointIndexFile, OrdersShardsAndTensorsByName) {
  const CheckpointIndex index = parse_checkpoint_index(
      R"({"other":[{"a":[1,{"b":2}]}],"weight_map":{"z":"2","a":"10","m":"2"},"metadata":{"total_size":7,"more":{"total_size":8}}})",
      "i");
  EXPECT_THAT(index.shards, ElementsAre("10", "2"));
  ASSERT_EQ(index.entries.size(), 3u);
  EXPECT_EQ(index.entries[0].tensor, "a");
  EXPECT_EQ(index.entries[0].shard, 0);
  EXPECT_EQ(index.entries[2].tensor, "z");
  EXPECT_EQ(index.entries[2].shard, 1);
  EXPECT_EQ(index.total_size, 7);
}

TEST(CheckpointIndexFile, RefusesShardNamesThatLeaveTheFolder) {
  for (const char* name :
       {"/etc/passwd", "../x.safetensors", "sub/x.safetensors", "..", ".", "", "a\\u0000.safetensors", "a/"})
    EXPECT_THAT(index_error(str(R"({"weight_map":{"w":")", name, R"("}})")),
                AllOf(HasSubstr("i.json: weight_map.w: string"),
                      HasSubstr("expected the plain name of a file in the same folder")))
        << name;
}

TEST(CheckpointIndexFile, RefusesWhatIsNoIndex) {
  EXPECT_EQ(index_error("[]"), "i.json: an array, expected an object");
  EXPECT_EQ(index_error("7"), "i.json: integer 7, expected an object");
  EXPECT_EQ(index_error("{}"), "i.json: weight_map: missing");
  EXPECT_EQ(index_error(R"({"metadata":{"weight_map":{"a":"b"}}})"), "i.json: weight_map: missing");
  EXPECT_EQ(index_error(R"({"weight_map":{}})"), "i.json: weight_map: names no tensor");
  EXPECT_EQ(index_error(R"({"weight_map":[]})"), "i.json: weight_map: an array, expected an object");
  EXPECT_EQ(index_error(R"({"weight_map":"x"})"), "i.json: weight_map: string \"x\", expected an object");
  EXPECT_THAT(index_error(R"({"weight_map":{"a":7}})"), HasSubstr("weight_map.a: integer 7, expected"));
  EXPECT_THAT(index_error(R"({"weight_map":{"a":{}}})"), HasSubstr("weight_map.a: an object, expected"));
  EXPECT_THAT(index_error(R"({"weight_map":{"a":[]}})"), HasSubstr("weight_map.a: an array, expected"));
  EXPECT_THAT(index_error(""), HasSubstr("i.json: byte "));
  EXPECT_THAT(index_error("{\"weight_map\":{\"a\xff\":\"b\"}}"), HasSubstr("i.json: byte "));
}

TEST(CheckpointIndexFile, RefusesAnyKeyTwice) {
  EXPECT_EQ(index_error(R"({"weight_map":{"a":"x","b":"x","a":"y"}})"),
            "i.json: weight_map.a: the tensor appears twice");
  EXPECT_EQ(index_error(R"({"weight_map":{"a":"x"},"weight_map":{"b":"x"}})"),
            "i.json: weight_map: the key appears twice");
  EXPECT_EQ(index_error(R"({"metadata":{"k":1,"k":2},"weight_map":{"a":"x"}})"), "i.json: k: the key appears twice");
}

TEST(CheckpointIndexFile, RefusesDeepJsonWithoutRecursion) {
  std::string deep = R"({"metadata":)";
  for (int i = 0; i < 1000000; ++i) deep += '[';
  EXPECT_EQ(index_error(deep), "i.json: arrays and objects nest deeper than 64");
}

using SafetensorsWrite = CheckpointFolder;

TEST_F(SafetensorsWrite, EveryTensorComesBackBitForBit) {
  uint8_t codes[8] = {1, 2, 3, 4, 5, 6, 7, 255};
  const std::vector<TensorToWrite> tensors = {{"plain", DType::f32, {2, 3}, values_},
                                              {"scalar", DType::i64, {}, codes},
                                              {"empty", DType::bf16, {0, 5}, nullptr},
                                              {"fp4 \"quoted\" é", DType::f4_e2m1, {3, 4}, codes},
                                              {"odd", DType::u8, {3}, codes}};
  const std::vector<std::pair<std::string, std::string>> metadata = {{"format", "pt"}, {"note", "a\nb"}};
  write_safetensors(path("x.safetensors"), tensors, metadata);
  const Checkpoint c = Checkpoint::open(folder_);
  ASSERT_EQ(c.tensors().size(), tensors.size());
  for (const TensorToWrite& t : tensors) {
    const TensorInfo* info = c.find(t.name);
    ASSERT_NE(info, nullptr) << t.name;
    EXPECT_EQ(info->dtype, t.dtype);
    EXPECT_EQ(info->shape, t.shape);
    if (info->bytes == 0) continue;
    EXPECT_EQ(std::memcmp(c.data(*info), t.data, static_cast<size_t>(info->bytes)), 0) << t.name;
  }
  EXPECT_EQ(c.find("plain")->begin % 8, 0);
  EXPECT_THAT(read("x.safetensors"),
              HasSubstr(R"({"__metadata__":{"format":"pt","note":"a\nb"},"plain":{"dtype":"F32",)"
                        R"("shape":[2,3],"data_offsets":[0,24]})"));
}

TEST_F(SafetensorsWrite, AFailureLeavesTheOldFileAndNothingElse) {
  write("x.safetensors", "old");
  const std::vector<TensorToWrite> twice = {{"a", DType::f32, {6}, values_}, {"a", DType::f32, {6}, values_}};
  EXPECT_NE(test::error_of([&] { write_safetensors(path("x.safetensors"), twice); }), "no error");
  std::filesystem::create_directory(path("folder"));
  const std::vector<TensorToWrite> good = {{"a", DType::f32, {6}, values_}};
  std::filesystem::create_symlink(path("x.safetensors"), path("link"));
  for (const std::string& target : {path("folder"), path("link"), std::string("/dev/null")})
    EXPECT_THAT(test::error_of([&] { write_safetensors(target, good); }), HasSubstr("exists and is no regular file"));
  std::filesystem::remove(path("link"));
  EXPECT_THAT(test::error_of([&] { write_safetensors(path("absent/x.safetensors"), good); }),
              HasSubstr("cannot create"));
  EXPECT_EQ(read("x.safetensors"), "old");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 2);
}

TEST_F(SafetensorsWrite, PiecesInAnyOrderGiveTheFileThatOneCallGives) {
  const std::vector<TensorToWrite> tensors = {{"a", DType::f32, {2, 3}, values_}, {"b", DType::f32, {3}, values_ + 1}};
  write_safetensors(path("whole.safetensors"), tensors);
  {
    SafetensorsWriter pieces(path("pieces.safetensors"), tensors);
    pieces.write(1, 4, values_ + 2, 8);
    pieces.write(0, 12, values_ + 3, 12);
    pieces.write(0, 0, values_, 12);
    pieces.write(1, 0, values_ + 1, 4);
    EXPECT_FALSE(std::filesystem::exists(path("pieces.safetensors")));
    pieces.commit();
  }
  EXPECT_EQ(read("pieces.safetensors"), read("whole.safetensors"));
}

TEST_F(SafetensorsWrite, AnUnfinishedFileIsNeverNamedAndLeavesNothing) {
  const std::vector<TensorToWrite> tensors = {{"a", DType::f32, {6}, nullptr}};
  {
    SafetensorsWriter writer(path("x.safetensors"), tensors);
    EXPECT_THAT(test::error_of([&] { writer.write(0, 20, values_, 8); }), HasSubstr("outside it"));
    writer.write(0, 0, values_, 20);
    EXPECT_THAT(test::error_of([&] { writer.commit(); }), HasSubstr("20 bytes written of 24"));
  }
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 0);
}

TEST_F(SafetensorsWrite, ReplacesTheOldFileAtOnce) {
  const std::vector<TensorToWrite> one = {{"a", DType::f32, {6}, values_}}, two = {{"b", DType::f32, {3}, values_}};
  write_safetensors(path("x.safetensors"), one);
  const Checkpoint before = Checkpoint::open(folder_);
  write_safetensors(path("x.safetensors"), two);
  EXPECT_EQ(std::memcmp(before.data(*before.find("a")), values_, 24), 0);  // the mapped file is still the old one
  EXPECT_NE(Checkpoint::open(folder_).find("b"), nullptr);
}

TEST_F(SafetensorsWrite, RefusesWhatCannotBeReadBack) {
  const auto error = [&](TensorToWrite t) {
    return test::error_of([&] { write_safetensors(path("x.safetensors"), std::span(&t, 1)); });
  };
  EXPECT_THAT(error({"", DType::f32, {6}, values_}), HasSubstr("empty, reserved or used twice"));
  EXPECT_THAT(error({"__metadata__", DType::f32, {6}, values_}), HasSubstr("empty, reserved or used twice"));
  EXPECT_THAT(error({"\xff", DType::f32, {6}, values_}), HasSubstr("not UTF-8"));
  EXPECT_THAT(error({"w", DType::f32, {-1}, values_}), HasSubstr("tensor w: shape [-1]"));
  EXPECT_THAT(error({"w", DType::f4_e2m1, {3}, values_}), HasSubstr("tensor w: F4 [3] has no size"));
  EXPECT_THAT(error({"w", DType::f32, {int64_t{1} << 40, int64_t{1} << 40}, values_}), HasSubstr("more than 64 bits"));
  EXPECT_THAT(error({"w", DType::f32, {1}, nullptr}), HasSubstr("tensor w: null data"));
}

}  // namespace
}  // namespace kdelta
