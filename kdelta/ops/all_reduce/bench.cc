#include "bench/support/bench.h"
#include "kdelta/ops/all_reduce/variants.h"

namespace kdelta {
namespace {

constexpr int kCalls = 50;  // of one measurement: starting the ranks is not what is timed

// Ranks of one thread each over D = 7168: what a step adds to a decode row and to a prefill of 512 tokens.
void add_all_reduce(const std::string& variant, int ranks, int64_t T) {
  constexpr int64_t D = 7168;
  const AllReduceArgs shape{.partial = AnyConstView(nullptr, DType::f32, {T, D}),
                            .out = AnyView(nullptr, DType::bf16, {T, D})};
  Cost cost = all_reduce_cost(shape, ranks);
  cost.bytes *= ranks * kCalls;
  cost.flops *= ranks * kCalls;
  bench::add({.op = "all_reduce",
              .variant = variant,
              .shape = str(kCalls, " calls of ", ranks, " ranks, T=", T, " D=", D, " to bf16"),
              .cost = cost,
              .roof = {bench::RoofKind::update, ranks * T * D * 6},
              .make = [=] {
                auto partial = std::make_shared<Buffer>(Device{}, ranks * T * D * 4),
                     out = std::make_shared<Buffer>(Device{}, ranks * T * D * 2);
                for (int64_t i = 0; i < ranks * T * D; ++i) static_cast<float*>(partial->data())[i] = 1;
                return [=] {
                  run_ranks(ranks, [&](Communicator& comm) {
                    ThreadPool alone(1);
                    Exec ex = bench::exec_with("all_reduce", variant);
                    Arena scratch(Device{}, 0);
                    ex.threads = &alone;
                    ex.scratch = &scratch;
                    ex.comm = &comm;
                    const int64_t at = comm.rank() * T * D;
                    for (int i = 0; i < kCalls; ++i)
                      all_reduce(
                          ex, {.partial = AnyConstView(static_cast<float*>(partial->data()) + at, DType::f32, {T, D}),
                               .out = AnyView(static_cast<bf16*>(out->data()) + at, DType::bf16, {T, D})});
                  });
                };
              }});
}

KDELTA_BENCH(all_reduce) {
  for (const std::string& variant : bench::fast_variants(all_reduce_variants()))
    for (const int64_t T : {1, 512}) add_all_reduce(variant, 2, T);
}

}  // namespace
}  // namespace kdelta
