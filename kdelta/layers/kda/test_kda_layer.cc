// The KDA layer in every layout of its projections: which ops it runs, and that their results are those of a call for
// every matrix.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <deque>
#include <map>
#include <memory>

#include "kdelta/core/buffer.h"
#include "kdelta/core/check.h"
#include "kdelta/layers/kda/kda.h"
#include "kdelta/ops/gated_norm/gated_norm.h"
#include "kdelta/ops/kda/kda.h"
#include "kdelta/ops/linear/linear.h"
#include "kdelta/ops/short_conv/short_conv.h"
#include "tests/support/support.h"

namespace kdelta {
namespace {

using test::Guarded;
using test::Rng;
using test::TestExec;

constexpr int64_t kHidden = 96, kHeads = 3, kDim = 16, kWidth = kHeads * kDim, kTokens = 7, kSlots = 4;

class OpNames final : public OpObserver {
 public:
  void on_op(std::string_view op, std::string_view, const Cost&) override { names.emplace_back(op); }
  std::vector<std::string> names;
};

// A layer with random weights of the formats its layout asks for.
class TestLayer {
 public:
  TestLayer(KdaLayerConfig config, DType qkv, DType gates, MxInput input = {}) : c_(config), layer(config) {
    for (WeightSpec& spec : layer.weights()) {
      const std::string& name = spec.names.front();
      const bool is_qkv = name == "q_proj" || name == "k_proj" || name == "v_proj";
      if (Matrix** m = std::get_if<Matrix*>(&spec.target)) {
        **m = random_matrix(is_qkv ? qkv : gates, spec.shape[0], spec.shape[1]);
        if (is_qkv) (*m)->input = input;
        matrices[spec.kind == WeightKind::product ? "F" : name] = *m;
      } else {
        View<const float>& v = *std::get<View<const float>*>(spec.target);
        const Shape shape = spec.kind == WeightKind::conv_taps ? Shape{spec.shape[1], spec.shape[0]} : spec.shape;
        vectors[name] = v = View<const float>(random_floats(shape.numel()), shape);
      }
    }
  }

  const Matrix& matrix(const std::string& name) const { return *matrices.at(name); }
  Matrix& matrix(const std::string& name) { return *matrices.at(name); }
  float* memory(const Matrix& m) { return static_cast<float*>(const_cast<void*>(m.data)); }

 private:
  const float* random_floats(int64_t n) {
    floats_.emplace_back(static_cast<size_t>(n));
    for (float& x : floats_.back()) x = normal_(rng_);
    return floats_.back().data();
  }
  Matrix random_matrix(DType dtype, int64_t rows, int64_t cols) {
    Matrix m = dense_matrix(nullptr, dtype, rows, cols);
    bytes_.emplace_back(static_cast<size_t>(rows * m.row_bytes));
    std::vector<uint8_t>& bytes = bytes_.back();
    for (int64_t i = 0; i < rows * cols && !m.is_mx(); ++i) {
      const float x = 0.3f * normal_(rng_);
      const bf16 half = to_bf16(x);
      if (dtype == DType::f32) std::memcpy(&bytes[static_cast<size_t>(4 * i)], &x, 4);
      if (dtype == DType::bf16) std::memcpy(&bytes[static_cast<size_t>(2 * i)], &half, 2);
    }
    m.data = bytes.data();
    if (!m.is_mx()) return m;
    for (uint8_t& b : bytes) b = static_cast<uint8_t>(rng_() % 96);  // finite, at most 2
    bytes_.emplace_back(static_cast<size_t>(rows * m.scale_row_bytes), uint8_t{125});
    m.scale = bytes_.back().data();
    return m;
  }

  Rng rng_{7};
  std::normal_distribution<float> normal_;
  std::deque<std::vector<float>> floats_;
  std::deque<std::vector<uint8_t>> bytes_;
  KdaLayerConfig c_;

