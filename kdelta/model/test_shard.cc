// What one rank of several holds of every kind of weight.
#include "kdelta/model/test_weights.h"

namespace kdelta {
namespace {

using test::bytes_of;
using test::floats_of;
using test::MemoryTensor;
using test::MemoryTensors;
using test::SmallLayer;
using testing::HasSubstr;

constexpr int64_t kHeads = 12, K = SmallLayer::K, D = SmallLayer::D;

std::vector<float> values(const MemoryTensor& t) {
  std::vector<float> out(t.bytes.size() / 4);
  std::memcpy(out.data(), t.bytes.data(), t.bytes.size());
  return out;
}

TEST(Shard, RanksHoldEveryHeadOnceInOrder) {
  const SmallLayer one(kHeads);
  const MemoryTensors all = one.whole();
  for (int ranks : {1, 2, 3, 4, 6, 12}) {
    std::vector<uint8_t> q, b;
    std::vector<float> a_log, dt_bias;
    for (int rank = 0; rank < ranks; ++rank) {
      SmallLayer part(kHeads / ranks, ranks);
      const BoundWeights w = test::load_all(part, all, rank);
      const auto append = [](auto& to, const auto& more) { to.insert(to.end(), more.begin(), more.end()); };
      append(q, bytes_of(part.q));
      append(b, bytes_of(part.b));
      append(a_log, floats_of(part.a_log));
      append(dt_bias, floats_of(part.dt_bias));
      EXPECT_EQ(part.q.data, all.at("l.q.weight").bytes.data() + rank * part.q.rows * part.q.row_bytes)
          << "a view, not a copy";
    }
    EXPECT_EQ(q, all.at("l.q.weight").bytes);
    EXPECT_EQ(b, all.at("l.b.weight").bytes);
    EXPECT_EQ(a_log, values(all.at("l.A_log")));
    EXPECT_EQ(dt_bias, values(all.at("l.dt_bias")));
  }
}

TEST(Shard, ColumnsAreAViewOfTheirShareOfEveryRow) {
  const SmallLayer one(kHeads);
  const MemoryTensors all = one.whole();
  const MemoryTensor& o = all.at("l.o.weight");
  constexpr int64_t kColumns = kHeads * K / 3;
  for (int rank = 0; rank < 3; ++rank) {
    SmallLayer part(kHeads / 3, 3);
    const BoundWeights w = test::load_all(part, all, rank);
    for (int64_t r = 0; r < D; ++r) EXPECT_EQ(part.o.row(r), o.bytes.data() + (r * kHeads * K + rank * kColumns) * 2);
    EXPECT_EQ(part.o.cols, kColumns);
  }
}

// The convolution's channels of a rank are its heads of q, of k and of v.
TEST(Shard, TapsAreDealtWithinEveryStackedPart) {
  SmallLayer one(kHeads), part(kHeads / 4, 4);
  const MemoryTensors all = one.whole();
  const BoundWeights whole = test::load_all(one, all), w = test::load_all(part, all, 2);
  const int64_t P = kHeads * K, C = P / 4;
  for (int64_t j = 0; j < SmallLayer::kTaps; ++j)
    for (int64_t p = 0; p < 3; ++p)
      for (int64_t c = 0; c < C; ++c)
        ASSERT_EQ(part.conv.data[j * 3 * C + p * C + c], one.conv.data[j * 3 * P + p * P + 2 * C + c]);
}

// Case D1 on several ranks: padding goes first, then ranks take their parts.
TEST(Shard, PaddingOfALogIsDroppedBeforeRanksTakeTheirParts) {
  const SmallLayer one(kHeads);
  MemoryTensors all = one.whole();
  const std::vector<float> want = values(all.at("l.A_log"));
  MemoryTensor& a_log = all["l.A_log"];
  a_log.shape = {1, 1, 16, 1};
  a_log.bytes.resize(64, 0xff);  // NaN, which would be refused
  for (int rank = 0; rank < 4; ++rank) {
    SmallLayer part(kHeads / 4, 4);
    const BoundWeights w = test::load_all(part, all, rank);
    EXPECT_EQ(floats_of(part.a_log), std::vector<float>(want.begin() + 3 * rank, want.begin() + 3 * rank + 3));
  }
  a_log.shape = {7};
  a_log.bytes.resize(28);
  SmallLayer part(kHeads / 4, 4);
  EXPECT_EQ(test::error_of([&] { test::load_all(part, all, 1); }),
            "update: tensor l.A_log: shape [7], expected at least 12 or, of one of 4 ranks, 3 elements");
}

TEST(Shard, AStoredPartIsTakenAsItIs) {
  const SmallLayer one(kHeads);
  const MemoryTensors all = one.whole();
  SmallLayer from_whole(kHeads / 3, 3), from_parts(kHeads / 3, 3);
  const BoundWeights a = test::load_all(from_whole, all, 1);
  MemoryTensors parts = all;
  for (const char* name : {"q", "k", "v", "g", "f_b", "qc", "kc", "vc"}) {
    MemoryTensor& t = parts["l." + std::string(name) + ".weight"];
    t = test::rows_of(t, kHeads * K / 3, kHeads * K / 3);
  }
  parts["l.b.weight"] = test::rows_of(all.at("l.b.weight"), 4, 4);
  parts["l.A_log"] = test::rows_of(all.at("l.A_log"), 4, 4);
  parts["l.dt_bias"] = test::rows_of(all.at("l.dt_bias"), kHeads * K / 3, kHeads * K / 3);
  const BoundWeights b = test::load_all(from_parts, parts, 1);
  EXPECT_EQ(from_parts.everything(), from_whole.everything());
}

TEST(Shard, MxColumnsAreDealtInWholeBlocks) {
  // o has 96 columns: three blocks, so three ranks have one each and two cannot share.
  const SmallLayer one(kHeads);
  MemoryTensors all = one.whole();
  all.erase("l.o.weight");
  all["l.o.weight_packed"] = test::random_bytes(DType::u8, {D, kHeads * K / 2}, 3, 256);
  all["l.o.weight_scale"] = test::random_bytes(DType::u8, {D, 3}, 4);
  for (int rank = 0; rank < 3; ++rank) {
    SmallLayer part(kHeads / 3, 3);
    const BoundWeights w = test::load_all(part, all, rank);
    for (int64_t r = 0; r < D; ++r) {
      EXPECT_EQ(part.o.row(r), all.at("l.o.weight_packed").bytes.data() + r * 48 + rank * 16);
      EXPECT_EQ(part.o.scale_row(r), all.at("l.o.weight_scale").bytes.data() + r * 3 + rank);
    }
  }
  SmallLayer part(kHeads / 2, 2);
  EXPECT_EQ(test::error_of([&] { test::load_all(part, all, 0); }),
            "update: tensor l.o.weight_packed: MXFP4 needs columns in multiples of 32, a rank's part has 48");
}

TEST(Shard, WhatCannotBeDealtIsRefusedWithBothNumbers) {
  EXPECT_EQ((Shard{0, 8}.share(96, "heads")), 12);
  EXPECT_EQ(test::error_of([] {
              (void)Shard{0, 5}.share(96, "heads");
            }),
            "heads: 96 cannot be dealt to 5 ranks in equal parts");
  SmallLayer layer(2);
  EXPECT_EQ(test::error_of([&] { BoundWeights::expect(layer.specs(), test::bind_options(4, 4)); }),
            "shard: rank 4 of 4, expected a rank in 0..ranks-1");
}

}  // namespace
}  // namespace kdelta
