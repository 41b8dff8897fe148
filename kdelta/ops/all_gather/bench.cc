#include "bench/support/bench.h"
#include "kdelta/ops/all_gather/variants.h"

namespace kdelta {
namespace {

constexpr int kCalls = 50;  // of one measurement: starting the ranks is not what is timed

// Logits of a vocabulary of 163,840 in two halves.
void add_all_gather(int64_t rows) {
  constexpr int kRanks = 2;
  constexpr int64_t W = 163840 / kRanks;
  const AllGatherArgs shape{.part = AnyConstView(nullptr, DType::f32, {rows, W}),
                            .out = AnyView(nullptr, DType::f32, {rows, kRanks * W})};
  Cost cost = all_gather_cost(shape);
  cost.bytes *= kRanks * kCalls;
  bench::add({.op = "all_gather",
              .variant = "copy",
              .shape = str(kCalls, " calls of ", kRanks, " ranks, T=", rows, " W=", W, " f32"),
              .cost = cost,
              .roof = {bench::RoofKind::update, kRanks * rows * W * 12},
              .make = [=] {
                auto part = std::make_shared<Buffer>(Device{}, kRanks * rows * W * 4),
                     out = std::make_shared<Buffer>(Device{}, kRanks * kRanks * rows * W * 4);
                for (int64_t i = 0; i < kRanks * rows * W; ++i) static_cast<float*>(part->data())[i] = 1;
                return [=] {
                  run_ranks(kRanks, [&](Communicator& comm) {
                    ThreadPool alone(1);
                    Exec ex = bench::exec_with("all_gather", "copy");
                    Arena scratch(Device{}, 0);
                    ex.threads = &alone;
                    ex.scratch = &scratch;
                    ex.comm = &comm;
                    const int64_t at = comm.rank() * rows * W;
                    for (int i = 0; i < kCalls; ++i)
                      all_gather(ex,
                                 {.part = AnyConstView(static_cast<float*>(part->data()) + at, DType::f32, {rows, W}),
                                  .out = AnyView(static_cast<float*>(out->data()) + kRanks * at, DType::f32,
                                                 {rows, kRanks * W})});
                  });
                };
              }});
}

KDELTA_BENCH(all_gather) {
  for (const int64_t rows : {1, 16}) add_all_gather(rows);
}

}  // namespace
}  // namespace kdelta
