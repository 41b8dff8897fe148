#include <algorithm>
#include <map>

#include "kdelta/core/check.h"
#include "kdelta/runtime/batch_builder.h"
#include "kdelta/runtime/device_queue.h"
#include "kdelta/runtime/device_sampler.h"
#include "kdelta/runtime/drafter.h"
#include "kdelta/runtime/engine_config.h"

namespace kdelta::runtime {
namespace {

// Two slots a sequence: of the certain tokens, and of the copy that runs ahead.
EngineConfig engine_config(const DraftModelConfig& c) {
  EngineConfig e;
  e.device = c.device;
  e.activation = c.activation;
  e.recurrent = c.recurrent;
  e.max_sequences = e.prefix_snapshots = c.max_sequences;
  e.token_budget = std::max(c.token_budget, c.max_sequences);
  e.max_length = c.max_length;
  e.prefill_grid = 1;  // drafts need not be exact, only quick
  return e;
}

class ModelDrafter final : public Drafter {
 public:
  ModelDrafter(const Model& model, const DraftModelConfig& config)
      : model_(model),
        config_(engine_config(config)),
        plan_(plan_memory(model, config_)),
        queue_(config.device.kind == DeviceKind::cpu
                   ? nullptr
                   : std::make_unique<DeviceQueue>(config.device, plan_.aux_scratch, replay_numbers(config_))),
        pool_(config.device, model.states(state_params(config_)), pool_size(config_), {}, stream()),
        builder_(config.device, batch_capacity(config_), stream()),
        scratch_(config.device, plan_.scratch - plan_.aux_scratch),
        logits_(config.device, plan_.logits) {
    const auto n = static_cast<size_t>(config_.max_sequences);
    rows_.reserve(n);
    row_queries_.reserve(n);
    sample_rows_.reserve(n);
    results_.resize(n);
    again_.reserve(n);
  }

  // The plan's, less the prefix cache that is not used here, and what is kept per target request.
  static int64_t bytes(const MemoryPlan& plan, const EngineConfig& c) {
    const auto size = [](auto... types) { return static_cast<int64_t>((sizeof(types) + ...)); };
    constexpr int64_t kMapNode = 64;
    const int64_t track = size(Track{}) + kMapNode + request_bytes(c) + 4 * (kMostDrafts + 2);
    return plan.total() - PrefixCache::bytes(prefix_config(c), pool_size(c).pages) +
           c.max_sequences * (track + size(BatchRow{}, SampleRow{}, SampleResult{}, 0) + 16);
  }
  int64_t bytes() const override { return bytes(plan_, config_); }

  void attach(const Exec& ex) override {
    exec_ = ex;
    exec_.scratch = &scratch_;
    if (!queue_) return;
    queue_->attach(exec_);
    sampler_ = std::make_unique<DeviceSampler>(exec_, batch_capacity(config_).logit_rows, model_.config().vocab_size);
  }

  void propose(std::span<DraftQuery> queries) override {
    catch_up(queries);
    for (int64_t i = 0; !rows_.empty(); ++i) {
      run();
      take_drafts(i);
      next_rows();
    }
    for (DraftQuery& q : queries) rewind(q);
  }

  void forget(RequestId id) override {
    const auto it = tracks_.find(id);
    if (it == tracks_.end()) return;
    pool_.give_back_slots(it->second.slots);
    pool_.give_back_slots(it->second.request.slots);
    pool_.drop_pages(it->second.request.pages);
    tracks_.erase(it);
  }

 private:
  // What is kept of a target request. `request` is a sequence of the draft model: its prompt is all that is certain,
  // with the drafts of this call behind; its slot is the one it runs in now.
  struct Track {
    Request request;
    std::vector<int32_t> slots;  // the other slot
    bool ahead = false;          // request runs in the copy, `slots` holds the certain state
  };

  Track& track(const Request& target) {
    const auto [it, fresh] = tracks_.try_emplace(target.id);
    Track& t = it->second;
    if (fresh) {
      t.request.id = target.id;
      t.request.slots.reserve(1);
      t.slots.reserve(1);
      t.request.prompt.reserve(static_cast<size_t>(config_.max_length + kMostDrafts));
      t.request.pages.reserve(static_cast<size_t>(pages_for(config_.max_length, config_.page_tokens)));
      t.request.slots.push_back(pool_.take_slot());
      t.slots.push_back(pool_.take_slot());
    }
    for (int64_t i = t.request.known(); i < target.known(); ++i) t.request.prompt.push_back(target.token(i));
    return t;
  }

  void add_row(DraftQuery& q, Track& t, int64_t tokens, bool prefill) {
    Request& r = t.request;
    while (static_cast<int64_t>(r.pages.size()) < pages_for(r.computed + tokens, config_.page_tokens))
      r.pages.push_back(pool_.take_page());
    rows_.push_back({.request = &r, .tokens = tokens, .prefill = prefill});
    row_queries_.push_back(&q);
  }

