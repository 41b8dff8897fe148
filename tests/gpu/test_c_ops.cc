// The C interface on a CUDA device: the calls of kdelta/api/test_c_calls.h with their memory moved there.
#include <gtest/gtest.h>

#include <iterator>
#include <thread>

#include "kdelta/api/test_c_direct.h"
#include "kdelta/core/buffer.h"
#include "kdelta/core/cuda/runtime.h"
#include "kdelta/core/error.h"
#include "kdelta/core/graph.h"
#include "kdelta/ops/kda/decode.h"

namespace kdelta {
namespace {

using test::Argument;
using test::Call;

constexpr Device kDevice{DeviceKind::cuda, 0};

// Widths that have kernels of their own, which those of kCalls have not.
Call wide_kda() {
  Call c;
  auto a = test::calls::connect<kdelta_kda_args>(c, "kda", kdelta_kda, kdelta_kda_workspace);
  test::calls::Maker m(c);
  const test::calls::Layout z;
  const int64_t H = 1, W = 128;  // an argument has at most 1 MB
  using test::calls::kIn, test::calls::kOut;
  m.add("q", &a->q, kIn, test::kBf16, {z.T, H, W}, {3 * H * W, W, 1});
  m.add("k", &a->k, kIn, test::kBf16, {z.T, H, W});
  m.add("v", &a->v, kIn, test::kBf16, {z.T, H, W});
  m.add("gate", &a->gate, kIn, test::kBf16, {z.T, H, W});
  m.add("beta", &a->beta, kIn, test::kBf16, {z.T, H});
  m.add("a_log", &a->a_log, kIn, test::kF32, {H});
  m.add("dt_bias", &a->dt_bias, kIn, test::kF32, {H, W});
  test::calls::sequences(m, a->seq, z);
  m.add("state", &a->state, kOut, test::kF32, {z.slots, H, W, W});
  m.add("out", &a->out, kOut, test::kBf16, {z.T, H, W});
  a->scale = 0.09f;
  return c;
}

Call wide_decode() {
  Call c;
  auto a =
      test::calls::connect<kdelta_kda_decode_args>(c, "kda_decode", kdelta_kda_decode, kdelta_kda_decode_workspace);
  test::calls::Maker m(c);
  const int64_t T = 4, H = 2, W = 128, C = 3 * H * W;
  using test::calls::kIn, test::calls::kOut;
  m.add("qkv", &a->qkv, kIn, test::kBf16, {T, C});
  m.add("conv_weight", &a->conv_weight, kIn, test::kF32, {4, C});
  m.add("decay", &a->decay, kIn, test::kBf16, {T, H, W});
  m.add("beta", &a->beta, kIn, test::kBf16, {T, H});
  m.add("a_log", &a->a_log, kIn, test::kF32, {H});
  m.add("dt_bias", &a->dt_bias, kIn, test::kF32, {H, W});
  m.add("gate", &a->gate, kIn, test::kBf16, {T, H, W});
  m.add("norm_weight", &a->norm_weight, kIn, test::kF32, {W});
  m.integers("cu", &a->seq.cu, {0, 1, 2, 3}, {4});
  m.integers("slot", &a->seq.slot, {2, 1, -1}, {3, 1});
  m.integers("accepted", &a->seq.accepted, {1, 1, 1}, {3});
  Argument& fresh = m.add("fresh", &a->seq.fresh, kIn, test::kU8, {3});
  for (int n = 0; n < 3; ++n) fresh.as<uint8_t>()[n] = n == 1;
  m.add("state", &a->state, kOut, test::kF32, {4, H, W, W});
  m.add("window", &a->window, kOut, test::kBf16, {4, 3, C});
  m.add("out", &a->out, kOut, test::kBf16, {T, H, W});
  a->seq.n_decode = 3;
  a->seq.max_len = 1;
  a->scale = 0.09f;
  a->norm_eps = 1e-5f;
  return c;
}

constexpr size_t kCalls = std::size(test::kCalls) + 2;
Call make(size_t i) {
  return i < std::size(test::kCalls) ? test::kCalls[i]() : i + 1 < kCalls ? wide_kda() : wide_decode();
}

class COpsCuda : public testing::Test {
 protected:
  COpsCuda() : stream(kDevice), scratch(kDevice, int64_t{64} << 20) {
    const kdelta_context_options there{.device_type = kDLCUDA, .device_id = 0};
    EXPECT_EQ(kdelta_context_create(&there, &context), KDELTA_OK) << kdelta_last_error();
  }
  ~COpsCuda() override { kdelta_context_destroy(context); }

