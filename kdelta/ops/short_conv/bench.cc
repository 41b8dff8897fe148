#include "bench/support/bench.h"
#include "kdelta/ops/short_conv/variants.h"

namespace kdelta {
namespace {

// The sequences of a call: N of `len` tokens, as prefill or as decode rows.
struct Load {
  int64_t N, len;
  bool decode;
  const char* name;
};

struct Data {
  Data(const Load& load, int64_t C, DType dtype)
      : x(Device{}, load.N * load.len * C * dtype_bytes(dtype)),
        out(Device{}, x.bytes()),
        weight(Device{}, 4 * C * 4),
        state(Device{}, (load.N + 1) * 3 * C * dtype_bytes(dtype)),
        accepted(static_cast<size_t>(load.N), 1),
        fresh(static_cast<size_t>(load.N), 0) {
    for (Buffer* buffer : {&x, &state}) bench::fill(buffer->data(), buffer->bytes());
    for (int64_t i = 0; i < 4 * C; ++i) static_cast<float*>(weight.data())[i] = 0.25f;
    for (int64_t n = 0; n < load.N; ++n) {
      cu.push_back(static_cast<int32_t>((n + 1) * load.len));
      slot.push_back(static_cast<int32_t>(n + 1));
    }
  }
  Buffer x, out, weight, state;
  std::vector<int32_t> cu{0}, slot, accepted;
  std::vector<uint8_t> fresh;
};

// 36864 channels: q, k and v of K3's 96 heads of 128. Input and output are different arrays: the written lines are
// fetched first, a third transfer that neither the cost nor the update roof counts.
void add_short_conv(const std::string& variant, const Load& load, DType dtype) {
  const int64_t C = 36864, T = load.N * load.len;
  ShortConvArgs shape{.x = AnyConstView(nullptr, dtype, {T, C}), .weight = {nullptr, {4, C}}};
  (load.decode ? shape.seq.n_decode : shape.seq.n_prefill) = static_cast<int>(load.N);
  bench::add({.op = "short_conv",
              .variant = variant,
              .shape = str(load.name, " N=", load.N, " len=", load.len, " C=", C, " ", dtype_name(dtype)),
              .cost = short_conv_cost(shape),
              .roof = {bench::RoofKind::update, int64_t{512} << 20},
              .make = [=] {
                auto data = std::make_shared<Data>(load, C, dtype);
                return [=]() mutable {
                  shape.x = data->x.view(dtype, {T, C});
                  shape.out = data->out.view(dtype, {T, C});
                  shape.weight = data->weight.view<float>({4, C});
                  shape.state = data->state.view(dtype, {load.N + 1, 3, C});
                  shape.seq.cu = {data->cu.data(), {load.N + 1}};
                  shape.seq.slot = {data->slot.data(), {load.N, 1}};
                  shape.seq.accepted = {data->accepted.data(), {load.N}};
                  shape.seq.fresh = {data->fresh.data(), {load.N}};
                  short_conv(bench::exec_with("short_conv", variant), shape);
                };
              }});
}

KDELTA_BENCH(short_conv) {
  for (const std::string& variant : bench::fast_variants(short_conv_variants())) {
    add_short_conv(variant, {1, 3600, false, "prefill"}, DType::bf16);
    add_short_conv(variant, {1, 1800, false, "prefill"}, DType::f32);
    add_short_conv(variant, {900, 1, true, "decode"}, DType::bf16);
  }
}

}  // namespace
}  // namespace kdelta
