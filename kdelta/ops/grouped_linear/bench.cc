#include "bench/support/bench.h"
#include "kdelta/ops/grouped_linear/variants.h"

namespace kdelta {
namespace {

struct Data {
  Buffer x, w, scale, out, row, begin;
  std::vector<Matrix> experts;
  int64_t step = 0;
};

// Experts' weights exceed every cache together; each call routes to others, as decode steps do.
std::shared_ptr<Data> make_data(DType wtype, int64_t P, int64_t per_expert, int64_t E, int64_t N, int64_t K) {
  const Matrix one = dense_matrix(nullptr, wtype, N, K);
  auto d = std::make_shared<Data>(Data{Buffer({}, P * K * 2),
                                       Buffer({}, E * N * one.row_bytes),
                                       Buffer({}, E * N * one.scale_row_bytes + 1),
                                       Buffer({}, P * N * 2),
                                       Buffer({}, P * 4),
                                       Buffer({}, (E + 1) * 4),
                                       {}});
  bench::fill(d->x.data(), d->x.bytes());
  bench::fill(d->w.data(), d->w.bytes());
  bench::fill_scales(static_cast<uint8_t*>(d->scale.data()), d->scale.bytes());
  for (int64_t e = 0; e < E; ++e) {
    Matrix w = one;
    w.data = static_cast<char*>(d->w.data()) + e * N * one.row_bytes;
    w.scale = static_cast<uint8_t*>(d->scale.data()) + e * N * one.scale_row_bytes;
    d->experts.push_back(w);
  }
  for (int64_t p = 0; p < P; ++p) static_cast<int32_t*>(d->row.data())[p] = static_cast<int32_t>(p / (P / per_expert));
  return d;
}

// P / per_expert experts with per_expert pairs each, evenly spread, moved on by one every call.
void route(Data& d, int64_t P, int64_t per_expert) {
  const auto E = static_cast<int64_t>(d.experts.size()), active = P / per_expert, stride = E / active;
  auto* begin = static_cast<int32_t*>(d.begin.data());
  const int64_t shift = d.step++ % stride;
  begin[0] = 0;
  for (int64_t e = 0; e < E; ++e)
    begin[e + 1] = begin[e] + static_cast<int32_t>(e % stride == shift && begin[e] < P ? per_expert : 0);
}

void add_grouped(const std::string& variant, DType wtype, int64_t P, int64_t per_expert, int64_t E, int64_t N,
                 int64_t K, bench::Roof roof) {
  const Matrix one = dense_matrix(nullptr, wtype, N, K);
  const double active = static_cast<double>(P / per_expert);
  const Cost cost{.bytes = active * static_cast<double>(one.bytes()) + static_cast<double>(P * (K + N) * 2),
                  .flops = 2.0 * static_cast<double>(P * N * K)};
  bench::add({.op = "grouped_linear",
              .variant = variant,
              .shape = str(P / per_expert, " of E=", E, " experts x ", per_expert, " N=", N, " K=", K, " w ",
                           dtype_name(wtype)),
              .cost = cost,
              .roof = roof,
              .make = [=] {
                auto d = make_data(wtype, P, per_expert, E, N, K);
                return [=] {
                  route(*d, P, per_expert);
                  grouped_linear(bench::exec_with("grouped_linear", variant),
                                 {.x = d->x.view(DType::bf16, {P, K}),
                                  .row = d->row.view<const int32_t>({P}),
                                  .expert_begin = d->begin.view<const int32_t>({E + 1}),
                                  .w = d->experts,
                                  .out = d->out.view(DType::bf16, {P, N})});
                };
              }});
}

KDELTA_BENCH(grouped_linear) {
  for (const std::string& variant : bench::fast_variants(grouped_linear_variants()))
    for (DType w : {DType::f4_e2m1, DType::bf16}) {
      const int64_t E = w == DType::f4_e2m1 ? 192 : 64;  // about 1 GB of weights
      add_grouped(variant, w, 16, 1, E, 3072, 3584, {bench::RoofKind::read});
      add_grouped(variant, w, 16 * 32, 32, E, 3072, 3584, {bench::RoofKind::tile_bf16});
    }
}

}  // namespace
}  // namespace kdelta