  // The call's memory, guards included, in a copy on the device, at which its views then point.
  struct There {
    std::vector<Buffer> buffers;
    std::vector<std::vector<unsigned char>> bytes(Stream& s) const {
      std::vector<std::vector<unsigned char>> out;
      for (const Buffer& b : buffers) {
        out.emplace_back(static_cast<size_t>(b.bytes()));
        copy_async(s, out.back().data(), b.data(), b.bytes());
      }
      s.synchronize();
      return out;
    }
  };
  There move(Call& c) {
    There there;
    for (auto& a : c.arguments) {
      const auto& memory = a->memory();
      Buffer& b = there.buffers.emplace_back(kDevice, static_cast<int64_t>(memory.size()));
      copy_async(stream, b.data(), memory.data(), b.bytes());
      a->view.data = static_cast<char*>(b.data()) + (a->as<unsigned char>() - memory.data());
      a->view.device = {kDLCUDA, 0};
    }
    stream.synchronize();
    return there;
  }
  kdelta_status run(Call& c) {
    kdelta_launch launch{.stream = stream.handle(), .workspace = scratch.data()};
    if (const kdelta_status s = c.workspace(context, &launch.workspace_bytes); s != KDELTA_OK) return s;
    EXPECT_LE(launch.workspace_bytes, static_cast<size_t>(scratch.bytes()));
    return c.run(context, &launch);
  }
  // What the op itself refuses the call with; empty when it runs.
  std::string run_itself(Call& c) {
    Buffer own(kDevice, int64_t{64} << 20);
    Arena arena(own.data(), own.bytes());
    const Options options;
    const Exec ex{.device = kDevice, .stream = &stream, .scratch = &arena, .options = &options};
    try {
      if (std::string(c.op) == "kda_decode") {
        const auto& a = test::args_of<kdelta_kda_decode_args>(c);
        kda_decode(ex, {.qkv = test::view(c, "qkv"),
                        .conv_weight = test::typed<float>(c, "conv_weight"),
                        .decay = test::view(c, "decay"),
                        .beta = test::view(c, "beta"),
                        .a_log = test::typed<float>(c, "a_log"),
                        .dt_bias = test::typed<float>(c, "dt_bias"),
                        .scale = a.scale,
                        .gate = test::view(c, "gate"),
                        .norm_weight = test::typed<float>(c, "norm_weight"),
                        .norm_eps = a.norm_eps,
                        .seq = test::sequences(c, a.seq),
                        .state = test::view(c, "state"),
                        .window = test::view(c, "window"),
                        .out = test::view(c, "out")});
      } else {
        test::run_op(ex, c);
      }
    } catch (const Error& e) {
      return e.what();
    }
    stream.synchronize();
    return "";
  }

