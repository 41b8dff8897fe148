// Errors against the fp64 oracle: the table of the design on its five input families, and the inputs of public bug
// reports.
#include <functional>
#include <map>
#include <memory>

#include "kdelta/ops/kda/test_problem.h"

namespace kdelta {
namespace {

using test::Problem;
using test::relative_rmse;
using test::Row;
using test::Sizes;
using test::State;
using test::TestExec;

class KdaNumerics : public test::VariantTest {
 protected:
  KdaNumerics() { ex.force("kda", GetParam()); }
  TestExec ex;
};
KDELTA_INSTANTIATE_VARIANTS(KdaNumerics, kda_variants());

// The raw bounded gate (dt_bias and a_log zero) that gives log decay g.
float raw_gate(double g) {
  return static_cast<float>(-std::log(-5.0 / g - 1));
}

template <class P>
void plain_gate(P& p) {
  for (int64_t i = 0; i < p.a_log.size(); ++i) p.a_log[i] = 0;
  for (int64_t i = 0; i < p.dt_bias.size(); ++i) p.dt_bias[i] = 0;
}

template <class P>
void set_gate(P& p, int64_t begin, int64_t end, float raw) {
  using In = std::remove_reference_t<decltype(p.gate[0])>;
  const int64_t width = p.z.H * p.z.K;
  for (int64_t i = begin * width; i < end * width; ++i) p.gate[i] = from_float<In>(raw);
}

template <class P>
void set_beta(P& p, float beta) {
  using In = std::remove_reference_t<decltype(p.beta[0])>;
  p.beta_kind = KdaBeta::preprocessed;
  for (int64_t i = 0; i < p.covered() * p.z.H; ++i) p.beta[i] = from_float<In>(beta);
}

// Log decays spread over -1e-4..-1e-2, by token and channel.
template <class P>
void slow_gates(P& p) {
  using In = std::remove_reference_t<decltype(p.gate[0])>;
  plain_gate(p);
  test::Rng rng(9);
  std::uniform_real_distribution<double> exponent(-4, -2);
  for (int64_t i = 0; i < p.covered() * p.z.H * p.z.K; ++i)
    p.gate[i] = from_float<In>(raw_gate(-std::pow(10, exponent(rng))));
}

// Keys whose pairwise cosine is mix^2: mix times one direction of the head, the rest random.
template <class P>
void correlated_keys(P& p, double mix) {
  using In = std::remove_reference_t<decltype(p.k[0])>;
  test::Rng rng(11);
  std::normal_distribution<double> normal;
  std::vector<double> common(static_cast<size_t>(p.z.H * p.z.K));
  for (double& c : common) c = normal(rng);
  for (int64_t i = 0; i < p.covered() * p.z.H * p.z.K; ++i)
    p.k[i] = from_float<In>(static_cast<float>(mix * common[static_cast<size_t>(i) % common.size()] +
                                               std::sqrt(1 - mix * mix) * normal(rng)));
}

struct Family {
  const char* name;
  double mix;  // correlation of the keys; 0: random
  float beta;  // 0: random, raw
  bool slow;
  double any_out, any_state, precise_out, precise_state;  // both rows of the table
};
constexpr Family kFamilies[] = {
    {"fast random", 0, 0, false, 4.4e-3, 3.2e-3, 3.5e-3, 1e-3},
    {"slow gates", 0, 0, true, 5.5e-3, 4.6e-3, 3.5e-3, 1e-3},
    {"keys at cosine 0.81", 0.9, 0.95f, true, 7.5e-3, 6.5e-3, 4.5e-3, 1.2e-3},
    {"keys at cosine 0.98", 0.99, 0.99f, true, 1.6e-2, 1.6e-2, 8e-3, 1.5e-3},
    {"equal keys", 1, 0.99f, true, 2.5e-2, 4e-2, 3e-3, 1e-3},
};

template <class In>
struct Solved {
  Problem<In> problem;
  std::vector<double> out;
  State state;
};

// T = 512, K = V = 128, solved once for all variants.
template <class In>
const Solved<In>& solved(const Family& f) {
  static std::map<std::string, std::unique_ptr<Solved<In>>> all;
  auto& s = all[f.name];
  if (s) return *s;
  Problem<In> p({.H = 1, .K = 128, .V = 128, .tail = 0}, {Row{.len = 512, .fresh = 1}});
  if (f.mix > 0) correlated_keys(p, f.mix);
  if (f.beta > 0) set_beta(p, f.beta);
  if (f.slow) slow_gates(p);
  State state = p.zero_state();
  auto out = p.oracle(state, 0, 512);
  s = std::make_unique<Solved<In>>(Solved<In>{std::move(p), std::move(out), std::move(state)});
  return *s;
}

TEST_P(KdaNumerics, PrefillStaysInsideTheTableOfTheDesign) {
  for (const Family& f : kFamilies) {
    const auto& want = solved<bf16>(f);
    Problem<> p = want.problem;
    p.run(ex);
    const double out = relative_rmse(p.outputs(0, 512), want.out), state = relative_rmse(p.state_of(1), want.state);
    const bool precise = !test::is_cheap(GetParam());
    EXPECT_LE(out, precise ? f.precise_out : f.any_out) << f.name;
    EXPECT_LE(state, precise ? f.precise_state : f.any_state) << f.name;
    RecordProperty(f.name, str(out, " / ", state));
  }
}

TEST_P(KdaNumerics, F32ActivationsLoseAtMost1e5OrAreRefused) {
  for (const Family& f : kFamilies) {
    const auto& want = solved<float>(f);
    Problem<float> p = want.problem;
    if (!test::takes_f32(GetParam())) {
      EXPECT_THAT(test::error_of([&] { kda(ex, p.args()); }), testing::HasSubstr("f32 activations")) << f.name;
      continue;
    }
    p.run(ex);
    EXPECT_LE(relative_rmse(p.outputs(0, 512), want.out), 1e-5) << f.name;
    EXPECT_LE(relative_rmse(p.state_of(1), want.state), 1e-5) << f.name;
  }
}

TEST_P(KdaNumerics, DecodeRoundsTheOutputOnceAndTheStateBy1e6) {
  for (const Family& f : kFamilies) {
    const auto& want = solved<bf16>(f);
    Problem<> p({.H = 1, .K = 128, .V = 128, .tail = 0, .columns = 8}, {}, {Row{.len = 8, .accepted = 8, .fresh = 1}});
    std::vector<double> out;
    for (int64_t t = 0; t < 512; t += 8) {
      p.copy_tokens(want.problem, t, 0, 8);
      p.run(ex);
      p.fresh[0] = 0;
      const auto o = p.outputs(0, 8);
      out.insert(out.end(), o.begin(), o.end());
    }
    EXPECT_LE(relative_rmse(out, want.out), 1.8e-3) << f.name;
    EXPECT_LE(relative_rmse(p.state_of(8), want.state), 1e-6) << f.name;
  }
}

TEST_P(KdaNumerics, ABf16PoolLoses2e3AStep) {
  Problem<bf16, bf16> p({.H = 2, .K = 128, .V = 128}, {Row{.len = 64}}, {Row{.len = 1}});
  State a = p.state_of(1), b = p.state_of(2);
  const auto prefill = p.oracle(a, 0, 64), step = p.oracle(b, 64, 1);
  p.run(ex);
  EXPECT_LE(relative_rmse(p.state_of(2), b), 2e-3);
  EXPECT_LE(relative_rmse(p.outputs(64, 1), step), 1.8e-3);
  EXPECT_LE(relative_rmse(p.state_of(1), a), 2e-3 + test::state_bound(GetParam()));
  EXPECT_LE(relative_rmse(p.outputs(0, 64), prefill), test::out_bound(GetParam()));
}

TEST_P(KdaNumerics, TheScaleOfTheValuesChangesNoRelativeError) {
  for (float scale : {1e-14f, 1e14f}) {
    Problem<> p({.H = 1, .K = 64, .V = 64}, {Row{.len = 100, .fresh = 1}}, {Row{.len = 1, .fresh = 1}});
    for (int64_t i = 0; i < p.covered() * 64; ++i) p.v[i] = to_bf16(scale * to_float(p.v[i]));
    State a = p.zero_state(), b = p.zero_state();
    const auto prefill = p.oracle(a, 0, 100), step = p.oracle(b, 100, 1);
    p.run(ex);
    EXPECT_LE(relative_rmse(p.outputs(0, 100), prefill), test::out_bound(GetParam())) << scale;
    EXPECT_LE(relative_rmse(p.state_of(1), a), test::state_bound(GetParam())) << scale;
    EXPECT_LE(relative_rmse(p.outputs(100, 1), step), 2e-3) << scale;
    EXPECT_LE(relative_rmse(p.state_of(2), b), 1e-6) << scale;
  }
}

// A1: a state read with the wrong axis, or rows of a partial chunk not masked.
TEST_P(KdaNumerics, AFreshOrAnUnsymmetricStateIsCarriedIntoEveryChunk) {
  for (int64_t width : {16, 128})
    for (uint8_t fresh : {uint8_t{0}, uint8_t{1}})
      for (int64_t T : {1, 2, 15, 16, 17, 31, 63, 64, 65, 130}) {
        Problem<> p({.H = 1, .K = width, .V = width, .tail = 20}, {Row{.len = T, .fresh = fresh}});
        plain_gate(p);
        set_gate(p, 0, T, raw_gate(-0.01));  // far chunks must still matter
        State s = fresh == 1 ? p.zero_state() : p.state_of(1);
        const auto want = p.oracle(s, 0, T);
        p.run(ex);
        EXPECT_LE(relative_rmse(p.outputs(0, T), want), 1.5 * test::out_bound(GetParam())) << width << " " << T;
        EXPECT_LE(relative_rmse(p.state_of(1), s), 1.5 * test::state_bound(GetParam())) << width << " " << T;
        Problem<> step({.H = 1, .K = width, .V = width}, {}, {Row{.len = 1}}, 5);
        const auto next = step.oracle(s, 0, 1);
        step.copy_slot(p, 1, 1);
        step.run(ex);
        EXPECT_LE(relative_rmse(step.outputs(0, 1), next), 2 * test::out_bound(GetParam())) << width << " " << T;
      }
}

void gate_case(TestExec& ex, const std::string& variant, KdaGate kind,
               const std::function<float(int64_t, int64_t)>& raw, const std::string& what) {
  Problem<> p({.H = 1, .K = 128, .V = 128}, {Row{.len = 64}});
  plain_gate(p);
  p.gate_kind = kind;
  for (int64_t t = 0; t < 64; ++t)
    for (int64_t d = 0; d < 128; ++d) p.gate[t * 128 + d] = to_bf16(raw(t, d));
  set_beta(p, 0.5f);
  State s = p.state_of(1);
  const auto want = p.oracle(s, 0, 64);
  p.run(ex);
  EXPECT_LE(relative_rmse(p.outputs(0, 64), want), test::out_bound(variant)) << what;
  EXPECT_LE(relative_rmse(p.state_of(1), s), 1.5 * test::state_bound(variant)) << what;
}

// A2: exp of a cumulative decay overflows, or infinity meets zero.
TEST_P(KdaNumerics, EveryGateFromNoneToFullForgetIsExact) {
  const auto softplus_raw = [](double g) { return static_cast<float>(g < -30 ? -g : std::log(std::expm1(-g))); };
  for (double g : {-0.1, -1.0, -1.3, -1.5, -2.5, -4.99, -5.0}) {
    const float raw = g == -5.0 ? 60.0f : raw_gate(g);
    gate_case(
        ex, GetParam(), KdaGate::bounded, [&](int64_t, int64_t) { return raw; }, str("bounded ", g));
  }
  for (double g : {-0.1, -5.0, -20.0, -88.0, -104.0})
    gate_case(
        ex, GetParam(), KdaGate::softplus, [&](int64_t, int64_t) { return softplus_raw(g); }, str("softplus ", g));
  const float full = INFINITY, none = -INFINITY;
  gate_case(
      ex, GetParam(), KdaGate::softplus, [&](int64_t, int64_t) { return full; }, "full forget");
  gate_case(
      ex, GetParam(), KdaGate::softplus, [&](int64_t, int64_t) { return none; }, "no decay");
  gate_case(
      ex, GetParam(), KdaGate::bounded, [&](int64_t, int64_t) { return none; }, "no decay, bounded");
  for (KdaGate kind : {KdaGate::bounded, KdaGate::softplus}) {
    gate_case(
        ex, GetParam(), kind, [&](int64_t, int64_t d) { return d == 7 ? full : none; }, "one channel forgets");
    gate_case(
        ex, GetParam(), kind, [&](int64_t, int64_t d) { return d == 7 ? none : full; }, "one channel keeps");
    gate_case(
        ex, GetParam(), kind, [&](int64_t t, int64_t) { return t == 0 ? none : full; },
        "all but the first token forget");
    gate_case(
        ex, GetParam(), kind, [&](int64_t t, int64_t d) { return (t + d) % 3 == 0 ? full : none; }, "mixed");
    gate_case(
        ex, GetParam(), kind, [&](int64_t t, int64_t d) { return static_cast<float>((t * 37 + d * 11) % 29 - 14); },
        "wide");
  }
}

// A3: an inverse by a power series explodes on repeated keys.
TEST_P(KdaNumerics, RepeatedKeysOfAnyNumberStayFiniteAndExact) {
  for (int64_t T : {16, 64, 16384}) {
    if (T > 64 && GetParam() == "reference") continue;  // the oracle is the same loop
    static std::map<int64_t, std::pair<std::vector<double>, State>> wants;
    Problem<> p({.H = 1, .K = 128, .V = 32}, {Row{.len = T, .fresh = 1}});
    plain_gate(p);
    set_gate(p, 0, T, -12);
    for (int64_t t = 0; t < T; ++t) {
      p.beta[t] = to_bf16(8);
      std::memcpy(&p.k[t * 128], &p.k[0], 128 * sizeof(bf16));
      std::memcpy(&p.q[t * 128], &p.k[0], 128 * sizeof(bf16));
      std::memcpy(&p.v[t * 32], &p.v[t % 16 * 32], 32 * sizeof(bf16));
    }
    if (!wants.contains(T)) {
      State s = p.zero_state();
      auto o = p.oracle(s, 0, T);
      wants[T] = {o, s};
    }
    p.run(ex);
    const bool precise = !test::is_cheap(GetParam());
    if (!precise &&
        T > 512) {  // one rounding of one key, 16384 times the same way: finite is all that bf16 can promise
      for (double s : p.state_of(1)) ASSERT_TRUE(std::isfinite(s));
      continue;
    }
    EXPECT_LE(relative_rmse(p.outputs(0, T), wants[T].first), precise ? 3e-3 : 2.5e-2) << T;
    EXPECT_LE(relative_rmse(p.state_of(1), wants[T].second), precise ? 1e-3 : 4e-2) << T;
  }
}

// A4: beta rounded to the activation type before it meets the state.
TEST_P(KdaNumerics, FourThousandStepsKeepTheStateTo1e6AndAgreeWithPrefill) {
  constexpr int64_t T = 4096;
  static const auto made = [] {
    Problem<float> p({.H = 1, .K = 16, .V = 16, .tail = 0}, {Row{.len = T, .fresh = 1}});
    plain_gate(p);
    set_gate(p, 0, T, raw_gate(-1e-4));
    test::Rng rng(3);
    std::uniform_real_distribution<float> logit(4, 8);
    for (int64_t t = 0; t < T; ++t) p.beta[t] = logit(rng);
    State s = p.zero_state();
    p.oracle(s, 0, T);
    return std::make_pair(p, s);
  }();
  if (!test::takes_f32(GetParam())) return;  // refused: F32ActivationsLoseAtMost1e5OrAreRefused
  Problem<float> step({.H = 1, .K = 16, .V = 16}, {}, {Row{.len = 1, .fresh = 1}});
  for (int64_t t = 0; t < T; ++t) {
    step.copy_tokens(made.first, t, 0, 1);
    kda(ex, step.args());
    step.fresh[0] = 0;
  }
  EXPECT_LE(relative_rmse(step.state_of(1), made.second), 2e-6);
  Problem<float> prefill = made.first;
  prefill.run(ex);
  EXPECT_LE(relative_rmse(prefill.state_of(1), made.second), 2e-6);
}

// A5: a bias read per head instead of per channel, and loads of the gate past K.
TEST_P(KdaNumerics, TheGateBiasBelongsToItsHeadAndChannel) {
  const Sizes z{.H = 4, .K = 8, .V = 3};
  for (bool prefill : {true, false})
    for (KdaGate kind : {KdaGate::bounded, KdaGate::softplus}) {
      const Row row{.len = 1};
      Problem<> p = prefill ? Problem<>(z, {row}) : Problem<>(z, {}, {row});
      p.gate_kind = kind;
      for (int64_t h = 0; h < 4; ++h)
        for (int64_t d = 0; d < 8; ++d) {
          p.a_log[h] = -2;
          p.dt_bias[h * 8 + d] = static_cast<float>(10 * h + d);
          p.gate[h * 8 + d] = p.k[h * 8 + d] = to_bf16(0);
        }
      const Problem<> before = p;
      p.run(ex);
      for (int64_t h = 0; h < 4; ++h)
        for (int64_t d = 0; d < 8; ++d)
          for (int64_t v = 0; v < 3; ++v) {
            const int64_t at = (h * 3 + v) * 8 + d;
            const double want = before.slot_data(1)[at] * std::exp(before.log_decay(0, h, d));
            EXPECT_NEAR(p.slot_data(1)[at], want, 1e-6 * std::fabs(want)) << h << " " << d;
          }
    }
}

TEST_P(KdaNumerics, OddWidthsReadNothingBehindTheirRows) {
  for (int64_t K : {60, 100})
    for (int64_t T : {1, 3})
      for (float around : {1e30f, NAN}) {
        const Sizes z{.H = 1, .K = K, .V = K};
        Problem<> p(z, {Row{.len = T}}, {Row{.len = 1}});
        // Each token is a row of wider arrays whose rest holds `around`.
        const int64_t wide = K + 40;
        test::Guarded<bf16> arrays({4, p.T, wide});
        for (int64_t i = 0; i < arrays.size(); ++i) arrays[i] = to_bf16(around);
        const bf16* from[] = {p.q.data(), p.k.data(), p.v.data(), p.gate.data()};
        for (int64_t x = 0; x < 4; ++x)
          for (int64_t t = 0; t < T + 1; ++t)
            std::memcpy(&arrays[(x * p.T + t) * wide], from[x] + t * K, static_cast<size_t>(K) * sizeof(bf16));
        KdaArgs a = p.args();
        AnyConstView* to[] = {&a.q, &a.k, &a.v, &a.gate};
        for (int64_t x = 0; x < 4; ++x) {
          to[x]->data = &arrays[x * p.T * wide];
          to[x]->stride[0] = wide;
        }
        Problem<> dense = p;
        dense.run(ex);
        kda(ex, a);
        EXPECT_TRUE(same_bits(p.out, dense.out)) << K << " " << T << " " << around;
        EXPECT_EQ(std::memcmp(p.slot_data(1), dense.slot_data(1), 2 * p.slot_bytes()), 0)
            << K << " " << T << " " << around;
      }
}

}  // namespace
}  // namespace kdelta
