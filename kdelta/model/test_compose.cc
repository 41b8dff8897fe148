// F = f_b f_a: its numerics, and when it is made.
#include <cmath>

#include "kdelta/model/compose.h"
#include "kdelta/model/test_weights.h"

namespace kdelta {
namespace {

using test::bytes_of;
using test::MemoryTensor;
using test::MemoryTensors;
using test::SmallLayer;
using testing::HasSubstr;

Matrix view(const MemoryTensor& t) {
  return dense_matrix(t.bytes.data(), t.dtype, t.shape[0], t.shape[1]);
}

float at(const Matrix& m, int64_t row, int64_t col) {
  std::vector<float> out(static_cast<size_t>(m.cols));
  dequantize_row(m, row, out.data());
  return out[static_cast<size_t>(col)];
}

Options two_threads() {
  Options o;
  o.threads = 2;
  return o;
}

// Row 1: within one half unit of the last place of the true product, and what fp32 sums may be off by.
TEST(Compose, EqualsTheProductInFp32RoundedOnce) {
  Composer composer(two_threads());
  for (const auto& [N, R, D] : {std::array<int64_t, 3>{1, 1, 1}, {7, 5, 33}, {48, 128, 160}, {1030, 16, 70}})
    for (DType b_type : {DType::bf16, DType::f32})
      for (DType a_type : {DType::bf16, DType::f32}) {
        SCOPED_TRACE(str(N, " ", R, " ", D, " ", dtype_name(b_type), " ", dtype_name(a_type)));
        const MemoryTensor b = test::random_matrix(b_type, N, R, 1), a = test::random_matrix(a_type, R, D, 2);
        const DType out_type = composed_dtype(b_type, a_type);
        EXPECT_EQ(out_type, b_type == a_type ? b_type : DType::f32);
        std::vector<uint8_t> out(static_cast<size_t>(N * D * dtype_bytes(out_type)), 0xff);
        composer.compose(view(b), view(a), out.data());
        const Matrix f = dense_matrix(out.data(), out_type, N, D);
        for (int64_t n = 0; n < N; n += N / 5 + 1)
          for (int64_t d = 0; d < D; d += 3) {
            double want = 0, magnitude = 0;
            for (int64_t r = 0; r < R; ++r) {
              const double product = static_cast<double>(at(view(b), n, r)) * static_cast<double>(at(view(a), r, d));
              want += product, magnitude += std::fabs(product);
            }
            const double half_unit = std::fabs(want) * (out_type == DType::bf16 ? 0x1p-8 : 0x1p-24);
            ASSERT_NEAR(at(f, n, d), want, half_unit + magnitude * 0x1p-22) << n << " " << d;
          }
      }
}

TEST(Compose, ARowOfTheProductDependsOnItsOwnRowAlone) {
  Composer composer(two_threads());
  const MemoryTensor b = test::random_matrix(DType::bf16, 1100, 24, 3), a = test::random_matrix(DType::bf16, 24, 96, 4);
  std::vector<uint8_t> all(1100 * 96 * 2), part(17 * 96 * 2);
  composer.compose(view(b), view(a), all.data());
  composer.compose(view(b).slice_rows(1020, 17), view(a), part.data());
  EXPECT_EQ(0, std::memcmp(part.data(), all.data() + 1020 * 96 * 2, part.size()));
}

// What F must be for these tensors.
std::vector<uint8_t> product(const MemoryTensor& b, const MemoryTensor& a) {
  Composer composer(two_threads());
  std::vector<uint8_t> out(static_cast<size_t>(b.shape[0] * a.shape[1] * 2));
  composer.compose(view(b), view(a), out.data());
  return out;
}

// Row 1.
TEST(Compose, EveryOrderOfLoadingGivesTheSameGate) {
  SmallLayer layer(2);
  const MemoryTensors all = layer.whole();
  const std::vector<uint8_t> want = product(all.at("l.f_b.weight"), all.at("l.f_a.weight"));
  std::vector<std::string> order = {"l.b.weight", "l.f_a.weight", "l.f_b.weight", "l.g.weight"};
  int orders = 0;
  do {
    SmallLayer fresh(2);
    BoundWeights w = BoundWeights::expect(fresh.specs(), test::bind_options());
    w.allocate();
    for (const std::string& name : order) {
      EXPECT_EQ(fresh.f.data == nullptr, std::find(order.begin(), order.end(), name) <=
                                             std::max(std::find(order.begin(), order.end(), "l.f_a.weight"),
                                                      std::find(order.begin(), order.end(), "l.f_b.weight")))
          << "one factor alone composes nothing, both do at once";
      WeightUpdate update(w);
      put(update, name, all.at(name));
      update.commit();
    }
    EXPECT_EQ(bytes_of(fresh.f), want);
    EXPECT_EQ(bytes_of(fresh.b), all.at("l.b.weight").bytes);
    EXPECT_EQ(bytes_of(fresh.g), all.at("l.g.weight").bytes);
    ++orders;
  } while (std::next_permutation(order.begin(), order.end()));
  EXPECT_EQ(orders, 24);
}

// Row 9.
TEST(Compose, GlobalAndLocalFactorsGiveEveryRankItsRowsOfTheWhole) {
  constexpr int64_t kHeads = 48, kRows = kHeads * SmallLayer::K, kRow = SmallLayer::D * 2;
  SmallLayer one(kHeads);
  const MemoryTensors all = one.whole();
  const MemoryTensor& f_b = all.at("l.f_b.weight");
  const std::vector<uint8_t> whole = product(f_b, all.at("l.f_a.weight"));
  for (int ranks : {1, 2, 3, 4, 6, 8, 16})
    for (int rank = 0; rank < ranks; ++rank) {
      const int64_t rows = kRows / ranks;
      const std::vector<uint8_t> want(whole.begin() + rank * rows * kRow, whole.begin() + (rank + 1) * rows * kRow);
      for (const bool local : {false, true}) {
        SmallLayer layer(kHeads / ranks, ranks);
        MemoryTensors tensors = all;
        if (local) tensors["l.f_b.weight"] = test::rows_of(f_b, rank * rows, rows);
        const BoundWeights w = test::load_all(layer, tensors, rank);
        ASSERT_EQ(bytes_of(layer.f), want) << "rank " << rank << " of " << ranks << (local ? ", local" : ", global");
      }
    }
}

// Rows 9 and 16.
TEST(Compose, WrongShapesAreRefusedWithBothThatAreAccepted) {
  const auto refusal = [](const std::string& name, std::vector<int64_t> shape) {
    SmallLayer layer(2, 4);
    MemoryTensors tensors = layer.whole();
    tensors[name] = test::random_matrix(DType::bf16, shape[0], shape[1], 5);
    return test::error_of([&] { test::load_all(layer, tensors, 1); });
  };
  EXPECT_EQ(refusal("l.f_b.weight", {32, 8}),
            "update: tensor l.f_b.weight: shape [32, 8], expected [64, 8] or, the part of one of 4 ranks, [16, 8]");
  EXPECT_EQ(refusal("l.f_b.weight", {64, 7}),
            "update: tensor l.f_b.weight: shape [64, 7], expected [64, 8] or, the part of one of 4 ranks, [16, 8]");
  EXPECT_EQ(refusal("l.f_a.weight", {2, 64}), "update: tensor l.f_a.weight: shape [2, 64], expected [8, 64]")
      << "f_a is whole on every rank";
}

// Row 16: a rank that does not exist; a part of f_b for a weight of which every rank holds the whole.
TEST(Compose, ARankThatIsNoneAndAPartOfWhatIsNotShardedAreRefused) {
  SmallLayer layer(2, 4);
  EXPECT_EQ(test::error_of([&] { (void)BoundWeights::expect(layer.specs(), test::bind_options(4, 4)); }),
            "shard: rank 4 of 4, expected a rank in 0..ranks-1");
  std::vector<PlacedSpec> specs = layer.specs();
  for (PlacedSpec& p : specs) p.spec.shard = ShardRule::whole;
  BoundWeights w = BoundWeights::expect(specs, test::bind_options(1, 4));
  WeightUpdate update(w);
  put(update, "l.f_a.weight", test::random_matrix(DType::bf16, 8, 64, 1));
  put(update, "l.f_b.weight", test::random_matrix(DType::bf16, 64, 8, 2));
  EXPECT_EQ(test::error_of([&] { update.commit(); }), "update: tensor l.f_b.weight: shape [64, 8], expected [16, 8]");
}

// Row 14: which tensors came before there was memory.
TEST(Compose, WhatCameBeforeMemoryIsMadeWhenThereIsSome) {
  SmallLayer layer(2);
  const MemoryTensors all = layer.whole();
  const std::vector<std::string> names = {"l.b.weight", "l.f_a.weight", "l.f_b.weight", "l.g.weight"};
  SmallLayer direct(2);
  const BoundWeights reference = test::load_all(direct, all);
  for (unsigned early = 0; early < 16; ++early) {
    SmallLayer fresh(2);
    BoundWeights w = BoundWeights::expect(fresh.specs(), test::bind_options());
    MemoryTensors late = all;
    for (size_t i = 0; i < names.size(); ++i) {
      if ((early >> i & 1) == 0) continue;
      WeightUpdate update(w);
      put(update, names[i], all.at(names[i]));
      update.commit();
      late.erase(names[i]);
    }
    EXPECT_EQ(fresh.f.data, nullptr);
    EXPECT_THAT(test::error_of([&] { w.finalize(); }), HasSubstr("missing"));
    w.allocate();
    EXPECT_EQ(fresh.f.data != nullptr, (early & 6) == 6) << early;
    test::put_all(w, late);
    w.finalize();
    EXPECT_EQ(fresh.everything(), direct.everything()) << early;
  }
}

TEST(Compose, FinalizeFailsWhenSourcesCameAndNothingWasComposed) {
  SmallLayer layer(2);
  const MemoryTensors all = layer.whole();
  BoundWeights w = BoundWeights::expect(layer.specs(), test::bind_options());
  test::put_all(w, all);
  EXPECT_EQ(test::error_of([&] { w.finalize(); }),
            "weights: l.f_b was loaded and never composed: allocate() comes before finalize()");
  w.allocate();
  EXPECT_EQ(test::error_of([&] { w.finalize(); }), "no error");
}

// Row 2.
TEST(Compose, AReloadOfEitherFactorOrBothComposesAgainInTheSameMemory) {
  SmallLayer layer(2);
  const MemoryTensors old = layer.whole(1), fresh = layer.whole(100);
  for (const std::vector<std::string>& names :
       {std::vector<std::string>{"l.f_a.weight"}, {"l.f_b.weight"}, {"l.f_a.weight", "l.f_b.weight"}}) {
    BoundWeights w = test::load_all(layer, old);
    const void* address = layer.f.data;
    const std::vector<uint8_t> before = bytes_of(layer.f), g = bytes_of(layer.g), b = bytes_of(layer.b);
    MemoryTensors now = old;
    WeightUpdate update(w);
    for (const std::string& name : names) {
      put(update, name, fresh.at(name));
      now[name] = fresh.at(name);
    }
    EXPECT_EQ(bytes_of(layer.f), before) << "nothing changes before commit";
    update.commit();
    EXPECT_EQ(layer.f.data, address);
    EXPECT_EQ(bytes_of(layer.f), product(now.at("l.f_b.weight"), now.at("l.f_a.weight")));
    EXPECT_NE(bytes_of(layer.f), before);
    EXPECT_EQ(bytes_of(layer.g), g);
    EXPECT_EQ(bytes_of(layer.b), b);
  }
}

TEST(Compose, AQuantisedFactorIsRefusedByName) {
  SmallLayer layer(4);
  MemoryTensors all = layer.whole();
  all["l.f_a.weight"] = test::random_bytes(DType::f8_e4m3, {8, 64}, 1, 100);
  all["l.f_a.weight_scale"] = test::random_bytes(DType::u8, {8, 2}, 2);
  EXPECT_EQ(test::error_of([&] { test::load_all(layer, all); }),
            "l.f_b (floating point) and l.f_a (MXFP8): a quantised factor cannot be composed");
}

}  // namespace
}  // namespace kdelta