 public:
  KdaLayer layer;
  std::map<std::string, Matrix*> matrices;
  std::map<std::string, View<const float>> vectors;
};

// A prefill of five tokens and two decode rows.
template <class T>
struct TestStep {
  std::vector<int32_t> cu = {0, 5, 6, 7}, slot = {1, 2, 3}, accepted = {1, 1, 1};
  std::vector<uint8_t> fresh = {1, 0, 0};
  Guarded<T> x{{kTokens, kHidden}}, out{{kTokens, kHidden}}, window{{kSlots, 3, 3 * kWidth}};
  Guarded<float> state{{kSlots, kHeads, kDim, kDim}};
  Batch batch;

  TestStep() {
    Rng rng(3);
    fill_normal(x, rng);
    fill_normal(window, rng);
    fill_normal(state, rng);
    batch.n_prefill = 1;
    batch.n_decode = 2;
    batch.max_len = 5;
    batch.cu = {cu.data(), {4}};
    batch.slot = {slot.data(), {3, 1}};
    batch.accepted = {accepted.data(), {3}};
    batch.fresh = {fresh.data(), {3}};
    batch.snapshot = {nullptr, {0, 3}};
    batch.context = {cu.data(), {3}};
  }
  Sequences sequences() const {
    return {.cu = batch.cu,
            .slot = batch.slot,
            .accepted = batch.accepted,
            .fresh = batch.fresh,
            .snapshot = batch.snapshot,
            .n_prefill = 1,
            .n_decode = 2,
            .max_len = 5};
  }
  void run(const Exec& ex, const KdaLayer& layer) {
    const AnyView pools[] = {state.view(), window.view()};
    layer.forward(ex, batch, pools, x.view(), {}, out.view());
  }
};

// The same layer, written as one op for every matrix. Beta reaches the recurrence as `kind`.
template <class T>
void run_plainly(const Exec& ex, TestStep<T>& s, const TestLayer& l, const KdaLayerConfig& c, KdaBeta kind) {
  const auto project = [&](const AnyConstView& x, const std::string& name, const AnyView& out) {
    linear(ex, {.x = x, .w = l.matrix(name), .out = out});
  };
  const auto pair = [&](const std::string& a, const std::string& b, const AnyView& out) {
    Guarded<T> low({kTokens, kDim});
    project(s.x.view(), a, low.view());
    project(low.view(), b, out);
  };
  Guarded<T> qkv({kTokens, 3 * kWidth}), mixed({kTokens, 3 * kWidth}), decay({kTokens, kWidth}),
      gate({kTokens, kWidth}), core({kTokens, kWidth});
  Guarded<float> beta({kTokens, kHeads}), composed({kTokens, kWidth});
  for (int i = 0; i < 3; ++i)
    project(s.x.view(), std::string(1, "qkv"[i]) + "_proj", AnyView(qkv.view()).columns(i * kWidth, kWidth));
  short_conv(ex, {.x = qkv.view(),
                  .weight = l.vectors.at("q_conv1d"),
                  .seq = s.sequences(),
                  .state = s.window.view(),
                  .out = mixed.view()});
  if (c.gate_form == KdaGateForm::composed)
    project(s.x.view(), "F", composed.view());
  else
    pair("f_a_proj", "f_b_proj", decay.view());
  if (c.full_rank_gate)
    project(s.x.view(), "g_proj", gate.view());
  else
    pair("g_a_proj", "g_b_proj", gate.view());
  project(s.x.view(), "b_proj", beta.view());
  if (kind == KdaBeta::preprocessed)
    for (int64_t i = 0; i < beta.size(); ++i)
      beta[i] = static_cast<float>(1 / (1 + std::exp(-static_cast<double>(beta[i]))));
  const auto heads = [](AnyView v, int64_t begin) { return v.columns(begin, kWidth).split_last(kHeads, kDim); };
  kda(ex, {.q = heads(mixed.view(), 0),
           .k = heads(mixed.view(), kWidth),
           .v = heads(mixed.view(), 2 * kWidth),
           .gate = heads(c.gate_form == KdaGateForm::composed ? AnyView(composed.view()) : AnyView(decay.view()), 0),
           .beta = beta.view(),
           .a_log = l.vectors.at("A_log"),
           .dt_bias = View<const float>(l.vectors.at("dt_bias").data, {kHeads, kDim}),
           .gate_kind = KdaGate::bounded,
           .lower_bound = c.lower_bound,
           .beta_kind = kind,
           .scale = 1 / std::sqrt(static_cast<float>(kDim)),
           .seq = s.sequences(),
           .state = s.state.view(),
           .out = heads(core.view(), 0)});
  gated_norm(ex, {.x = heads(core.view(), 0),
                  .gate = heads(gate.view(), 0),
                  .weight = l.vectors.at("o_norm"),
                  .eps = c.norm_eps,
                  .live = s.batch.live(),
                  .out = heads(core.view(), 0)});
  project(core.view(), "o_proj", s.out.view());
}

struct Layout {
  const char* name;
  DType qkv;
  KdaGateForm form;
  bool full_rank;
  std::vector<std::string> ops;  // of one step
  MxInput input = {};            // of q, k and v

