// The fused decode step on CUDA: the reference of its parts, and the bits of their rows on the device.
#include "kdelta/core/fault.h"
#include "kdelta/ops/gated_norm/gated_norm.h"
#include "kdelta/ops/kda/decode_variants.h"
#include "kdelta/ops/short_conv/short_conv.h"
#include "tests/gpu/sequence_arrays.h"

namespace kdelta::test {
namespace {

constexpr int64_t kWidth = 128;

struct Form {
  int64_t H = 2, tail = 0, padding = 0;  // padding: elements between rows
  KdaGate gate = KdaGate::bounded;
  bool f32_decay = false;
};

// A step with all its arrays. Its second state, window and output are what the three ops leave when `apart` is set.
template <class S>
struct Step {
  Step(const Form& form, SequenceCase& sequences, bool apart_too = false)
      : f(form),
        s(sequences),
        apart(apart_too),
        T(s.tokens() + f.tail),
        C(3 * f.H * kWidth),
        slots(static_cast<int64_t>(s.rows.size()) + 3),
        qkv({T, C + f.padding}),
        decay({T, f.H * kWidth + f.padding}),
        gate({T, f.H * kWidth + f.padding}),
        window({slots, 3, C}),
        other_window({slots, 3, C}),
        out({T, f.H * kWidth + f.padding}),
        other_out({T, f.H * kWidth + f.padding}),
        decay32({T, f.H * kWidth}),
        beta({T, f.H}),
        taps({4, C}),
        a_log({f.H}),
        dt_bias({f.H, kWidth}),
        norm({kWidth}),
        state({slots, f.H, kWidth, kWidth}),
        other_state({slots, f.H, kWidth, kWidth}) {
    c.array("qkv", qkv);
    c.array("decay", decay);
    c.array("decay32", decay32);
    c.array("gate", gate);
    c.array("beta", beta);
    c.array("taps", taps);
    c.array("a_log", a_log);
    c.array("dt_bias", dt_bias);
    c.array("norm", norm);
    c.array("window", window);
    c.array("other_window", other_window);
    const Bound of_state{.rms = sizeof(S) == 2 ? 4e-3 : 2e-3}, of_out{.rms = 8e-3};
    c.array("state", state, of_state);
    c.array("other_state", other_state, of_state);
    c.array("out", out, of_out);
    c.array("other_out", other_out, of_out);
    s.add_to(c);
    c.fill = [this](Rng& rng) {
      fill_normal(qkv, rng, 1.5f);
      fill_normal(decay, rng, 2.0f, -1.0f);
      fill_normal(decay32, rng, 2.0f, -1.0f);
      fill_normal(gate, rng, 2.0f);
      fill_normal(beta, rng);
      fill_normal(taps, rng, 0.5f);
      fill_uniform(a_log, rng, -0.5f, 0.5f);
      fill_normal(dt_bias, rng, 0.3f);
      fill_normal(norm, rng, 0.5f, 1.0f);
      fill_normal(window, rng);
      fill_normal(state, rng, 0.3f);
      for (int64_t i = 0; i < window.size(); ++i) other_window[i] = window[i];
      for (int64_t i = 0; i < state.size(); ++i) other_state[i] = state[i];
      s.fill();
    };
    c.call = [this](const Exec& ex, const EffectCase::At& at) {
      kda_decode(ex, args(at));
      if (apart) call_apart(ex, at);
    };
  }

