#include "bench/support/bench.h"
#include "kdelta/ops/dequant_situ/variants.h"

namespace kdelta {
namespace {

// 256 MB of gate|up of K3's experts to int8 rows.
void add_dequant_situ(const std::string& variant, DType dtype) {
  const int64_t N = 3072, bytes = dtype_bytes(dtype), T = (int64_t{256} << 20) / (2 * N * bytes);
  DequantSituArgs shape{.x = AnyConstView(nullptr, dtype, {T, 2 * N})};
  bench::add({.op = "dequant_situ",
              .variant = variant,
              .shape = str("T=", T, " N=", N, " ", dtype_name(dtype)),
              .cost = dequant_situ_cost(shape),
              .roof = {bench::RoofKind::update, T * 2 * N * bytes},
              .make = [=] {
                auto x = std::make_shared<Buffer>(Device{}, T * 2 * N * bytes);
                auto y = std::make_shared<Buffer>(Device{}, T * N);
                auto rows = std::make_shared<Buffer>(Device{}, 2 * T * 4),
                     columns = std::make_shared<Buffer>(Device{}, 8 * N);
                bench::fill(x->data(), x->bytes());
                std::fill_n(static_cast<float*>(rows->data()), 2 * T, 1e-3f);
                std::fill_n(static_cast<float*>(columns->data()), 2 * N, 1e-6f);
                return [=]() mutable {
                  DequantSituArgs a = shape;
                  a.x = x->view(dtype, {T, 2 * N});
                  a.y = y->view<int8_t>({T, N});
                  a.scale = View<float>(static_cast<float*>(rows->data()) + T, {T});
                  if (dtype != DType::bf16) a.weight_scale = columns->view<float>({2 * N});
                  if (dtype == DType::i32)
                    a.activation_scale = View<const float>(static_cast<float*>(rows->data()), {T});
                  dequant_situ(bench::exec_with("dequant_situ", variant), a);
                };
              }});
}

KDELTA_BENCH(dequant_situ) {
  for (const std::string& variant : bench::fast_variants(dequant_situ_variants()))
    for (DType dtype : {DType::i8, DType::i32, DType::bf16}) add_dequant_situ(variant, dtype);
}

}  // namespace
}  // namespace kdelta