  KdaLayerConfig config() const {
    return {.hidden = kHidden,
            .heads = kHeads,
            .head_dim = kDim,
            .conv_width = 4,
            .gate_form = form,
            .full_rank_gate = full_rank,
            .bounded_gate = true,
            .lower_bound = -5,
            .norm_eps = 1e-5f};
  }
};

// For the lists of test programs; the name alone.
void PrintTo(const Layout& layout, std::ostream* out) {
  *out << layout.name;
}

// Rows 3, 10, 15, 34 and 52. One linear per stored format, then those that need a result of it: f_b, g_b, o. Where q, k
// and v take MXFP8 inputs, x is quantised once, in front of their one product; in every other format nobody quantises.
const std::vector<Layout>& layouts() {
  constexpr auto kFactored = KdaGateForm::factored, kComposed = KdaGateForm::composed;
  static const std::vector<Layout> all = {
      {"uniform_factored",
       DType::bf16,
       kFactored,
       true,
       {"linear", "short_conv", "linear", "kda", "gated_norm", "linear"}},
      {"uniform_composed", DType::bf16, kComposed, true, {"linear", "short_conv", "kda", "gated_norm", "linear"}},
      {"mxfp8_factored",
       DType::f8_e4m3,
       kFactored,
       true,
       {"linear", "linear", "short_conv", "linear", "kda", "gated_norm", "linear"}},
      {"mxfp8_composed",
       DType::f8_e4m3,
       kComposed,
       true,
       {"linear", "linear", "short_conv", "kda", "gated_norm", "linear"}},
      {"w8a8_factored",
       DType::f8_e4m3,
       kFactored,
       true,
       {"mx_quantize", "linear", "linear", "short_conv", "linear", "kda", "gated_norm", "linear"},
       {DType::f8_e4m3, MxScaleRule::rceil}},
      {"w8a8_composed",
       DType::f8_e4m3,
       kComposed,
       true,
       {"mx_quantize", "linear", "linear", "short_conv", "kda", "gated_norm", "linear"},
       {DType::f8_e4m3, MxScaleRule::even}},
      {"w4a8_composed_low_rank",
       DType::f4_e2m1,
       kComposed,
       false,
       {"mx_quantize", "linear", "linear", "short_conv", "kda", "linear", "gated_norm", "linear"},
       {DType::f8_e4m3, MxScaleRule::floor}},
      {"mxfp4_composed",
       DType::f4_e2m1,
       kComposed,
       true,
       {"linear", "linear", "short_conv", "kda", "gated_norm", "linear"}},
      {"uniform_factored_low_rank",
       DType::bf16,
       kFactored,
       false,
       {"linear", "short_conv", "linear", "kda", "linear", "gated_norm", "linear"}},
      {"uniform_composed_low_rank",
       DType::bf16,
       kComposed,
       false,
       {"linear", "short_conv", "kda", "linear", "gated_norm", "linear"}}};
  return all;
}

class KdaLayerLayout : public testing::TestWithParam<Layout> {};
INSTANTIATE_TEST_SUITE_P(All, KdaLayerLayout, testing::ValuesIn(layouts()),
                         [](const auto& kd) { return std::string(kd.param.name); });

// Between the projections and the convolution there is no op at all: q | k | v are never split, joined or copied.
TEST_P(KdaLayerLayout, RunsOneLinearPerStoredFormatAndNothingThatCopies) {
  TestLayer l(GetParam().config(), GetParam().qkv, DType::bf16, GetParam().input);
  TestExec test;
  OpNames ops;
  Exec ex = test.exec();
  ex.observer = &ops;
  TestStep<bf16> step;
  step.run(ex, l.layer);
  EXPECT_EQ(ops.names, GetParam().ops);
}

template <class T>
void expect_equal_to_plain(const Layout& layout) {
  const KdaLayerConfig c = layout.config();
  TestLayer l(c, layout.qkv, DType::bf16, layout.input);
  TestExec ex;
  TestStep<T> merged, plain;
  merged.run(ex, l.layer);
  run_plainly<T>(ex, plain, l, c, KdaBeta::raw);
  EXPECT_TRUE(same_bits(merged.out, plain.out));
  EXPECT_TRUE(same_bits(merged.state, plain.state));
  EXPECT_TRUE(same_bits(merged.window, plain.window));
  EXPECT_TRUE(merged.out.guards_intact());
  for (int64_t i = 0; i < merged.out.size(); ++i) ASSERT_TRUE(std::isfinite(to_float(merged.out[i])));
}

TEST_P(KdaLayerLayout, HasTheBitsOfACallForEveryMatrix) {
  expect_equal_to_plain<bf16>(GetParam());
  expect_equal_to_plain<float>(GetParam());
}

// Row 12. What a layer asks for and keeps is the same in every layout; only what is stored differs.
TEST(KdaLayerInterface, IsTheSameForEveryLayout) {
  for (const KdaGateForm form : {KdaGateForm::factored, KdaGateForm::composed}) {
    std::vector<std::vector<std::string>> asked;
    for (const Layout& layout : layouts()) {
      if (layout.form != form || !layout.full_rank) continue;
      TestLayer l(layout.config(), layout.qkv, DType::bf16, layout.input);
      std::vector<std::string> all;
      for (const WeightSpec& w : l.layer.weights())
        all.push_back(str(w.names.front(), w.suffix, " ", to_string(w.shape), " ", w.group));
      for (const StateSpec& s : l.layer.states({})) all.push_back(str(s.name, " ", to_string(s.shape)));
      asked.push_back(all);
    }
    ASSERT_GE(asked.size(), 3u);
    for (const auto& all : asked) EXPECT_EQ(all, asked.front());
  }
}

// Row 8. The layer quantises x itself; every product here quantises its own. The rule is one of the description, so
// another one gives another answer: of the largest elements, 3.95 = 1.975 * 2 is 3.5 by floor and else 4, 3.8 is 3.75
// by rceil and else 3.5.
TEST(KdaLayerInputs, AreQuantisedByTheRuleThatTheUnsplitProductUses) {
  Layout layout = layouts()[0];
  layout.qkv = DType::f8_e4m3;
  std::vector<std::vector<double>> answers;
  for (DType format : {DType::f8_e4m3, DType::f8_e5m2})
    for (MxScaleRule rule : {MxScaleRule::floor, MxScaleRule::rceil, MxScaleRule::even}) {
      layout.input = {format, rule};
      expect_equal_to_plain<bf16>(layout);
      expect_equal_to_plain<float>(layout);
      if (format != DType::f8_e4m3) continue;
      TestLayer l(layout.config(), layout.qkv, DType::bf16, layout.input);
      TestExec ex;
      TestStep<float> step;
      step.x[0] = 3.95f;
      step.x[kHidden] = 3.8f;
      step.run(ex, l.layer);
      answers.push_back(test::doubles(step.out));
    }
  for (size_t i = 0; i < answers.size(); ++i)
    for (size_t j = 0; j < i; ++j) EXPECT_NE(answers[i], answers[j]) << i << " and " << j;
}

// Row 7. b_proj reads the first input alone, which is 1, so beta is what its first column says.
TEST_P(KdaLayerLayout, TakesTheSigmoidOfBetaOnceHoweverLargeItIs) {
  KdaLayerConfig c = GetParam().config();
  for (float raw : {20.0f, -20.0f, 100.0f, -100.0f, 0.5f}) {
    TestLayer l(c, GetParam().qkv, DType::f32, GetParam().input);
    Matrix& b = l.matrix("b_proj");
    for (int64_t h = 0; h < kHeads; ++h)
      for (int64_t i = 0; i < kHidden; ++i) l.memory(b)[h * kHidden + i] = i == 0 ? raw : 0.0f;
    TestExec ex;
    TestStep<float> got, want;
    for (TestStep<float>* step : {&got, &want})
      for (int64_t t = 0; t < kTokens; ++t) step->x[t * kHidden] = 1;
    got.run(ex, l.layer);
    run_plainly<float>(ex, want, l, c, KdaBeta::preprocessed);
    EXPECT_LE(test::relative_rmse(test::doubles(got.out), test::doubles(want.out)), 2e-6) << raw;
    EXPECT_LE(test::relative_rmse(test::doubles(got.state), test::doubles(want.state)), 2e-6) << raw;
  }
}

// Two steps with drafts, of which some are kept: pools as the layer's specs ask for them in either way of keeping
// drafts, each sequence with its own number of kept ones.
class DraftedRun {
 public:
  DraftedRun(const KdaLayer& layer, DraftStates states, DType recurrent)
      : layer_(layer), specs_(layer.states({.recurrent = recurrent, .columns = kColumns, .draft_states = states})) {
    for (const StateSpec& s : specs_) {
      const int64_t count = s.rule == SlotRule::column ? 1 + 3 * kColumns : kSlots;
      buffers_.push_back(Buffer(Device{}, count * s.bytes()));
      std::memset(buffers_.back().data(), 0xff, static_cast<size_t>(count * s.bytes()));  // NaN
      Shape shape = s.shape;
      shape.rank += 1;
      for (int i = s.shape.rank; i > 0; --i) shape.dim[static_cast<size_t>(i)] = s.shape[i - 1];
      shape.dim[0] = count;
      pools_.push_back(buffers_.back().view(s.dtype, shape));
    }
    for (int64_t n = 0; n < 3; ++n)
      for (int64_t c = 0; c < kColumns; ++c)
        slot_.push_back(static_cast<int32_t>(c == 0 ? 1 + n : 4 + n * (kColumns - 1) + c - 1));
  }
  // Rows of `len` tokens each; outputs in `out`.
  void step(const Exec& ex, int64_t len, std::vector<int32_t> accepted, std::vector<uint8_t> fresh,
            const Guarded<bf16>& x, Guarded<bf16>& out) {
    std::vector<int32_t> cu;
    for (int64_t n = 0; n <= 3; ++n) cu.push_back(static_cast<int32_t>(n * len));
    Batch b;
    b.n_decode = 3;
    b.max_len = len;
    b.cu = {cu.data(), {4}};
    b.slot = {slot_.data(), {3, kColumns}};
    b.accepted = {accepted.data(), {3}};
    b.fresh = {fresh.data(), {3}};
    b.snapshot = {nullptr, {0, 3}};
    b.context = {cu.data(), {3}};
    const Shape shape{3 * len, kHidden};
    layer_.forward(ex, b, pools_, AnyConstView(x.data(), DType::bf16, shape), {},
                   AnyView(out.data(), DType::bf16, shape));
  }
  // The recurrent states behind `accepted` tokens of each row's last step.
  std::string settled(const Exec& ex, const std::vector<int32_t>& accepted) {
    const int32_t own[] = {1, 2, 3};
    layer_.replay(ex, {own, {3}}, {accepted.data(), {3}}, pools_);
    std::string bytes;
    const bool slots = specs_[0].rule == SlotRule::column;
    for (size_t n = 0; n < 3; ++n) {
      const int32_t s = slots ? slot_[n * kColumns + static_cast<size_t>(accepted[n]) - 1] : own[n];
      bytes.append(static_cast<const char*>(pools_[0].data) + s * specs_[0].bytes(),
                   static_cast<size_t>(specs_[0].bytes()));
    }
    return bytes;
  }
  static constexpr int64_t kColumns = 4;

