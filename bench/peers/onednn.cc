// oneDNN's bf16 matmul as a peer of linear: the same shapes in the same run. "file" takes the weights as they lie in a
// checkpoint, "packed" lets oneDNN choose a layout once, outside the timing (a second copy that linear does not keep).
#include <dnnl.hpp>

#include <memory>
#include <unordered_map>

#include "bench/support/bench.h"
#include "kdelta/ops/linear/linear.h"

namespace kdelta {
namespace {

using dnnl::memory;

struct Matmul {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  dnnl::matmul op;
  std::unordered_map<int, memory> args;

  Matmul(int64_t T, int64_t N, int64_t K, bool packed) {
    const memory::desc x({T, K}, memory::data_type::bf16, memory::format_tag::ab);
    const memory::desc w({K, N}, memory::data_type::bf16, memory::format_tag::ba);
    const memory::desc any({K, N}, memory::data_type::bf16, memory::format_tag::any);
    const memory::desc out({T, N}, memory::data_type::bf16, memory::format_tag::ab);
    const dnnl::matmul::primitive_desc plan(dnnl::matmul::desc(x, packed ? any : w, out), engine);
    op = dnnl::matmul(plan);
    memory file(w, engine), weights(plan.weights_desc(), engine);
    bench::fill(file.get_data_handle(), N * K * 2);
    dnnl::reorder(file, weights).execute(stream, file, weights);
    stream.wait();
    args = {{DNNL_ARG_SRC, memory(x, engine)}, {DNNL_ARG_WEIGHTS, weights}, {DNNL_ARG_DST, memory(out, engine)}};
    bench::fill(args.at(DNNL_ARG_SRC).get_data_handle(), T * K * 2);
  }
  void run() {
    op.execute(stream, args);
    stream.wait();
  }
};

void add_peer(int64_t T, int64_t N, int64_t K, bool packed) {
  const Matrix w = dense_matrix(nullptr, DType::bf16, N, K);
  const Cost cost = linear_cost(
      {.x = AnyConstView(nullptr, DType::bf16, {T, K}), .w = w, .out = AnyView(nullptr, DType::bf16, {T, N})});
  bench::add({.op = "linear",
              .variant = packed ? "onednn_packed" : "onednn_file",
              .shape = str("T=", T, " N=", N, " K=", K, " x BF16 w BF16"),
              .cost = cost,
              .roof = {bench::RoofKind::tile_bf16},
              .make = [=] {
                auto matmul = std::make_shared<Matmul>(T, N, K, packed);
                return [=] { matmul->run(); };
              }});
}

KDELTA_BENCH(onednn) {
  for (int64_t T : {16, 256, 1024})
    for (bool packed : {false, true}) add_peer(T, 2048, 7168, packed);
}

}  // namespace
}  // namespace kdelta
