// New weights for bound ones: all of an update or nothing of it.
#include <cmath>

#include "kdelta/model/test_weights.h"

namespace kdelta {
namespace {

using test::bytes_of;
using test::MemoryTensor;
using test::MemoryTensors;
using test::SmallLayer;
using testing::HasSubstr;

TEST(Update, TheSameTensorsInOneUpdateOrManyGiveTheSameLayer) {
  SmallLayer at_once(2), one_by_one(2);
  const MemoryTensors all = at_once.whole();
  const BoundWeights first = test::load_all(at_once, all);
  BoundWeights w = BoundWeights::expect(one_by_one.specs(), test::bind_options());
  w.allocate();
  for (auto it = all.rbegin(); it != all.rend(); ++it) {
    WeightUpdate update(w);
    put(update, it->first, it->second);
    update.commit();
  }
  w.finalize();
  EXPECT_EQ(one_by_one.everything(), at_once.everything());
}

TEST(Update, AReloadKeepsTheMemoryOfWhatIsMadeHere) {
  SmallLayer layer(2), expected(2);
  const MemoryTensors old = layer.whole(1), fresh = layer.whole(100);
  BoundWeights w = test::load_all(layer, old);
  const BoundWeights reference = test::load_all(expected, fresh);
  const void *f = layer.f.data, *conv = layer.conv.data, *a_log = layer.a_log.data, *dt_bias = layer.dt_bias.data;
  test::put_all(w, fresh);
  EXPECT_EQ(layer.everything(), expected.everything());
  EXPECT_EQ(layer.f.data, f);
  EXPECT_EQ(layer.conv.data, conv);
  EXPECT_EQ(layer.a_log.data, a_log);
  EXPECT_EQ(layer.dt_bias.data, dt_bias);
}

TEST(Update, WithoutCommitNothingChanges) {
  SmallLayer layer(2);
  const MemoryTensors old = layer.whole(1), fresh = layer.whole(100);
  BoundWeights w = test::load_all(layer, old);
  const std::vector<uint8_t> before = layer.everything();
  {
    WeightUpdate update(w);
    for (const auto& [name, tensor] : fresh) put(update, name, tensor);
  }
  EXPECT_EQ(layer.everything(), before);
  // Nor is it remembered: a later reload of f_a meets the old f_b.
  SmallLayer expected(2);
  MemoryTensors now = old;
  now["l.f_a.weight"] = fresh.at("l.f_a.weight");
  const BoundWeights reference = test::load_all(expected, now);
  WeightUpdate update(w);
  put(update, "l.f_a.weight", fresh.at("l.f_a.weight"));
  update.commit();
  EXPECT_EQ(layer.everything(), expected.everything());
}

// One bad tensor among good ones, each kind of bad in its turn, whatever the order of names.
TEST(Update, AFailedCommitChangesNothingAndTheNextOneWorks) {
  SmallLayer layer(2), expected(2);
  const MemoryTensors old = layer.whole(1), fresh = layer.whole(100);
  BoundWeights w = test::load_all(layer, old);
  const BoundWeights reference = test::load_all(expected, fresh);
  const std::vector<uint8_t> before = layer.everything();
  for (const auto& [name, tensor] : fresh) {
    MemoryTensors bad = fresh;
    bad[name].shape.back() += name == "l.A_log" ? -1 : 1;
    bad[name].bytes.resize(bad[name].bytes.size() * 2);
    EXPECT_THAT(test::error_of([&] { test::put_all(w, bad); }), HasSubstr(name + ": shape"));
    ASSERT_EQ(layer.everything(), before) << name;
  }
  MemoryTensors nan = fresh;
  const float not_a_number = NAN;
  std::memcpy(&nan["l.dt_bias"].bytes[8], &not_a_number, 4);
  EXPECT_THAT(test::error_of([&] { test::put_all(w, nan); }), HasSubstr("l.dt_bias: element 2 is"));
  EXPECT_EQ(layer.everything(), before);
  test::put_all(w, fresh);
  EXPECT_EQ(layer.everything(), expected.everything());
}

// q, k and v as MXFP8, in place of what was stored before.
MemoryTensors mxfp8_qkv(int64_t rows, uint64_t seed) {
  MemoryTensors t;
  for (const char* name : {"q", "k", "v"}) {
    t["l." + std::string(name) + ".weight"] = test::random_bytes(DType::f8_e4m3, {rows, SmallLayer::D}, ++seed, 100);
    t["l." + std::string(name) + ".weight_scale"] =
        test::random_bytes(DType::u8, {rows, SmallLayer::D / kMxBlock}, ++seed);
  }
  return t;
}

TEST(Update, APrecisionChangesForAWholeGroupOrNotAtAll) {
  SmallLayer layer(2);
  const MemoryTensors old = layer.whole(), quantised = mxfp8_qkv(2 * SmallLayer::K, 7);
  BoundWeights w = test::load_all(layer, old);
  const std::vector<uint8_t> before = layer.everything();
  EXPECT_EQ(test::error_of([&] {
              test::put_all(w, {{"l.k.weight", quantised.at("l.k.weight")},
                                {"l.k.weight_scale", quantised.at("l.k.weight_scale")}});
            }),
            "update: tensor l.k is MXFP8, l.q is floating point: expected one precision for q, k and v of a layer");
  EXPECT_EQ(layer.everything(), before);
  test::put_all(w, quantised);
  EXPECT_EQ(layer.k.dtype, DType::f8_e4m3);
  EXPECT_EQ(layer.k.data, quantised.at("l.k.weight").bytes.data());
  EXPECT_EQ(layer.k.scale, quantised.at("l.k.weight_scale").bytes.data());
  test::put_all(w, old);
  EXPECT_EQ(layer.everything(), before);
}

TEST(Update, CodesAndScalesOfAWeightInUseComeTogether) {
  SmallLayer layer(2);
  MemoryTensors all = layer.whole();
  for (const auto& [name, tensor] : mxfp8_qkv(2 * SmallLayer::K, 7)) all[name] = tensor;
  BoundWeights w = test::load_all(layer, all);  // the first load is one tensor at a time in any order
  const MemoryTensors fresh = mxfp8_qkv(2 * SmallLayer::K, 70);
  const std::vector<uint8_t> before = layer.everything();
  EXPECT_EQ(test::error_of([&] {
              test::put_all(w, {{"l.q.weight", fresh.at("l.q.weight")}});
            }),
            "update: tensor l.q.weight without l.q.weight_scale, expected both of a weight in use");
  EXPECT_EQ(test::error_of([&] {
              test::put_all(w, {{"l.q.weight_scale", fresh.at("l.q.weight_scale")}});
            }),
            "update: tensor l.q.weight_scale without its codes, expected both of a weight in use");
  EXPECT_EQ(layer.everything(), before);
  test::put_all(w, fresh);
  EXPECT_EQ(layer.q.scale, fresh.at("l.q.weight_scale").bytes.data());
}

TEST(Update, PackedCodesReplaceAPlainWeightAndTheReverse) {
  SmallLayer layer(2);
  const MemoryTensors old = layer.whole();
  BoundWeights w = test::load_all(layer, old);
  const std::vector<uint8_t> before = layer.everything();
  MemoryTensors packed;
  for (const char* name : {"l.q.weight", "l.k.weight", "l.v.weight"}) {
    packed[name + std::string("_packed")] = test::random_bytes(DType::u8, {16, 32}, 5, 256);
    packed[name + std::string("_scale")] = test::random_bytes(DType::u8, {16, 2}, 6);
  }
  test::put_all(w, packed);
  EXPECT_EQ(layer.q.dtype, DType::f4_e2m1);
  test::put_all(w, old);
  EXPECT_EQ(layer.everything(), before);
  packed["l.q.weight"] = old.at("l.q.weight");
  EXPECT_THAT(test::error_of([&] { test::put_all(w, packed); }), HasSubstr("expected one form of a weight"));
}

TEST(Update, UnknownNamesAreSaidAndImpossibleTensorsRefused) {
  SmallLayer layer(2);
  const MemoryTensors all = layer.whole();
  BoundWeights w = test::load_all(layer, all);
  WeightUpdate update(w);
  const float x = 0;
  EXPECT_FALSE(update.put("l.extra.weight", DType::f32, {1}, &x));
  EXPECT_THAT(test::error_of([&] {
                update.put("l.q.weight", DType::bf16, {16, 64}, nullptr);
              }),
              HasSubstr("null data"));
  EXPECT_THAT(test::error_of([&] {
                update.put("l.q.weight", DType::bf16, {int64_t{1} << 62, 64}, &x);
              }),
              HasSubstr("has no size"));
}

// The taps of a layer's three convolutions as one tensor: stored [C, W], or as the layer keeps them, [W, C].
MemoryTensor merged_taps(const MemoryTensors& all, int64_t channels, bool kept) {
  constexpr int64_t W = SmallLayer::kTaps;
  MemoryTensor t{DType::f32, {3 * channels, 1, W}, {}};
  for (const char* part : {"qc", "kc", "vc"}) {
    const std::vector<uint8_t>& bytes = all.at("l." + std::string(part) + ".weight").bytes;
    t.bytes.insert(t.bytes.end(), bytes.begin(), bytes.end());
  }
  if (!kept) return t;
  MemoryTensor packed{DType::f32, {W, 3 * channels}, t.bytes};
  for (int64_t c = 0; c < 3 * channels; ++c)
    for (int64_t j = 0; j < W; ++j)
      std::memcpy(&packed.bytes[static_cast<size_t>((j * 3 * channels + c) * 4)],
                  &t.bytes[static_cast<size_t>((c * W + j) * 4)], 4);
  return packed;
}

MemoryTensors without_convolutions(MemoryTensors all) {
  for (const char* part : {"l.qc.weight", "l.kc.weight", "l.vc.weight"}) all.erase(part);
  return all;
}

// Row 33.
TEST(Update, ConvolutionsAsOneTensorAreTheThreeOfThem) {
  for (const int ranks : {1, 3})
    for (const bool kept : {false, true}) {
      SmallLayer one(2, ranks), three(2, ranks);
      const MemoryTensors all = one.whole();
      MemoryTensors merged = without_convolutions(all);
      merged["l.conv.weight"] = merged_taps(all, 2 * ranks * SmallLayer::K, kept);
      const BoundWeights a = test::load_all(one, merged, ranks - 1), b = test::load_all(three, all, ranks - 1);
      EXPECT_EQ(test::floats_of(one.conv), test::floats_of(three.conv)) << ranks << " " << kept;
      merged["l.conv.weight"].shape = {3, 3};
      merged["l.conv.weight"].bytes.resize(36);
      EXPECT_THAT(test::error_of([&] { test::load_all(one, merged, 0); }),
                  testing::AllOf(HasSubstr("l.conv.weight: shape [3, 3], expected ["), HasSubstr("or [4, ")));
    }
}

TEST(Update, AConvolutionAsItIsKeptWinsAndALaterReloadOfTheThreeWinsOverIt) {
  SmallLayer layer(2);
  const MemoryTensors old = layer.whole(1), fresh = layer.whole(100), third = layer.whole(200);
  const MemoryTensor kept = merged_taps(fresh, 2 * SmallLayer::K, true);
  BoundWeights w = test::load_all(layer, old);
  const float* address = layer.conv.data;
  MemoryTensors both = third;
  both["l.conv.weight"] = kept;
  test::put_all(w, both);  // with the three of another model beside it, put before and after by name
  const auto expect_taps = [&](const MemoryTensors& tensors) {
    SmallLayer expected(2);
    const BoundWeights reference = test::load_all(expected, tensors);
    EXPECT_EQ(test::floats_of(layer.conv), test::floats_of(expected.conv));
    EXPECT_EQ(layer.conv.data, address);
  };
  expect_taps(fresh);
  test::put_all(w, old);
  expect_taps(old);
  test::put_all(w, both);
  // One of three has no meaning beside a merged tensor: refused, nothing changes.
  SmallLayer again(2);
  BoundWeights merged_only = BoundWeights::expect(again.specs(), test::bind_options());
  merged_only.allocate();
  MemoryTensors one_tensor = without_convolutions(fresh);
  one_tensor["l.conv.weight"] = kept;
  test::put_all(merged_only, one_tensor);
  const std::vector<uint8_t> before = again.everything();
  WeightUpdate update(merged_only);
  put(update, "l.qc.weight", old.at("l.qc.weight"));
  EXPECT_EQ(test::error_of([&] { update.commit(); }), "update: tensor l.kc.weight: missing");
  EXPECT_EQ(again.everything(), before);
}

}  // namespace
}  // namespace kdelta
