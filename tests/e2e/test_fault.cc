// Faults put in by hand: they stay with their own request, and what others get does not change by a bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "kdelta/core/error.h"
#include "tests/e2e/crowd.h"

namespace kdelta::test {
namespace {

using runtime::Engine;
using runtime::EngineConfig;
using runtime::FinishReason;
using runtime::RequestId;

class Fault : public testing::TestWithParam<std::string> {
 protected:
  Fault() : loaded_(load_placed(GetParam())) {}
  const Model& model() const { return *loaded_.model; }
  EngineConfig config(int64_t sequences, int64_t drafts = 0) const {
    EngineConfig c = engine_config(DType::bf16);
    c.options.threads = 1;
    c.max_sequences = sequences;
    c.token_budget = 256;
    c.max_length = 256;
    c.drafts = drafts;
    return c;
  }
  LoadedModel loaded_;
};

INSTANTIATE_TEST_SUITE_P(Models, Fault, testing::Values("tests/golden/k3_a", "tests/golden/linear_a"),
                         [](const auto& kd) { return kd.param.substr(kd.param.rfind('/') + 1); });

// Cases C2, F4: one request's numbers break; it ends with an error, the others and whoever gets its slot next do not
// notice.
TEST_P(Fault, NanOfOneRequestStaysWithIt) {
  class Poison final : public TensorProbe {
   public:
    void on_tensor(std::string_view name, int layer, const AnyConstView& tensor, Stream*) override {
      if (!armed || name != "layer_out" || layer != 0) return;
      auto* row = const_cast<bf16*>(tensor.at<const bf16>(1));
      for (int64_t i = 0; i < tensor.dim(1); ++i) row[i] = to_bf16(std::numeric_limits<float>::quiet_NaN());
    }
    bool armed = false;
  } poison;
  for (const int64_t drafts : {0, 4}) {
    EngineConfig c = config(3, drafts);
    c.prefix_snapshots = 4;
    Engine engine(model(), c);
    engine.observe(nullptr, &poison);
    Crowd crowd(engine);
    std::map<RequestId, Answer> want;
    RequestId bad = 0;
    for (uint64_t i = 0; i < 6; ++i) {
      const auto ids = random_prompt(static_cast<int64_t>(70 + i), i);
      const RequestId id = crowd.submit(ids, sampled(i, 30));
      if (i == 1) bad = id;
      if (i != 1) want[id] = alone(model(), c, ids, sampled(i, 30));
    }
    crowd.step(), crowd.step(), crowd.step();
    // Rows are in order of arrival: row 1 of the tensor belongs to the second request, or to the first one's drafts.
    poison.armed = true;
    crowd.step();
    poison.armed = false;
    crowd.run();
    const RequestId hit = crowd[bad].finish == FinishReason::error ? bad : bad - 1;
    EXPECT_TRUE(drafts > 0 || hit == bad);
    EXPECT_THAT(crowd[hit].error, testing::HasSubstr("no usable logit")) << drafts;
    want.erase(hit);
    for (const auto& [id, answer] : want) EXPECT_TRUE(crowd[id] == answer) << "request " << id << crowd[id].error;
  }
}

TEST_P(Fault, ADrafterThatThrowsCostsNothingButItsDrafts) {
  class Throws final : public runtime::Drafter {
   public:
    explicit Throws(int* forgotten) : forgotten_(forgotten) {}
    void propose(std::span<runtime::DraftQuery> queries) override {
      for (runtime::DraftQuery& q : queries) q.tokens.assign(static_cast<size_t>(q.most), 3);
      if (++calls_ % 2 == 0) fail(ErrorCode::failed, "injected");
    }
    void forget(RequestId) override { ++*forgotten_; }

   private:
    int* forgotten_;
    int calls_ = 0;
  };
  int forgotten = 0;
  Engine engine(model(), config(2, 4), std::make_unique<Throws>(&forgotten));
  Crowd crowd(engine);
  std::map<RequestId, Answer> want;
  for (uint64_t i = 0; i < 3; ++i) {
    const auto ids = random_prompt(30, i);
    want[crowd.submit(ids, sampled(i, 20))] = alone(model(), config(1), ids, sampled(i, 20));
  }
  crowd.run();
  for (const auto& [id, answer] : want) EXPECT_TRUE(crowd[id] == answer) << "request " << id;
  EXPECT_GT(engine.stats().failed_proposals, 0);
  EXPECT_GT(forgotten, 3);
}

// A model with its pools and a batch of two requests in the middle of verifying, built by hand.
class ByHand {
 public:
  ByHand(const Model& model, const EngineConfig& c)
      : model_(model),
        config_(c),
        engine_(model, c),
        builder_(Device{}, runtime::batch_capacity(c)),
        threads_(1),
        scratch_(Device{}, engine_.memory().scratch),
        logits_(static_cast<size_t>(runtime::batch_capacity(c).logit_rows * model.config().vocab_size)) {
    exec_.scratch = &scratch_;
    exec_.threads = &threads_;
    exec_.options = &config_.options;
    for (int i = 0; i < 2; ++i) {
      runtime::Request& r = requests_[i];
      r.prompt = random_prompt(40, static_cast<uint64_t>(i));
      r.computed = 39;
      r.slots = {engine_.pool().take_slot()};
      for (int64_t d = 0; d < c.drafts && engine_.pool().has_draft_slots(); ++d)
        r.slots.push_back(engine_.pool().take_draft_slot());
      r.pages = {engine_.pool().take_page()};
    }
    engine_.pool().poison_free();
  }
  const Batch& build() {
    const runtime::BatchRow rows[] = {{.request = &requests_[0], .tokens = 1}, {.request = &requests_[1], .tokens = 1}};
    return builder_.build(rows, false);
  }
  const Batch& build(int64_t rows, const runtime::Bucket& bucket) {
    const runtime::BatchRow all[] = {{.request = &requests_[0], .tokens = 1}, {.request = &requests_[1], .tokens = 1}};
    return builder_.build(std::span(all).first(static_cast<size_t>(rows)), false, &bucket);
  }
  // Settled slot and pages of one of the two.
  std::vector<char> state(int i) {
    const runtime::Request& r = requests_[i];
    std::vector<char> bytes(static_cast<size_t>(engine_.pool().saved_bytes(r.computed)));
    engine_.pool().save(r.slots[0], r.pages, r.computed, bytes);
    return bytes;
  }
  const Batch& build_idle(const runtime::Bucket& bucket) { return builder_.build({}, false, &bucket); }
  void forward(const Batch& b) {
    model_.forward(exec_, b, engine_.pool().views(), config_.activation,
                   View<float>(logits_.data(), {b.logit_row.dim(0), model_.config().vocab_size}));
  }
  std::span<const float> logits() const { return logits_; }
  std::vector<char> memory() {
    std::vector<char> all;
    for (const auto& layer : engine_.pool().views())
      for (const AnyView& v : layer) {
        const auto* p = static_cast<const char*>(v.data);
        all.insert(all.end(), p, p + v.shape.numel() * dtype_bytes(v.dtype));
      }
    return all;
  }

