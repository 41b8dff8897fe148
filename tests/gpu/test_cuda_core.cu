// The device layer on a device: order of streams, forks, graphs, pinned copies, refusals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kdelta/ops/common/cuda/device.cuh"
#include "kdelta/ops/common/cuda/launch.cuh"
#include "tests/gpu/effect_case.h"
#include "tests/gpu/roof.h"
#include "tests/support/op_test.h"

namespace kdelta::test {
namespace {

__global__ void add_one(int32_t* x) {
  *x += 1;
}
__global__ void times_three(const int32_t* x, int32_t* y) {
  cuda::pdl_wait();
  *y = *x * 3;
}

void enqueue_add_one(const Exec& ex, int32_t* x) {
  cuda::launch(ex, "add_one", {.grid = 1, .block = 1}, add_one, x);
}
void enqueue_times_three(const Exec& ex, const int32_t* x, int32_t* y) {
  cuda::launch(ex, "times_three", {.grid = 1, .block = 1}, times_three, x, y);
}

// main: x += 1; then beside each other y = 3 x (side) and x2 += 1 (main); then main: z = 3 y.
struct Diamond {
  Buffer memory{kCuda, 64};
  int32_t* x = static_cast<int32_t*>(memory.data());

  void reset(Stream& stream) { fill_async(stream, x, 0, 64); }
  void enqueue(const Exec& ex, int64_t main_delay = 0, int64_t side_delay = 0) {
    enqueue_add_one(ex, x);
    Fork side(ex);
    if (side_delay > 0) gpu_bench::enqueue_delay(*side.exec().stream, side_delay);
    enqueue_times_three(side, x, x + 1);
    if (main_delay > 0) gpu_bench::enqueue_delay(*ex.stream, main_delay);
    enqueue_add_one(ex, x + 2);
    side.join();
    enqueue_times_three(ex, x + 1, x + 3);
  }
  std::vector<int32_t> result(Stream& stream) {
    std::vector<int32_t> out(4);
    copy_async(stream, out.data(), x, 16);
    stream.synchronize();
    return out;
  }
};

TEST(CudaFork, GivesTheSerialResultWhicheverQueueIsDelayed) {
  CudaExec ex;
  Diamond d;
  for (const auto& [main_delay, side_delay] : {std::pair<int64_t, int64_t>{0, 0}, {3'000'000, 0}, {0, 3'000'000}}) {
    d.reset(ex.stream());
    d.enqueue(ex, main_delay, side_delay);
    EXPECT_THAT(d.result(ex.stream()), testing::ElementsAre(1, 3, 1, 9));
  }
}

TEST(CudaFork, WithoutASecondQueueRunsInOrderOnOne) {
  CudaExec ex;
  Diamond d;
  ex.mutable_exec().aux = nullptr;
  d.reset(ex.stream());
  d.enqueue(ex);
  EXPECT_THAT(d.result(ex.stream()), testing::ElementsAre(1, 3, 1, 9));
}

TEST(CudaGraph, OfAForkIsADiamondWithTheSidesTailJoined) {
  CudaExec ex;
  Diamond d;
  d.reset(ex.stream());
  d.enqueue(ex);
  const Graph graph = Graph::capture(ex, [&] { d.enqueue(ex); });
  const auto nodes = graph.nodes();
  ASSERT_EQ(nodes.size(), 4u);
  for (const auto& n : nodes) EXPECT_EQ(n.kind, "kernel");
  EXPECT_THAT(nodes[0].name, testing::HasSubstr("add_one"));
  std::vector<std::pair<int, int>> edges;
  for (const auto& e : graph.edges()) {
    edges.push_back({e.from, e.to});
    EXPECT_FALSE(e.programmatic);
  }
  // Nodes are numbered as they were enqueued: 0 add, 1 times (side), 2 add (main), 3 times behind both.
  EXPECT_THAT(edges, testing::UnorderedElementsAre(testing::Pair(0, 1), testing::Pair(0, 2), testing::Pair(1, 3),
                                                   testing::Pair(2, 3)));
}

TEST(CudaGraph, ReplaysReadTheContentsOfTheMoment) {
  CudaExec ex;
  Diamond d;
  d.reset(ex.stream());
  const Graph graph = Graph::capture(ex, [&] { d.enqueue(ex); });
  EXPECT_THAT(d.result(ex.stream()), testing::ElementsAre(0, 0, 0, 0)) << "capture executed something";
  for (int i = 1; i <= 3; ++i) {
    graph.launch(ex.stream());
    EXPECT_THAT(d.result(ex.stream()), testing::ElementsAre(i, 3 * i, i, 9 * i));
  }
}

TEST(CudaGraph, AnUnjoinedForkIsRefusedByNameAndTheDeviceGoesOn) {
  CudaExec ex;
  Diamond d;
  EXPECT_THAT(error_of([&] {
                (void)Graph::capture(ex, [&] {
                  Fork side(ex);
                  enqueue_add_one(side, d.x);
                });
              }),
              testing::HasSubstr("never joined"));
  d.reset(ex.stream());
  d.enqueue(ex);
  EXPECT_THAT(d.result(ex.stream()), testing::ElementsAre(1, 3, 1, 9));
}

TEST(CudaGraph, AnAllocationInsideIsRefusedAndTheDeviceGoesOn) {
  CudaExec ex;
  Diamond d;
  EXPECT_NE(error_of([&] { (void)Graph::capture(ex, [&] { Buffer inside(kCuda, 1 << 20); }); }), "no error");
  d.reset(ex.stream());
  d.enqueue(ex);
  EXPECT_THAT(d.result(ex.stream()), testing::ElementsAre(1, 3, 1, 9));
}

TEST(CudaLaunch, ProgrammaticEdgesAppearInTheGraphAndKeepTheOrder) {
  CudaExec ex;
  Diamond d;
  if (device_properties(kCuda).level < CudaLevel::sm90a) GTEST_SKIP() << "needs programmatic dependent launch";
  d.reset(ex.stream());
  const Graph graph = Graph::capture(ex, [&] {
    enqueue_add_one(ex, d.x);
    cuda::launch(ex, "times_three", {.grid = 1, .block = 1, .pdl = true}, times_three, d.x, d.x + 1);
  });
  ASSERT_EQ(graph.edges().size(), 1u);
  EXPECT_TRUE(graph.edges()[0].programmatic);
  graph.launch(ex.stream());
  EXPECT_EQ(d.result(ex.stream())[1], 3);
}

TEST(CudaCopies, PinnedMemoryGoesThereAndBack) {
  CudaExec ex;
  HostBuffer a(kCuda, 4096), b(kCuda, 4096);
  Buffer device(kCuda, 4096);
  for (int i = 0; i < 1024; ++i) a.as<int32_t>()[i] = i * 7, b.as<int32_t>()[i] = -1;
  copy_async(ex.stream(), device.data(), a.data(), 4096);
  fill_async(ex.stream(), static_cast<char*>(device.data()) + 8, 0, 8);
  copy_async(ex.stream(), b.data(), device.data(), 4096);
  Event done(kCuda);
  ex.stream().record(done);
  done.synchronize();
  EXPECT_TRUE(done.done());
  for (int i = 0; i < 1024; ++i) EXPECT_EQ(b.as<int32_t>()[i], i == 2 || i == 3 ? 0 : i * 7);
}

TEST(CudaDevice, ReportsWhatTheCardIsAndRefusesOnesThatAreNotThere) {
  const DeviceProperties& p = device_properties(kCuda);
  EXPECT_GT(p.multiprocessors, 0);
  EXPECT_GT(p.l2_bytes, 0);
  EXPECT_LE(device_free_bytes(kCuda), p.memory_bytes);
  EXPECT_EQ(device_refusal(kCuda), "");
  EXPECT_THAT(error_of([] { (void)device_properties({DeviceKind::cuda, 63}); }), testing::HasSubstr("cuda:63"));
  EXPECT_THAT(error_of([] { Stream s({DeviceKind::cuda, 63}); }), testing::HasSubstr("cuda:63"));
}

TEST(CudaDevice, TooLargeAnAllocationIsAClearErrorAndLeavesNoErrorBehind) {
  EXPECT_THAT(error_of([] { Buffer b(kCuda, int64_t{1} << 50); }),
              testing::AllOf(testing::HasSubstr("cannot allocate"), testing::HasSubstr("cuda:0")));
  CudaExec ex;
  Diamond d;
  d.reset(ex.stream());
  d.enqueue(ex);
  EXPECT_THAT(d.result(ex.stream()), testing::ElementsAre(1, 3, 1, 9));
}

}  // namespace
}  // namespace kdelta::test
