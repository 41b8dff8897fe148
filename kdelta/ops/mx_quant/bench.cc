#include "bench/support/bench.h"
#include "kdelta/ops/mx_quant/variants.h"

namespace kdelta {
namespace {

struct Form {
  std::string name;
  DType format;
  MxScaleRule rule = MxScaleRule::floor;
  bool situ = false;
};

// About 256 MB of bf16 in, codes and scales out. 7168 is the width of K3's activations, 3072 that of its experts.
constexpr int64_t kInputBytes = int64_t{256} << 20;

void add_quantize(const std::string& variant, const Form& form, int64_t N) {
  const int64_t columns = form.situ ? 2 * N : N, T = kInputBytes / (2 * columns);
  MxQuantizeArgs a{.format = form.format,
                   .rule = form.rule,
                   .x = AnyConstView(nullptr, DType::bf16, {T, columns}),
                   .codes = View<uint8_t>(nullptr, {T, mx_code_bytes(form.format, N)}),
                   .scale = View<uint8_t>(nullptr, {T, mx_scale_bytes(N)}),
                   .situ = form.situ};
  bench::add({.op = "mx_quantize",
              .variant = variant,
              .shape = str(form.name, " T=", T, " N=", N, " bf16"),
              .cost = mx_quantize_cost(a),
              .roof = {bench::RoofKind::update, kInputBytes},
              .make = [=] {
                auto x = std::make_shared<Buffer>(Device{}, kInputBytes);
                auto codes = std::make_shared<Buffer>(Device{}, a.codes.shape.numel());
                auto scale = std::make_shared<Buffer>(Device{}, a.scale.shape.numel());
                bench::fill(x->data(), x->bytes());
                return [=]() mutable {
                  a.x = x->view(DType::bf16, {T, columns});
                  a.codes = codes->view<uint8_t>(a.codes.shape);
                  a.scale = scale->view<uint8_t>(a.scale.shape);
                  mx_quantize(bench::exec_with("mx_quantize", variant), a);
                };
              }});
}

void add_dequantize(const std::string& variant, const Form& form, int64_t N) {
  const int64_t T = kInputBytes / (2 * N);
  MxDequantizeArgs a{.format = form.format,
                     .codes = View<const uint8_t>(nullptr, {T, mx_code_bytes(form.format, N)}),
                     .scale = View<const uint8_t>(nullptr, {T, mx_scale_bytes(N)}),
                     .out = AnyView(nullptr, DType::bf16, {T, N})};
  bench::add({.op = "mx_dequantize",
              .variant = variant,
              .shape = str(form.name, " T=", T, " N=", N, " bf16"),
              .cost = mx_dequantize_cost(a),
              .roof = {bench::RoofKind::update, kInputBytes},
              .make = [=] {
                auto out = std::make_shared<Buffer>(Device{}, kInputBytes);
                auto codes = std::make_shared<Buffer>(Device{}, a.codes.shape.numel());
                auto scale = std::make_shared<Buffer>(Device{}, a.scale.shape.numel());
                bench::fill(codes->data(), codes->bytes());
                bench::fill_scales(static_cast<uint8_t*>(scale->data()), scale->bytes());
                return [=]() mutable {
                  a.codes = codes->view<uint8_t>(a.codes.shape);
                  a.scale = scale->view<uint8_t>(a.scale.shape);
                  a.out = out->view(DType::bf16, {T, N});
                  mx_dequantize(bench::exec_with("mx_dequantize", variant), a);
                };
              }});
}

KDELTA_BENCH(mx_quantize) {
  constexpr std::pair<const char*, MxScaleRule> kRules[] = {
      {"floor", MxScaleRule::floor}, {"rceil", MxScaleRule::rceil}, {"even", MxScaleRule::even}};
  constexpr std::pair<const char*, DType> kFormats[] = {
      {"E4M3", DType::f8_e4m3}, {"E5M2", DType::f8_e5m2}, {"E2M1", DType::f4_e2m1}};
  for (const std::string& variant : bench::fast_variants(mx_quantize_variants())) {
    for (const auto& [format_name, format] : kFormats)
      for (const auto& [rule_name, rule] : kRules)
        add_quantize(variant, {str(format_name, " ", rule_name), format, rule}, 7168);
    add_quantize(variant, {"situ E4M3 floor", DType::f8_e4m3, MxScaleRule::floor, true}, 3072);
  }
}

KDELTA_BENCH(mx_dequantize) {
  for (const std::string& variant : bench::fast_variants(mx_dequantize_variants()))
    for (const Form& form : {Form{"E4M3", DType::f8_e4m3}, Form{"E2M1", DType::f4_e2m1}})
      add_dequantize(variant, form, 7168);
}

}  // namespace
}  // namespace kdelta