  // One pass over what the targets accepted since; a prompt that is longer than the budget takes several calls, and
  // nothing is drafted before its end.
  void catch_up(std::span<DraftQuery> queries) {
    rows_.clear();
    row_queries_.clear();
    int64_t budget = config_.token_budget;
    for (DraftQuery& q : queries) {
      Track& t = track(*q.request);
      const int64_t tokens = std::min(budget, t.request.known() - t.request.computed);
      if (tokens == 0) continue;
      budget -= tokens;
      add_row(q, t, tokens, true);
    }
  }

  void run() {
    const Batch& b = builder_.build(rows_, false);
    const int64_t M = b.logit_row.dim(0);
    const View<float> logits = logits_.view<float>({M, model_.config().vocab_size});
    model_.forward(exec_, b, pool_.views(), config_.activation, logits);
    for (const BatchRow& row : rows_) row.request->computed += row.tokens;
    sample_rows_.clear();
    for (const int owner : builder_.logit_owner()) {
      const Request& target = *row_queries_[static_cast<size_t>(owner)]->request;
      const std::span<const int32_t> text = rows_[static_cast<size_t>(owner)].request->prompt;
      sample_rows_.push_back({.params = target.options.sampling,
                              .bias = target.options.bias,
                              .prompt = text.first(target.prompt.size()),
                              .output = text.subspan(target.prompt.size())});
    }
    const std::span<SampleResult> results = std::span(results_).first(sample_rows_.size());
    if (!queue_) return sample(exec_, {.logits = logits, .rows = sample_rows_, .results = results});
    if (!sample_rows_.empty()) sampler_->enqueue(logits, sample_rows_);
    queue_->finish();
    if (!sample_rows_.empty()) sampler_->collect(results);
  }

  // Before the first draft the certain state is set aside: the copy runs ahead in the other slot.
  void take_drafts(int64_t i) {
    const auto owners = builder_.logit_owner();
    for (size_t m = 0; m < owners.size(); ++m) {
      DraftQuery& q = *row_queries_[static_cast<size_t>(owners[m])];
      Track& t = tracks_.at(q.request->id);
      if (results_[m].token < 0 || static_cast<int64_t>(q.tokens.size()) >= q.most) continue;
      q.tokens.push_back(results_[m].token);
      t.request.prompt.push_back(results_[m].token);
      if (i > 0 || q.most == 1) continue;
      pool_.copy_slot(t.request.slots[0], t.slots[0]);
      std::swap(t.request.slots, t.slots);
      t.ahead = true;
    }
  }

  void next_rows() {
    std::vector<DraftQuery*>& again = again_;
    again.assign(row_queries_.begin(), row_queries_.end());
    rows_.clear();
    row_queries_.clear();
    for (DraftQuery* q : again) {
      Track& t = tracks_.at(q->request->id);
      const bool drafted = t.request.known() > q->request->known() && t.request.known() - t.request.computed == 1;
      if (drafted && static_cast<int64_t>(q->tokens.size()) < q->most) add_row(*q, t, 1, false);
    }
  }

  // Back to the certain tokens and their state.
  void rewind(DraftQuery& q) {
    Track& t = tracks_.at(q.request->id);
    if (t.ahead) std::swap(t.request.slots, t.slots);
    t.ahead = false;
    t.request.prompt.resize(static_cast<size_t>(q.request->known()));
    t.request.computed = std::min(t.request.computed, t.request.known());
  }

  Stream* stream() const { return queue_ ? &queue_->stream() : nullptr; }

  const Model& model_;
  EngineConfig config_;
  MemoryPlan plan_;
  std::unique_ptr<DeviceQueue> queue_;  // null on the CPU
  std::unique_ptr<DeviceSampler> sampler_;
  StatePool pool_;
  BatchBuilder builder_;
  Arena scratch_;
  Buffer logits_;
  Exec exec_;
  std::map<RequestId, Track> tracks_;
  std::vector<BatchRow> rows_;
  std::vector<DraftQuery*> row_queries_, again_;
  std::vector<SampleRow> sample_rows_;
  std::vector<SampleResult> results_;
};

}  // namespace

int64_t plan_model_drafter(const Model& model, const DraftModelConfig& config) {
  const EngineConfig c = engine_config(config);
  return ModelDrafter::bytes(plan_memory(model, c), c);
}

std::unique_ptr<Drafter> make_model_drafter(const Model& model, const DraftModelConfig& config,
                                            int64_t target_vocabulary) {
  if (model.config().vocab_size != target_vocabulary)
    fail(ErrorCode::invalid_argument, "draft model: a vocabulary of ", model.config().vocab_size,
         " tokens, expected the target's ", target_vocabulary);
  return std::make_unique<ModelDrafter>(model, config);
}

}  // namespace kdelta::runtime
