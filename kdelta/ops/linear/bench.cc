#include "bench/support/bench.h"
#include "kdelta/ops/linear/variants.h"

namespace kdelta {
namespace {

struct Data {
  Buffer x, w, scale, out;
  int64_t next = 0;
};

// Decode: one token against matrices that together exceed every cache, a different one each call. Prefill: T tokens,
// one matrix.
void add_linear(const std::string& variant, DType xtype, DType wtype, int64_t T, int64_t N, int64_t K,
                bench::Roof roof) {
  const Matrix one = dense_matrix(nullptr, wtype, N, K);
  const int64_t copies = T == 1 ? std::max<int64_t>(1, roof.footprint / one.bytes()) : 1;
  const LinearArgs shape{.x = AnyConstView(nullptr, xtype, {T, K}), .w = one, .out = AnyView(nullptr, xtype, {T, N})};
  const std::string name = str("T=", T, " N=", N, " K=", K, " x ", dtype_name(xtype), " w ", dtype_name(wtype));
  bench::add({.op = "linear", .variant = variant, .shape = name, .cost = linear_cost(shape), .roof = roof, .make = [=] {
                auto d = std::make_shared<Data>(
                    Data{Buffer({}, T * K * dtype_bytes(xtype)), Buffer({}, copies * N * one.row_bytes),
                         Buffer({}, copies * N * one.scale_row_bytes + 1), Buffer({}, T * N * 4)});
                for (Buffer* b : {&d->x, &d->w}) bench::fill(b->data(), b->bytes());
                bench::fill_scales(static_cast<uint8_t*>(d->scale.data()), d->scale.bytes());
                return [=] {
                  const int64_t i = d->next++ % copies;
                  Matrix w = one;
                  w.data = static_cast<char*>(d->w.data()) + i * N * one.row_bytes;
                  w.scale = static_cast<uint8_t*>(d->scale.data()) + i * N * one.scale_row_bytes;
                  linear(bench::exec_with("linear", variant),
                         {.x = d->x.view(xtype, {T, K}), .w = w, .out = d->out.view(xtype, {T, N})});
                };
              }});
}

// One token and the weights of a KDA layer, heads q | k | v | g of P rows, f_a of 128 and beta of P / 128, a different
// layer each call: a call for each matrix, one call of parts, one call over a copy that lies in one piece.
enum class Merge { calls, parts, packed };

void add_merged(const std::string& variant, int64_t T, int64_t P, int64_t K, Merge merge) {
  const std::vector<int64_t> rows = {P, P, P, P, 128, P / 128};
  int64_t N = 0;
  for (int64_t r : rows) N += r;
  const bench::Roof roof{bench::RoofKind::read};
  const Matrix whole = dense_matrix(nullptr, DType::bf16, N, K);
  const int64_t copies = std::max<int64_t>(1, roof.footprint / whole.bytes());
  const LinearArgs shape{
      .x = AnyConstView(nullptr, DType::bf16, {T, K}), .w = whole, .out = AnyView(nullptr, DType::bf16, {T, N})};
  constexpr const char* kNames[] = {"calls", "parts", "packed"};
  const std::string name = str("kda ", kNames[static_cast<int>(merge)], " T=", T, " P=", P, " K=", K, " w bf16");
  bench::add({.op = "linear", .variant = variant, .shape = name, .cost = linear_cost(shape), .roof = roof, .make = [=] {
                auto d = std::make_shared<Data>(Data{Buffer({}, T * K * 2), Buffer({}, copies * whole.bytes()),
                                                     Buffer({}, 1), Buffer({}, T * N * 2)});
                for (Buffer* b : {&d->x, &d->w}) bench::fill(b->data(), b->bytes());
                return [=] {
                  Matrix w = whole;
                  w.data = static_cast<char*>(d->w.data()) + d->next++ % copies * whole.bytes();
                  const AnyView x = d->x.view(DType::bf16, {T, K}), out = d->out.view(DType::bf16, {T, N});
                  const Exec& ex = bench::exec_with("linear", variant);
                  if (merge == Merge::packed) return linear(ex, {.x = x, .w = w, .out = out});
                  std::vector<LinearPart> parts;
                  for (int64_t at = 0; int64_t r : rows) {
                    parts.push_back({w.slice_rows(at, r), out.columns(at, r)});
                    at += r;
                  }
                  if (merge == Merge::parts)
                    return linear(ex,
                                  {.x = x, .w = parts[0].w, .out = parts[0].out, .more = std::span(parts).subspan(1)});
                  for (const LinearPart& p : parts) linear(ex, {.x = x, .w = p.w, .out = p.out});
                };
              }});
}

bool serves(const LinearVariant& row, DType x, DType w) {
  return refusal(row, LinearDesc{.target = {.isa = detect_isa()}, .x = x, .w = w}) == nullptr;
}

KDELTA_BENCH(linear) {
  for (const LinearVariant& row : linear_variants()) {
    if (std::string_view(row.name) == "reference") continue;
    for (DType w : {DType::bf16, DType::f4_e2m1, DType::f8_e4m3, DType::f8_e5m2})
      if (serves(row, DType::bf16, w)) {
        add_linear(row.name, DType::bf16, w, 1, 3072, 7168, {bench::RoofKind::read});
        add_linear(row.name, DType::bf16, w, 1, 2304, 2304, {bench::RoofKind::read});
        for (int64_t T : {16, 256, 1024})
          add_linear(row.name, DType::bf16, w, T, 2048, 7168, {bench::RoofKind::tile_bf16});
      }
    if (serves(row, DType::bf16, DType::bf16))
      for (int64_t P : {256, 1024})
        for (int64_t T : {1, 4})
          for (Merge merge : {Merge::calls, Merge::parts, Merge::packed})
            add_merged(row.name, T, P, P == 256 ? 256 : 2304, merge);
    if (!serves(row, DType::f32, DType::bf16)) continue;
    add_linear(row.name, DType::f32, DType::bf16, 1, 3072, 7168, {bench::RoofKind::read});
    add_linear(row.name, DType::f32, DType::bf16, 64, 2048, 7168, {bench::RoofKind::fma_f32});
  }
}

}  // namespace
}  // namespace kdelta