 private:
  const KdaLayer& layer_;
  std::vector<StateSpec> specs_;
  std::vector<Buffer> buffers_;
  std::vector<AnyView> pools_;
  std::vector<int32_t> slot_;
};

TEST(KdaLayerDrafts, RecordsAndSlotsGiveTheSameBits) {
  TestLayer l(layouts()[0].config(), DType::bf16, DType::bf16);
  TestExec test;
  const Exec ex = test.exec();
  Rng rng(5);
  Guarded<bf16> x({12, kHidden}), a({12, kHidden}), b({12, kHidden});
  for (const DType recurrent : {DType::f32, DType::bf16}) {
    DraftedRun slots(l.layer, DraftStates::slots, recurrent), records(l.layer, DraftStates::records, recurrent);
    std::vector<int32_t> accepted = {1, 1, 1};
    for (int i = 0; i < 6; ++i) {
      fill_normal(x, rng);
      const int64_t len = i % 3 == 2 ? 1 : 4;
      slots.step(ex, len, accepted, std::vector<uint8_t>(3, i == 0), x, a);
      records.step(ex, len, accepted, std::vector<uint8_t>(3, i == 0), x, b);
      ASSERT_TRUE(same_bits(a, b)) << "step " << i;
      accepted = len == 1 ? std::vector<int32_t>{1, 1, 1} : std::vector<int32_t>{1 + i % 4, 4, 3 - i % 2};
    }
    EXPECT_EQ(slots.settled(ex, {1, 1, 1}), records.settled(ex, {1, 1, 1}));
    fill_normal(x, rng);
    slots.step(ex, 4, {1, 1, 1}, {0, 0, 0}, x, a);
    records.step(ex, 4, {1, 1, 1}, {0, 0, 0}, x, b);
    EXPECT_EQ(slots.settled(ex, {2, 4, 1}), records.settled(ex, {2, 4, 1}));
  }
}

// Without drafts there is nothing to keep: the same states in both ways.
TEST(KdaLayerDrafts, RecordsExistOnlyWhereThereAreDrafts) {
  const KdaLayer layer(layouts()[0].config());
  const auto plain = layer.states({.columns = 1, .draft_states = DraftStates::records});
  ASSERT_EQ(plain.size(), 2u);
  EXPECT_EQ(plain[0].rule, SlotRule::column);
  const auto specs = layer.states({.columns = 9, .draft_states = DraftStates::records});
  ASSERT_EQ(specs.size(), 3u);
  EXPECT_EQ(specs[0].rule, SlotRule::replay);
  EXPECT_EQ(specs[2].rule, SlotRule::record);
  EXPECT_EQ(specs[2].bytes(), 8 * kHeads * 3 * kDim * 4);
}

}  // namespace
}  // namespace kdelta
