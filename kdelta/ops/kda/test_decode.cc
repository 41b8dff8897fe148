// kda_decode on the CPU: what it refuses, and what it is made of.
#include "kdelta/ops/gated_norm/gated_norm.h"
#include "kdelta/ops/kda/decode_variants.h"
#include "kdelta/ops/short_conv/short_conv.h"
#include "tests/support/op_test.h"

namespace kdelta::test {
namespace {

constexpr int64_t kH = 2, kK = 6, kV = 5, kC = kH * (2 * kK + kV), kT = 4, kSlots = 4;

// Rows: slot 2, fresh slot 1, padding; one token behind them.
struct Step {
  Step() {
    Rng rng(3);
    for (auto* x : {&qkv, &decay, &gate, &window}) fill_normal(*x, rng);
    for (auto* x : {&beta, &taps, &a_log, &dt_bias, &norm, &state}) fill_normal(*x, rng);
    for (int64_t i = 2 * kH * kV; i < gate.size(); ++i) gate[i] = from_float<bf16>(NAN);
    const int32_t begins[] = {0, 1, 2, 3}, own[] = {2, 1, -1};
    std::copy(begins, begins + 4, &cu[0]), std::copy(own, own + 3, &slot[0]);
    for (int64_t n = 0; n < 3; ++n) accepted[n] = 1, fresh[n] = n == 1;
  }
  KdaDecodeArgs args() {
    return {.qkv = qkv.view(),
            .conv_weight = taps.view(),
            .decay = decay.view(),
            .beta = beta.view(),
            .a_log = a_log.view(),
            .dt_bias = dt_bias.view(),
            .scale = 0.4f,
            .gate = gate.view(),
            .norm_weight = norm.view(),
            .norm_eps = 1e-5f,
            .seq = {.cu = cu.view(),
                    .slot = slot.view(),
                    .accepted = accepted.view(),
                    .fresh = fresh.view(),
                    .n_decode = 3,
                    .max_len = 1},
            .state = state.view(),
            .window = window.view(),
            .out = out.view()};
  }
  Guarded<bf16> qkv{{kT, kC}}, decay{{kT, kH, kK}}, gate{{kT, kH, kV}}, window{{kSlots, 3, kC}}, out{{kT, kH, kV}};
  Guarded<float> beta{{kT, kH}}, taps{{4, kC}}, a_log{{kH}}, dt_bias{{kH, kK}}, norm{{kV}}, state{{kSlots, kH, kV, kK}};
  Guarded<int32_t> cu{{4}}, slot{{3, 1}}, accepted{{3}};
  Guarded<uint8_t> fresh{{3}};
};

// The parts by their own calls, on memory of their own.
TEST(KdaDecode, TheReferenceIsThreeReferencesOneBehindTheOtherAndZerosWhereNobodyIs) {
  Step got, want;
  TestExec fused, apart;
  for (const char* op : {"short_conv", "kda", "gated_norm"}) apart.force(op, "reference");
  kda_decode(fused, got.args());
  const KdaDecodeArgs a = want.args();
  Guarded<bf16> mixed({kT, kC}), core({kT, kH, kV});
  const AnyView m = mixed.view();
  short_conv(apart, {.x = a.qkv, .weight = a.conv_weight, .seq = a.seq, .state = a.window, .out = m});
  kda(apart, {.q = m.columns(0, kH * kK).split_last(kH, kK),
              .k = m.columns(kH * kK, kH * kK).split_last(kH, kK),
              .v = m.columns(2 * kH * kK, kH * kV).split_last(kH, kV),
              .gate = a.decay,
              .beta = a.beta,
              .a_log = a.a_log,
              .dt_bias = a.dt_bias,
              .scale = a.scale,
              .seq = a.seq,
              .state = a.state,
              .out = core.view()});
  gated_norm(apart, {.x = core.view(), .gate = a.gate, .weight = a.norm_weight, .eps = a.norm_eps, .out = a.out});
  EXPECT_TRUE(same_bits(got.state, want.state));
  EXPECT_TRUE(same_bits(got.window, want.window));
  for (int64_t i = 0; i < got.out.size(); ++i) {
    const uint16_t bits = i < 2 * kH * kV ? want.out[i].bits : 0;
    EXPECT_EQ(got.out[i].bits, bits) << i;
  }
  EXPECT_TRUE(got.out.guards_intact() && got.state.guards_intact() && got.window.guards_intact());
}

std::string refused(void (*change)(KdaDecodeArgs&)) {
  Step step;
  TestExec ex;
  KdaDecodeArgs a = step.args();
  change(a);
  try {
    kda_decode(ex, a);
  } catch (const Error& e) {
    return e.code() == ErrorCode::invalid_argument ? e.what() : "another code";
  }
  return "nothing";
}

TEST(KdaDecode, NamesTheArgumentAtFault) {
  using testing::HasSubstr;
  EXPECT_THAT(refused([](KdaDecodeArgs& a) { a.qkv = a.qkv.columns(0, kC - 1); }), HasSubstr("qkv"));
  EXPECT_THAT(refused([](KdaDecodeArgs& a) {
                a.conv_weight = {a.conv_weight.data, {1, kC}};
              }),
              HasSubstr("conv_weight"));
  EXPECT_THAT(refused([](KdaDecodeArgs& a) { a.decay = a.decay.rows(0, 2); }), HasSubstr("shape"));
  EXPECT_THAT(refused([](KdaDecodeArgs& a) { a.lower_bound = -6; }), HasSubstr("lower_bound"));
  EXPECT_THAT(refused([](KdaDecodeArgs& a) { a.scale = INFINITY; }), HasSubstr("scale"));
  EXPECT_THAT(refused([](KdaDecodeArgs& a) { a.norm_eps = -1; }), HasSubstr("norm_eps"));
  EXPECT_THAT(refused([](KdaDecodeArgs& a) { a.seq.n_prefill = 1, a.seq.n_decode = 2; }), HasSubstr("prefill"));
  EXPECT_THAT(refused([](KdaDecodeArgs& a) { a.window = a.window.slice(1, 0, 2); }), HasSubstr("window"));
  EXPECT_THAT(refused([](KdaDecodeArgs& a) { a.out.dtype = DType::f32; }), HasSubstr("out"));
  EXPECT_THAT(refused([](KdaDecodeArgs& a) { const_cast<int32_t*>(a.seq.slot.data)[1] = 2; }), HasSubstr("slot"));
}

// On the CPU the three ops are faster; on a device a forced row of one of them is obeyed.
TEST(KdaDecode, FusesOnlyWhereOneKernelTakesTheCallAndNoPartIsForced) {
  Step step;
  TestExec ex;
  EXPECT_FALSE(kda_decode_fuses(ex, step.args()));
  TestExec forced;
  forced.force("kda_decode", "reference");
  EXPECT_TRUE(kda_decode_fuses(forced, step.args()));
  KdaDecodeDesc d{.target = {.device = DeviceKind::cuda, .cuda = CudaLevel::sm90a, .multiprocessors = 132},
                  .T = 1,
                  .N = 1,
                  .H = 12,
                  .K = 128,
                  .V = 128,
                  .W = 4,
                  .aligned = true};
  EXPECT_EQ(kda_decode_cuda_refuse(d), nullptr);
  d.W = 3;
  EXPECT_STREQ(kda_decode_cuda_refuse(d), "taps other than four");
  d.W = 4, d.aligned = false;
  EXPECT_STREQ(kda_decode_cuda_refuse(d), "rows that do not begin at 16 bytes");
}

}  // namespace
}  // namespace kdelta::test
