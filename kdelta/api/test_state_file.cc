#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "kdelta/api/state_file.h"
#include "kdelta/io/checksum.h"
#include "tests/support/op_test.h"

namespace kdelta {
namespace {

using runtime::StateImage;
using runtime::StatePart;
using runtime::WindowLayout;

using testing::HasSubstr;

StatePart part(int layer, const StateSpec& spec, std::mt19937& rng) {
  StatePart p{.layer = layer, .spec = spec};
  p.data.resize(static_cast<size_t>(spec.bytes()));
  for (char& c : p.data) c = static_cast<char>(rng());
  return p;
}

// Four heads of 2x3, a window of three rows of q | k | v, seven tokens of latents.
StateImage image() {
  std::mt19937 rng(4);
  StateImage i{.model = 0xfedcba9876543210u,
               .arithmetic = "avx2, gate factored",
               .grid = 128,
               .prompt = {1, 2, 3, 4, 5},
               .output = {6, 7, 8},
               .computed = 7};
  i.options.sampling = {.temperature = 0.7f,
                        .top_k = -1,
                        .top_p = 0.9f,
                        .min_p = 0.05f,
                        .repetition_penalty = 1.1f,
                        .presence_penalty = -0.5f,
                        .frequency_penalty = 0.25f,
                        .seed = ~uint64_t{0}};
  i.options.max_tokens = 99;
  i.options.stop_ids = {3, 2};
  i.options.bias = {{5, -INFINITY}, {6, 1.5f}};
  i.options.top_logprobs = 2;
  for (int layer = 0; layer < 2; ++layer) {
    i.parts.push_back(part(layer, {.name = "recurrent", .shape = {4, 2, 3}, .shard_axis = 0}, rng));
    i.parts.push_back(part(layer,
                           {.name = "conv",
                            .dtype = DType::bf16,
                            .shape = {3, 24},
                            .rule = SlotRule::window,
                            .shard_axis = 1,
                            .shard_groups = 3},
                           rng));
  }
  i.parts.push_back(part(2, {.name = "latent", .kind = StateKind::page, .dtype = DType::bf16, .shape = {7, 5}}, rng));
  return i;
}

std::string text_of(const StateImage& i) {
  const auto bytes = encode_state(i);
  return {bytes.begin(), bytes.end()};
}

std::string scratch_file() {
  return std::filesystem::temp_directory_path() / ("kdelta_state_" + std::to_string(getpid()));
}

TEST(StateImage, ComesBackFromItsBytesWhole) {
  const StateImage a = image();
  const auto bytes = encode_state(a);
  const StateImage b = decode_state(bytes, "x");
  EXPECT_EQ(text_of(a), text_of(b));
  EXPECT_EQ(b.model, a.model);
  EXPECT_EQ(b.arithmetic, a.arithmetic);
  EXPECT_EQ(b.grid, a.grid);
  EXPECT_EQ(b.options.sampling.seed, a.options.sampling.seed);
  EXPECT_EQ(b.options.sampling.top_p, a.options.sampling.top_p);
  EXPECT_EQ(b.options.bias[0].bias, -INFINITY);
  EXPECT_EQ(b.options.stop_ids, a.options.stop_ids);
  EXPECT_EQ(b.parts[1].data, a.parts[1].data);
}

TEST(StateImage, ATornFileIsRefusedAtEveryLength) {
  const auto bytes = encode_state(image());
  for (size_t n = 0; n < bytes.size(); ++n)
    EXPECT_NE(test::error_of([&] { decode_state(std::span(bytes).first(n), "x"); }), "") << n;
  auto longer = bytes;
  longer.push_back(0);
  EXPECT_THAT(test::error_of([&] { decode_state(longer, "x"); }), HasSubstr("x: torn"));
}

TEST(StateImage, AChangedByteIsRefusedWhereverItIs) {
  const auto bytes = encode_state(image());
  for (size_t i = 0; i < bytes.size(); ++i)
    for (const char flip : {char{1}, char{-128}}) {
      auto changed = bytes;
      changed[i] = static_cast<char>(changed[i] ^ flip);
      EXPECT_NE(test::error_of([&] { decode_state(changed, "x"); }), "") << "byte " << i;
    }
}

TEST(StateImage, AForeignFileAndAnotherVersionAreToldApart) {
  auto bytes = encode_state(image());
  const std::string text(200, 'a');
  EXPECT_THAT(test::error_of([&] {
                decode_state({text.data(), text.size()}, "x");
              }),
              HasSubstr("no state of a request"));
  bytes[8] = 9;
  EXPECT_THAT(test::error_of([&] { decode_state(bytes, "x"); }), HasSubstr("version 9, this program reads 3"));
}

// Unequal numbers of shards on the two sides: recurrent state by heads, the window within q, k and v, latents whole.
TEST(StateImage, ShardsJoinToTheWholeForEveryNumberOfThem) {
  const StateImage whole = image();
  for (const int n : {1, 2, 4}) {
    auto shards = split_state(whole, n);
    EXPECT_EQ(to_string(shards[0].parts[0].spec.shape), str("[", 4 / n, ", 2, 3]"));
    EXPECT_EQ(shards[0].parts[4].data, whole.parts[4].data);
    std::reverse(shards.begin(), shards.end());
    EXPECT_EQ(text_of(join_state(shards)), text_of(whole));
  }
  auto mixed = split_state(whole, 2);
  mixed[1].arithmetic = "avx512, gate factored";
  EXPECT_EQ(join_state(mixed).arithmetic, "avx2, gate factored | avx512, gate factored");
  // Rank 1 of 2 holds head 2 and 3, and of each row the second half of q, of k and of v.
  const StateImage second = split_state(whole, 2)[1];
  EXPECT_TRUE(std::equal(second.parts[0].data.begin(), second.parts[0].data.end(), whole.parts[0].data.begin() + 48));
  const auto& row = whole.parts[1].data;  // 24 channels of 2 bytes: q 0..16, k 16..32, v 32..48
  const std::vector<char> first_row(second.parts[1].data.begin(), second.parts[1].data.begin() + 24);
  std::vector<char> want(row.begin() + 8, row.begin() + 16);
  want.insert(want.end(), row.begin() + 24, row.begin() + 32);
  want.insert(want.end(), row.begin() + 40, row.begin() + 48);
  EXPECT_EQ(first_row, want);
}

TEST(StateImage, ShardsThatDoNotBelongTogetherAreRefused) {
  const StateImage whole = image();
  EXPECT_THAT(test::error_of([&] { split_state(whole, 3); }), HasSubstr("3 do not divide recurrent"));
  auto shards = split_state(whole, 2);
  EXPECT_THAT(test::error_of([&] { split_state(shards[0], 2); }), HasSubstr("expected a whole state"));
  EXPECT_THAT(test::error_of([&] { join_state(std::span(shards).first(1)); }), HasSubstr("1 given"));
  shards[1].output = {9};
  EXPECT_THAT(test::error_of([&] { join_state(shards); }), HasSubstr("different requests"));
  shards[1] = shards[0];
  EXPECT_THAT(test::error_of([&] { join_state(shards); }), HasSubstr("twice"));
}

TEST(StateImage, PartsThatCannotBeLaidOutOrCutAreRefusedByField) {
  const auto refusal = [](auto change) {
    StateImage i = image();
    change(i.parts[1].spec);
    i.parts[1].data.resize(static_cast<size_t>(i.parts[1].spec.bytes()));
    return test::error_of([&] { decode_state(encode_state(i), "x"); });
  };
  EXPECT_EQ(refusal([](StateSpec&) {}), "no error");
  EXPECT_THAT(refusal([](StateSpec& s) { s.shape = {3, 6, 4}; }), HasSubstr("shape: array of 3, expected two axes"));
  EXPECT_THAT(refusal([](StateSpec& s) { s.shape = {72}, s.shard_axis = 0; }), HasSubstr("expected two axes"));
  EXPECT_THAT(refusal([](StateSpec& s) { s.shard_groups = 5; }),
              HasSubstr("shard_groups: integer 5, expected a divisor of the axis"));
  StateImage i = image();
  i.parts[0].layout = WindowLayout::channel_major;
  EXPECT_THAT(test::error_of([&] { decode_state(encode_state(i), "x"); }),
              HasSubstr("parts[0].channel_major: true, expected false of a part that is no window"));
}

// The file of image() with `from` in its JSON replaced, its length and checksum right again.
std::vector<char> with_text(const std::string& from, const std::string& to) {
  std::string file = text_of(image());
  constexpr size_t kLengthAt = 12, kTextAt = 24, kSumBytes = 8;
  file.resize(file.size() - kSumBytes);
  const size_t at = file.find(from, kTextAt);
  EXPECT_NE(at, file.npos) << from;
  file.replace(at, from.size(), to);
  uint32_t length = 0;
  std::memcpy(&length, &file[kLengthAt], sizeof(length));
  length = static_cast<uint32_t>(length + to.size() - from.size());
  std::memcpy(&file[kLengthAt], &length, sizeof(length));
  const uint64_t sum = checksum({file.data(), file.size()});
  std::vector<char> bytes(file.begin(), file.end());
  bytes.resize(bytes.size() + kSumBytes);
  std::memcpy(&bytes[file.size()], &sum, kSumBytes);
  return bytes;
}

TEST(StateImage, NumbersThatFp32CannotHoldAreRefusedByField) {
  EXPECT_EQ(test::error_of([&] { decode_state(with_text("\"seed\"", "\"seed\""), "x"); }), "no error");
  for (const char* field : {"temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "bias"}) {
    const std::string name = str("\"", field, "\":");
    std::string text = text_of(image());
    const size_t begin = text.find(name, text.find(field == std::string("bias") ? "\"token\":6" : "options"));
    const std::string from = text.substr(begin, text.find_first_of(",}", begin) - begin);
    for (const char* huge : {"1e300", "-1e39"})
      EXPECT_THAT(test::error_of([&] { decode_state(with_text(from, name + huge), "x"); }),
                  testing::AllOf(HasSubstr(field), HasSubstr("expected a number within fp32's range")));
  }
}

TEST(StateImage, ShardsOfDifferentShapesAreRefused) {
  for (const int field : {0, 1, 2}) {
    auto shards = split_state(image(), 2);
    StateSpec& s = shards[1].parts[1].spec;
    if (field == 0) s.dtype = DType::f16;
    if (field == 1) s.shape = {9, 4};
    if (field == 2) s.shard_groups = 1;
    EXPECT_THAT(test::error_of([&] { join_state(shards); }), HasSubstr("different requests")) << field;
  }
}

TEST(StateImage, PartsWithoutElementsAreCutJoinedAndLaidOutInNoTime) {
  StateImage i = image();
  for (const Shape& shape : {Shape{int64_t{1} << 31, 0}, Shape{0, 24}}) {
    i.parts[1].spec.shape = shape;
    i.parts[1].data.clear();
    const StateImage read = decode_state(encode_state(i), "x");
    EXPECT_EQ(text_of(join_state(split_state(with_layout(read, WindowLayout::channel_major), 2))), text_of(i));
  }
}

TEST(StateImage, BothLayoutsOfTheWindowHoldTheSame) {
  const StateImage a = image();
  const StateImage b = with_layout(a, WindowLayout::channel_major);
  // Element (row 2, channel 5).
  EXPECT_EQ(b.parts[1].data[(5 * 3 + 2) * 2], a.parts[1].data[(2 * 24 + 5) * 2]);
  EXPECT_EQ(b.parts[0].data, a.parts[0].data);
  EXPECT_EQ(text_of(with_layout(decode_state(encode_state(b), "x"), WindowLayout::token_major)), text_of(a));
  EXPECT_EQ(text_of(join_state(split_state(b, 2))), text_of(a));
}

TEST(StateFile, AFullDiskLeavesTheOldFileAndNothingElse) {
  const std::string path = scratch_file();
  StateImage old = image();
  write_state(path, old);
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{100, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  StateImage next = image();
  next.output.push_back(1);
  const std::string error = test::error_of([&] { write_state(path, next); });
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_THAT(error, HasSubstr("cannot write: File too large"));
  EXPECT_EQ(text_of(read_state(path)), text_of(old));
  for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::temp_directory_path()))
    EXPECT_FALSE(entry.path().string().starts_with(path + ".partial"));
  std::filesystem::remove(path);
}

TEST(StateFile, OnlyARegularFileIsReplaced) {
  const std::string path = scratch_file();
  std::filesystem::create_directory(path);
  EXPECT_THAT(test::error_of([&] { write_state(path, image()); }), HasSubstr("no regular file"));
  std::filesystem::remove(path);
  EXPECT_THAT(test::error_of([&] { read_state(path); }), HasSubstr(path));
}

}  // namespace
}  // namespace kdelta
