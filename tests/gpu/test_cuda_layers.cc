// A layer on the device: which of its ops are fused, and that this changes no bit.
#include "kdelta/layers/kda/kda.h"
#include "tests/gpu/layer_arrays.h"

namespace kdelta::test {
namespace {

class OpNames final : public OpObserver {
 public:
  void on_op(std::string_view op, std::string_view, const Cost&) override { names.emplace_back(op); }
  std::vector<std::string> names;
};

// A KDA layer of two heads of 128 channels and its pools, with random contents on the device.
class Layer {
 public:
  static constexpr int64_t kHidden = 256, kHeads = 2, kDim = 128, kRows = 3, kSlots = 5;

  explicit Layer(Stream& stream)
      : layer({.hidden = kHidden,
               .heads = kHeads,
               .head_dim = kDim,
               .conv_width = 4,
               .full_rank_gate = true,
               .bounded_gate = true,
               .lower_bound = -5,
               .norm_eps = 1e-5f}),
        arrays_(stream),
        stream_(stream) {
    arrays_.bind(layer.weights());
  }
  // One step over copies of the same pools and inputs: output, states and windows.
  std::vector<bf16> step(const Exec& ex) {
    arrays_.seed(5);
    const AnyView pools[] = {
        AnyView(arrays_.random<float>(kSlots * kHeads * kDim * kDim, 0.3f), DType::f32, {kSlots, kHeads, kDim, kDim}),
        AnyView(arrays_.random<bf16>(kSlots * 3 * kWidth, 1.0f), DType::bf16, {kSlots, 3, kWidth})};
    const AnyView x(arrays_.random<bf16>(kRows * kHidden, 1.0f), DType::bf16, {kRows, kHidden});
    const AnyView out(arrays_.random<bf16>(kRows * kHidden, 1.0f), DType::bf16, {kRows, kHidden});
    Batch b;
    b.n_decode = kRows, b.max_len = 1;
    b.cu = {arrays_.put<int32_t>({0, 1, 2, 3}), {kRows + 1}}, b.slot = {arrays_.put<int32_t>({2, -1, 4}), {kRows, 1}};
    b.accepted = {arrays_.put<int32_t>({1, 1, 1}), {kRows}}, b.fresh = {arrays_.put<uint8_t>({0, 0, 1}), {kRows}};
    b.context = b.accepted, b.snapshot = {arrays_.put<int32_t>({0, 0, -1}), {1, 3}};
    layer.forward(ex, b, pools, x, {}, out);
    std::vector<bf16> all(
        static_cast<size_t>(kRows * kHidden + kSlots * kHeads * kDim * kDim * 2 + kSlots * 3 * kWidth));
    bf16* to = all.data();
    for (const AnyView& v : {out, pools[0], pools[1]}) {
      const int64_t bytes = v.shape.numel() * dtype_bytes(v.dtype);
      copy_async(stream_, to, v.data, bytes);
      to += bytes / 2;
    }
    stream_.synchronize();
    return all;
  }
  KdaLayer layer;

 private:
  static constexpr int64_t kWidth = 3 * kHeads * kDim;
  LayerArrays arrays_;
  Stream& stream_;
};

TEST(CudaLayers, ADecodeStepOfKdaIsFusedAndHasTheBitsOfItsParts) {
  CudaExec device;
  Layer layer(device.stream());
  for (const int64_t overlap : {0, 64}) {
    Options options;
    options.overlap_rows = overlap;
    OpNames ops, parts;
    Exec ex = device.exec();
    ex.options = &options, ex.observer = &ops;
    const std::vector<bf16> fused = layer.step(ex);
    options.force["gated_norm"] = "cuda";
    ex.observer = &parts;
    const std::vector<bf16> apart = layer.step(ex);
    EXPECT_EQ(std::memcmp(fused.data(), apart.data(), fused.size() * sizeof(bf16)), 0);
    const auto count = [](const OpNames& seen, const char* op) {
      return std::count(seen.names.begin(), seen.names.end(), op);
    };
    EXPECT_EQ(count(ops, "kda_decode"), 1);
    EXPECT_EQ(count(ops, "kda") + count(ops, "short_conv") + count(ops, "gated_norm"), 0);
    EXPECT_EQ(count(parts, "kda_decode"), 0);
    EXPECT_EQ(count(parts, "kda"), 1);
    EXPECT_EQ(ops.names.size() + 2, parts.names.size());
  }
  EXPECT_EQ(device.take_faults(), 0u);
}

}  // namespace
}  // namespace kdelta::test