  AnyView heads(const AnyView& x) const { return x.columns(0, f.H * kWidth).split_last(f.H, kWidth); }
  KdaDecodeArgs args(const EffectCase::At& at) {
    return {.qkv = AnyConstView(at(qkv)).columns(0, C),
            .conv_weight = at(taps),
            .decay = heads(f.f32_decay ? AnyView(at(decay32)) : AnyView(at(decay))),
            .beta = at(beta),
            .a_log = at(a_log),
            .dt_bias = at(dt_bias),
            .gate_kind = f.gate,
            .scale = 0.088388f,
            .gate = heads(at(gate)),
            .norm_weight = at(norm),
            .norm_eps = 1e-5f,
            .seq = s.at(at),
            .state = at(state),
            .window = at(window),
            .out = heads(at(out))};
  }
  void call_apart(const Exec& ex, const EffectCase::At& at) {
    const KdaDecodeArgs a = args(at);
    const int64_t P = f.H * kWidth;
    Arena::Scope scope(*ex.scratch);
    const AnyView mixed = ex.scratch->take(DType::bf16, {T, C}), core = ex.scratch->take(DType::bf16, {T, P});
    short_conv(ex, {.x = a.qkv, .weight = a.conv_weight, .seq = a.seq, .state = at(other_window), .out = mixed});
    kda(ex, {.q = mixed.columns(0, P).split_last(f.H, kWidth),
             .k = mixed.columns(P, P).split_last(f.H, kWidth),
             .v = mixed.columns(2 * P, P).split_last(f.H, kWidth),
             .gate = a.decay,
             .beta = a.beta,
             .a_log = a.a_log,
             .dt_bias = a.dt_bias,
             .gate_kind = a.gate_kind,
             .scale = a.scale,
             .seq = a.seq,
             .state = at(other_state),
             .out = core.split_last(f.H, kWidth)});
    gated_norm(ex, {.x = core.split_last(f.H, kWidth),
                    .gate = a.gate,
                    .weight = a.norm_weight,
                    .eps = a.norm_eps,
                    .out = heads(at(other_out))});
  }
  void run() {
    SCOPED_TRACE(
        str("H ", f.H, " tail ", f.tail, " padding ", f.padding, " rows ", s.rows.size(), " state ", sizeof(S)));
    c.run("kda_decode", kda_decode_variants());
  }

  Form f;
  SequenceCase& s;
  bool apart;
  int64_t T, C, slots;
  Guarded<bf16> qkv, decay, gate, window, other_window, out, other_out;
  Guarded<float> decay32, beta, taps, a_log, dt_bias, norm;
  Guarded<S> state, other_state;
  EffectCase c;
};

// Slots in an order of their own; every fifth row is fresh.
SequenceCase many_rows(int n) {
  std::vector<SequenceRow> rows;
  for (int i = 0; i < n; ++i) rows.push_back({.len = 1, .slot = (i * 7 + 3) % n + 1, .fresh = i % 5 == 4});
  return SequenceCase({}, rows);
}

template <class S>
void equals_the_reference() {
  SequenceCase few({}, {{.len = 1, .slot = 3},
                        {.len = 1, .slot = 1, .fresh = true},
                        {.len = 0, .slot = 4},
                        {.len = 1, .slot = -1},
                        {.len = 1, .slot = 2}});
  Step<S>({.H = 2, .tail = 3}, few).run();
  Step<S>({.H = 3, .padding = 8, .gate = KdaGate::softplus, .f32_decay = true}, few).run();
  SequenceCase many = many_rows(23);
  Step<S>({.H = 12, .tail = 1}, many).run();
}

TEST(KdaDecodeCuda, EqualsTheReferenceOfItsPartsWithAnFp32Pool) {
  equals_the_reference<float>();
}
TEST(KdaDecodeCuda, EqualsTheReferenceOfItsPartsWithABf16Pool) {
  equals_the_reference<bf16>();
}

template <class S>
void has_the_bits_of_its_parts(int n, int64_t H) {
  SequenceCase rows = many_rows(n);
  Step<S> step({.H = H}, rows, true);
  step.run();
  EXPECT_TRUE(same_bits(step.window, step.other_window));
  EXPECT_TRUE(same_bits(step.state, step.other_state));
  EXPECT_TRUE(same_bits(step.out, step.other_out));
}

// A step with drafts, and a prompt, go through the three ops: what follows may not depend on which way a token took.
TEST(KdaDecodeCuda, HasTheBitsOfItsPartsOnTheDevice) {
  for (const auto& [n, H] : {std::pair(3, 2), std::pair(25, 12)}) {
    has_the_bits_of_its_parts<float>(n, H);
    has_the_bits_of_its_parts<bf16>(n, H);
  }
}

// Row 2 names the slot of row 0, row 3 one that the pool does not have.
TEST(KdaDecodeCuda, ARowAtFaultIsSkippedWholeAndNobodyElseIsTouched) {
  SequenceCase s({}, {{.len = 1, .slot = 3}, {.len = 1, .slot = 1}, {.len = 1, .slot = 3}, {.len = 1, .slot = 12}});
  Step<float> step({.H = 2, .tail = 1}, s);
  step.c.reference = [&](const Exec& ex, const EffectCase::At& at) {
    const SequenceCase saved = s;
    s.slot[2] = s.slot[3] = -1;
    step.c.call(ex, at);
    s.slot = saved.slot;
  };
  step.c.faults = static_cast<uint32_t>(Fault::shared_slot) | static_cast<uint32_t>(Fault::slot);
  step.run();
}

}  // namespace
}  // namespace kdelta::test
