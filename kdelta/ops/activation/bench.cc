#include "bench/support/bench.h"
#include "kdelta/ops/activation/variants.h"

namespace kdelta {
namespace {

struct Form {
  const char* name;
  ActivationKind kind;
};

// out = gate over about 512 MB: two reads and a write of 33792 columns, the dense MLP of K3.
void add_activation(const std::string& variant, const Form& form, DType dtype) {
  const int64_t N = 33792, bytes = dtype_bytes(dtype), T = (int64_t{512} << 20) / (2 * N * bytes);
  ActivationArgs shape{.kind = form.kind,
                       .beta = 4,
                       .linear_beta = 25,
                       .gate = AnyConstView(nullptr, dtype, {T, N}),
                       .up = AnyConstView(nullptr, dtype, {T, N}),
                       .out = AnyView(nullptr, dtype, {T, N})};
  bench::add({.op = "activation",
              .variant = variant,
              .shape = str(form.name, " T=", T, " N=", N, " ", dtype_name(dtype), " in place"),
              .cost = activation_cost(shape),
              .roof = {bench::RoofKind::update, int64_t{512} << 20},
              .make = [=] {
                auto gate = std::make_shared<Buffer>(Device{}, T * N * bytes);
                auto up = std::make_shared<Buffer>(Device{}, T * N * bytes);
                for (const auto& buffer : {gate, up}) bench::fill(buffer->data(), buffer->bytes());
                return [=]() mutable {
                  shape.gate = shape.out = gate->view(dtype, {T, N});
                  shape.up = up->view(dtype, {T, N});
                  activation(bench::exec_with("activation", variant), shape);
                };
              }});
}

KDELTA_BENCH(activation) {
  for (const std::string& variant : bench::fast_variants(activation_variants()))
    for (const Form& form : {Form{"swiglu", ActivationKind::swiglu}, Form{"situ", ActivationKind::situ},
                             Form{"sigmoid_gate", ActivationKind::sigmoid_gate}}) {
      add_activation(variant, form, DType::bf16);
      add_activation(variant, form, DType::f32);
    }
}

}  // namespace
}  // namespace kdelta