 private:
  const Model& model_;
  EngineConfig config_;
  Engine engine_;
  runtime::BatchBuilder builder_;
  ThreadPool threads_;
  Arena scratch_;
  std::vector<float> logits_;
  Exec exec_;
  runtime::Request requests_[2];
};

// Case C6 for its whole kind: a count outside its range, a foreign slot, a slot named twice. The step is refused and no
// state of anybody has changed by a bit.
TEST_P(Fault, AStepThatNamesAWrongStateChangesNone) {
  const EngineConfig c = config(2, 4);
  ByHand hand(model(), c);
  const std::vector<char> before = hand.memory();
  const auto refused = [&](auto change) {
    const Batch& b = hand.build();
    change(const_cast<int32_t*>(b.accepted.data), const_cast<int32_t*>(b.slot.data));
    EXPECT_THROW(hand.forward(b), Error);
    EXPECT_TRUE(hand.memory() == before);
  };
  for (const int32_t accepted : {0, -1, 6, 1 << 30}) refused([&](int32_t* a, int32_t*) { a[1] = accepted; });
  for (const int32_t slot : {0, -2, 1 << 30}) refused([&](int32_t*, int32_t* s) { s[5] = slot; });
  refused([](int32_t*, int32_t* s) { s[5] = s[0]; });
}

// Case B3: a step of one row in a bucket of two, behind a step of two: the padding names nothing of the second request,
// whose slot and pages stay what they are, as does all memory but the first one's.
TEST_P(Fault, PaddingNamesNoSlotOfALargerStepBeforeIt) {
  ByHand hand(model(), config(2, 4));
  const runtime::Bucket bucket{.rows = 2, .row_tokens = 5};
  hand.forward(hand.build(2, bucket));
  const std::vector<char> first = hand.state(0), second = hand.state(1);
  hand.forward(hand.build(1, bucket));
  EXPECT_TRUE(hand.state(1) == second);
  EXPECT_FALSE(hand.state(0) == first);
  const std::vector<char> before = hand.memory();
  hand.forward(hand.build(0, bucket));
  EXPECT_TRUE(hand.memory() == before);
}

// An idle step of a captured shape: outputs are zeros, nobody's state changes, whatever free memory holds.
TEST_P(Fault, AnIdleStepTouchesNothing) {
  ByHand hand(model(), config(2, 4));
  const std::vector<char> before = hand.memory();
  const runtime::Bucket bucket{.rows = 2, .row_tokens = 5};
  const Batch& b = hand.build_idle(bucket);
  hand.forward(b);
  EXPECT_TRUE(hand.memory() == before);
  for (int64_t i = 0; i < b.logit_row.dim(0) * model().config().vocab_size; ++i)
    ASSERT_EQ(hand.logits()[static_cast<size_t>(i)], 0.0f);
}

}  // namespace
}  // namespace kdelta::test
