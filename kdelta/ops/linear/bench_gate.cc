// The decay gate of a KDA layer in its two forms, beside the projections that share its call: factored, [g | f_a | b]
// and then f_b, against composed, [g | F | b] with F = f_b f_a. kdelta/model/gate_table.inc is made from the results.
#include <memory>

#include "bench/support/bench.h"
#include "kdelta/ops/linear/linear.h"

namespace kdelta {
namespace {

struct Gate {
  int64_t T, D, P, R, heads;
  bool composed;

  int64_t middle() const { return composed ? P : R; }  // rows of f in the shared call
  int64_t bytes() const { return ((P + middle() + heads) * D + (composed ? 0 : P * R)) * 2; }
};

// One layer's weights after another, so that they come from memory as in a model.
struct GateData {
  Gate g;
  int64_t copies;
  Buffer weights, x, gate, low, decay, beta;
  int64_t next = 0;

  GateData(const Gate& gate_shape, int64_t footprint)
      : g(gate_shape),
        copies(std::max<int64_t>(1, footprint / g.bytes())),
        weights({}, copies * g.bytes()),
        x({}, g.T * g.D * 2),
        gate({}, g.T * g.P * 2),
        low({}, g.T * g.R * 2),
        decay({}, g.T * g.P * 2),
        beta({}, g.T * g.heads * 4) {
    bench::fill(weights.data(), weights.bytes());
    bench::fill(x.data(), x.bytes());
  }

  void run() {
    const char* at = static_cast<const char*>(weights.data()) + next++ % copies * g.bytes();
    const auto matrix = [&](int64_t rows, int64_t cols) {
      const Matrix m = dense_matrix(at, DType::bf16, rows, cols);
      at += m.bytes();
      return m;
    };
    const AnyView decay_out = decay.view(DType::bf16, {g.T, g.P});
    const AnyView f_out = g.composed ? decay_out : low.view(DType::bf16, {g.T, g.R});
    const Matrix first = matrix(g.P, g.D);
    const LinearPart more[] = {{matrix(g.middle(), g.D), f_out},
                               {matrix(g.heads, g.D), beta.view(DType::f32, {g.T, g.heads})}};
    linear(bench::exec(),
           {.x = x.view(DType::bf16, {g.T, g.D}), .w = first, .out = gate.view(DType::bf16, {g.T, g.P}), .more = more});
    if (!g.composed) linear(bench::exec(), {.x = f_out, .w = matrix(g.P, g.R), .out = decay_out});
  }
};

void add_gate(const Gate& g) {
  const bench::Roof roof{bench::RoofKind::read, int64_t{256} << 20};
  const Cost cost{.bytes = static_cast<double>(g.bytes()), .flops = static_cast<double>(g.T * g.bytes())};
  bench::add({.op = "kda_gate",
              .variant = g.composed ? "composed" : "factored",
              .shape = str("T=", g.T, " D=", g.D, " P=", g.P, " R=", g.R),
              .cost = cost,
              .roof = roof,
              .make = [=] {
                auto data = std::make_shared<GateData>(g, roof.footprint);
                return [data] { data->run(); };
              }});
}

KDELTA_BENCH(kda_gate) {
  struct Model {
    int64_t D, P;
  };
  // tiny-k3, Kimi-Linear by 8 ranks and whole, K3 by 16, by 8 and whole.
  for (const Model& m : {Model{256, 256}, {2304, 512}, {2304, 4096}, {7168, 768}, {7168, 1536}, {7168, 12288}})
    for (int64_t T : {1, 4, 16, 64, 256})
      for (bool composed : {false, true})
        add_gate({.T = T, .D = m.D, .P = m.P, .R = 128, .heads = m.P / 128, .composed = composed});
}

}  // namespace
}  // namespace kdelta