  Stream stream;
  Buffer scratch;
  kdelta_context* context = nullptr;
};

class COpsCudaEvery : public COpsCuda, public testing::WithParamInterface<size_t> {};

TEST_P(COpsCudaEvery, GivesTheBitsAndTheRefusalsOfTheOpItself) {
  Call through = make(GetParam()), direct = make(GetParam());
  const There a = move(through), b = move(direct);
  const auto before = a.bytes(stream);
  const std::string refused = run_itself(direct);
  const kdelta_status status = run(through);
  EXPECT_EQ(status == KDELTA_OK, refused.empty()) << kdelta_last_error();
  if (!refused.empty()) {
    EXPECT_EQ(kdelta_last_error(), refused);
    EXPECT_STREQ(through.op, "kda_decode") << "of K = 32 alone there is no kernel";
  }
  const auto got = a.bytes(stream), want = b.bytes(stream);
  EXPECT_TRUE(got == want);
  EXPECT_EQ(got != before, refused.empty());
}

TEST_P(COpsCudaEvery, CanBeRecordedAndReplayed) {
  Call eager = make(GetParam()), recorded = make(GetParam());
  const There a = move(eager), b = move(recorded);
  if (run(eager) == KDELTA_UNSUPPORTED) GTEST_SKIP() << kdelta_last_error();
  const auto want = a.bytes(stream), before = b.bytes(stream);
  const Options options;
  const Exec ex{.device = kDevice, .stream = &stream, .options = &options};
  const Graph graph = Graph::capture(ex, [&] { EXPECT_EQ(run(recorded), KDELTA_OK) << kdelta_last_error(); });
  EXPECT_TRUE(b.bytes(stream) == before);
  EXPECT_GE(graph.nodes().size(), 1u);
  graph.launch(stream);
  EXPECT_TRUE(b.bytes(stream) == want);
}

TEST_P(COpsCudaEvery, RefusesByNameWhatLiesElsewhereAndWritesNothing) {
  const std::pair<DLDevice, const char*> elsewhere[] = {
      {{kDLCPU, 0}, "on the CPU, expected cuda:0"},
      {{kDLCUDAHost, 0}, "on the CPU (kDLCUDAHost, pinned memory), expected cuda:0"},
      {{kDLCUDA, 1}, "on cuda:1, expected cuda:0"}};
  Call c = make(GetParam());
  const There there = move(c);
  const auto before = there.bytes(stream);
  for (auto& a : c.arguments)
    for (const auto& [device, words] : elsewhere) {
      const DLDevice right = a->view.device;
      a->view.device = device;
      EXPECT_EQ(run(c), KDELTA_INVALID_ARGUMENT) << a->name;
      EXPECT_EQ(kdelta_last_error(), std::string(c.op) + ": " + a->name + ": " + words);
      a->view.device = right;
    }
  EXPECT_TRUE(there.bytes(stream) == before);
}

INSTANTIATE_TEST_SUITE_P(Calls, COpsCudaEvery, testing::Range<size_t>(0, kCalls), [](const auto& of) {
  return std::string(make(of.param).op) + "_" + std::to_string(of.param);
});

TEST_F(COpsCuda, ManagedMemoryOfTheDeviceIsTaken) {
  Call managed = test::calls::activation(), plain = test::calls::activation();
  const There a = move(managed), b = move(plain);
  for (auto& argument : managed.arguments) argument->view.device = {kDLCUDAManaged, 0};
  ASSERT_EQ(run(managed), KDELTA_OK) << kdelta_last_error();
  ASSERT_EQ(run(plain), KDELTA_OK) << kdelta_last_error();
  EXPECT_TRUE(a.bytes(stream) == b.bytes(stream));
}

TEST_F(COpsCuda, RowsThatAreWrongAreSkippedAndRaiseTheirBit) {
  Call c = wide_decode();
  c.at("slot").as<int32_t>()[0] = 99;
  const There there = move(c);
  Buffer word = Buffer::zeros(kDevice, 4);
  kdelta_launch launch{
      .stream = stream.handle(), .workspace = scratch.data(), .faults = static_cast<uint32_t*>(word.data())};
  ASSERT_EQ(c.workspace(context, &launch.workspace_bytes), KDELTA_OK) << kdelta_last_error();
  ASSERT_EQ(c.run(context, &launch), KDELTA_OK) << kdelta_last_error();
  uint32_t faults = 0;
  copy_async(stream, &faults, word.data(), 4);
  stream.synchronize();
  EXPECT_EQ(faults, 1u << 3);
}

// A thread that had no current device has none behind a call: other runtimes of the process would find ours.
TEST_F(COpsCuda, TheThreadsCurrentDeviceStaysWhatItWas) {
  void *get = nullptr, *set = nullptr;
  ASSERT_EQ(cudaGetDriverEntryPointByVersion("cuCtxGetCurrent", &get, 12000, cudaEnableDefault, nullptr), cudaSuccess);
  ASSERT_EQ(cudaGetDriverEntryPointByVersion("cuCtxSetCurrent", &set, 12000, cudaEnableDefault, nullptr), cudaSuccess);
  const auto current = [get] {
    void* found = nullptr;
    EXPECT_EQ(reinterpret_cast<int (*)(void**)>(get)(&found), 0);
    return found;
  };
  Call c = test::calls::activation();
  const There there = move(c);
  void* const ours = current();
  EXPECT_NE(ours, nullptr);
  ASSERT_EQ(run(c), KDELTA_OK) << kdelta_last_error();
  EXPECT_EQ(current(), ours);
  std::thread([&] {
    ASSERT_EQ(reinterpret_cast<int (*)(void*)>(set)(nullptr), 0);
    kdelta_launch launch{.stream = stream.handle()};
    EXPECT_EQ(c.run(context, &launch), KDELTA_OK) << kdelta_last_error();
    EXPECT_EQ(current(), nullptr);
  }).join();
  stream.synchronize();
}

TEST_F(COpsCuda, ASmallWorkspaceIsRefusedWithTheSizeThatIsNeeded) {
  Call c = wide_kda();
  const There there = move(c);
  size_t bytes = 0;
  ASSERT_EQ(c.workspace(context, &bytes), KDELTA_OK) << kdelta_last_error();
  ASSERT_GT(bytes, 64u);
  const kdelta_launch launch{.stream = stream.handle(), .workspace = scratch.data(), .workspace_bytes = 64};
  EXPECT_EQ(c.run(context, &launch), KDELTA_INVALID_ARGUMENT);
  EXPECT_EQ(kdelta_last_error(),
            "kda: workspace: 64 bytes, expected at least " + std::to_string(bytes) + " (kdelta_kda_workspace)");
}

}  // namespace
}  // namespace kdelta
