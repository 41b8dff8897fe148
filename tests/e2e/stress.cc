#include "tests/e2e/stress.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kdelta/api/state_file.h"

namespace kdelta::test {
namespace {

using runtime::Engine;
using runtime::EngineConfig;
using runtime::FinishReason;
using runtime::RequestId;

// Half of its drafts are the truth, which it finds in the answers that requests give alone.
class Oracle final : public runtime::Drafter {
 public:
  explicit Oracle(uint64_t seed) : rng_(seed) {}
  std::map<RequestId, std::vector<int32_t>> answers;
  void propose(std::span<runtime::DraftQuery> queries) override {
    for (runtime::DraftQuery& q : queries) {
      const std::vector<int32_t>& truth = answers[q.request->id];
      for (int64_t i = 0; i < q.most && rng_() % 5 != 0; ++i) {
        const auto at = static_cast<size_t>(q.request->generated() + i);
        q.tokens.push_back(at < truth.size() && rng_() % 4 != 0 ? truth[at] : static_cast<int32_t>(rng_() % 500));
      }
    }
  }

 private:
  std::mt19937_64 rng_;
};

class Mix {
 public:
  Mix(const Model& model, const Model* draft, uint64_t seed, const StressScale& scale, StressCounts& counts)
      : model_(model), scale_(scale), counts_(counts), rng_(seed), tight_(seed % 2 == 0) {
    make_config();
    make_prefixes();
    auto drafter = make_drafter(draft);
    engine_ = std::make_unique<Engine>(model, config_, std::move(drafter));
    crowd_ = std::make_unique<Crowd>(*engine_);
  }

  void run() {
    int64_t left = pick(scale_.requests / 2, scale_.requests);
    const int64_t pages = engine_->pool().free_pages(), slots = engine_->pool().free_slots(),
                  draft_slots = engine_->pool().free_draft_slots();
    bool more = true;
    for (int64_t step = 0; more || left > 0; ++step) {
      ASSERT_LT(step, 100000) << "does not end";
      while (left > 0 && (!more || rng_() % 3 == 0)) submit(), --left, more = true;
      if (rng_() % 4 == 0) engine_->pool().poison_free();
      more = crowd_->step();
      meddle();
    }
    compare();
    engine_->prefixes().clear();
    EXPECT_EQ(engine_->pool().free_pages(), pages);
    EXPECT_EQ(engine_->pool().free_slots(), slots);
    EXPECT_EQ(engine_->pool().free_draft_slots(), draft_slots);
    counts_.preempted += engine_->stats().preempted;
    counts_.accepted += engine_->stats().accepted_drafts;
    counts_.hits += engine_->prefix_stats().hits;
    counts_.padded += config_.buckets.empty() ? 0 : 1;
  }

 private:
  struct Job {
    std::vector<int32_t> prompt;
    Answer want;
    std::vector<int32_t> before;  // answered before it was moved
    std::vector<float> before_logprobs;
    bool cancelled = false;
  };

  int64_t pick(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(rng_() % static_cast<uint64_t>(high - low + 1));
  }
  // Short ones are as frequent as long ones.
  int64_t length(int64_t most) {
    const double x = static_cast<double>(rng_() % 1000) / 1000;
    return std::max<int64_t>(1, std::lround(std::pow(static_cast<double>(most), x)));
  }

  void make_config() {
    config_ = engine_config(DType::bf16);
    config_.options.threads = rng_() % 4 == 0 ? 2 : 1;
    if (rng_() % 4 == 0) config_.recurrent = DType::bf16;
    if (rng_() % 8 == 0) config_.activation = DType::f32;
    config_.max_sequences = pick(1, scale_.sequences);
    config_.token_budget = config_.max_sequences + pick(0, 400);
    config_.max_length = scale_.longest + scale_.output + 1;
    if (tight_) {  // memory for little more than one
      config_.cache_tokens = config_.max_length + pick(0, 64);
      config_.max_sequences = std::max<int64_t>(config_.max_sequences, 4);
      config_.token_budget += 4;
    }
    if (rng_() % 3 != 0) config_.drafts = pick(1, 16);
    config_.draft_states = rng_() % 2 == 0 ? DraftStates::slots : DraftStates::records;
    if (rng_() % 4 != 0) config_.prefix_snapshots = pick(1, 12);
    config_.prefix_interval = pick(1, 200);
    if (rng_() % 2 == 0) config_.save_bytes = pick(0, 40) << 20;
    for (int64_t rows = 1; rng_() % 3 != 0 && rows <= config_.max_sequences; rows *= 2)
      config_.buckets.push_back({.rows = rows, .row_tokens = pick(1, 1 + config_.drafts)});
    if (!config_.buckets.empty() && rng_() % 2 == 0)
      config_.buckets.push_back({.rows = config_.max_sequences, .mixed_tokens = pick(1, config_.token_budget)});
  }

  std::unique_ptr<runtime::Drafter> make_drafter(const Model* draft) {
    if (config_.drafts == 0 || rng_() % 3 == 0) return nullptr;
    if (draft != nullptr && rng_() % 2 == 0)
      return runtime::make_model_drafter(*draft,
                                         {.device = config_.device,
                                          .max_sequences = config_.max_sequences,
                                          .max_length = config_.max_length,
                                          .drafts = config_.drafts,
                                          .token_budget = pick(1, 300)},
                                         model_.config().vocab_size);
    auto oracle = std::make_unique<Oracle>(rng_());
    oracle_ = oracle.get();
    return oracle;
  }

  void make_prefixes() {
    for (int i = 0; i < 2; ++i) prefixes_.push_back(random_prompt(pick(100, scale_.longest), rng_()));
  }

  void submit() {
    Job job;
    const auto& prefix = prefixes_[rng_() % prefixes_.size()];
    if (rng_() % 2 == 0)
      job.prompt.assign(prefix.begin(), prefix.begin() + pick(0, static_cast<int64_t>(prefix.size())));
    const auto room = scale_.longest - static_cast<int64_t>(job.prompt.size());
    const auto own =
        random_prompt(std::max<int64_t>(job.prompt.empty() ? 1 : 0, length(std::max<int64_t>(room, 1)) - 1), rng_());
    job.prompt.insert(job.prompt.end(), own.begin(), own.end());
    runtime::RequestOptions o =
        rng_() % 2 == 0 ? greedy(pick(1, scale_.output)) : sampled(rng_(), pick(1, scale_.output));
    if (rng_() % 4 == 0) o.sampling.repetition_penalty = 1.2f;
    if (rng_() % 4 == 0) o.stop_ids = {static_cast<int32_t>(rng_() % 500)}, o.min_tokens = pick(0, 5);
    job.want = alone(model_, config_, job.prompt, o);
    const RequestId id = crowd_->submit(job.prompt, o);
    if (oracle_ != nullptr) oracle_->answers[id] = job.want.tokens;
    jobs_[id] = std::move(job);
    ++counts_.requests;
  }

  // Somebody cancels, or a request is taken out and put in again behind all others.
  void meddle() {
    if (rng_() % 12 != 0 || jobs_.empty()) return;
    auto it = jobs_.begin();
    std::advance(it, static_cast<int64_t>(rng_() % jobs_.size()));
    const runtime::Request* r = engine_->find(it->first);
    if (r == nullptr || r->finish != FinishReason::none) return;
    if (rng_() % 2 == 0) {
      engine_->finish(it->first, FinishReason::cancelled);
      it->second.cancelled = true;
      ++counts_.cancelled;
      return;
    }
    const auto image = decode_state(encode_state(engine_->export_state(it->first)), "memory");
    const Answer& so_far = (*crowd_)[it->first];
    Job job = std::move(it->second);
    job.before.insert(job.before.end(), so_far.tokens.begin(), so_far.tokens.end());
    job.before_logprobs.insert(job.before_logprobs.end(), so_far.logprobs.begin(), so_far.logprobs.end());
    engine_->finish(it->first, FinishReason::cancelled);
    jobs_.erase(it);
    const RequestId id = engine_->import_state(image);
    if (oracle_ != nullptr) oracle_->answers[id] = job.want.tokens;
    jobs_[id] = std::move(job);
    ++counts_.moved;
  }

  void compare() {
    for (auto& [id, job] : jobs_) {
      const Answer& got = (*crowd_)[id];
      job.before.insert(job.before.end(), got.tokens.begin(), got.tokens.end());
      job.before_logprobs.insert(job.before_logprobs.end(), got.logprobs.begin(), got.logprobs.end());
      Answer whole{job.before, job.before_logprobs, got.finish, got.error};
      if (job.cancelled) {
        // What was said until then is a beginning of the answer.
        ASSERT_LE(whole.tokens.size(), job.want.tokens.size());
        job.want.tokens.resize(whole.tokens.size());
        job.want.logprobs.resize(whole.logprobs.size());
        job.want.finish = whole.finish;
      }
      EXPECT_TRUE(whole == job.want) << "request " << id << " of " << job.prompt.size() << " tokens " << got.error;
      ++counts_.compared;
    }
  }

  const Model& model_;
  StressScale scale_;
  StressCounts& counts_;
  std::mt19937_64 rng_;
  bool tight_;
  EngineConfig config_;
  std::vector<std::vector<int32_t>> prefixes_;
  Oracle* oracle_ = nullptr;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Crowd> crowd_;
  std::map<RequestId, Job> jobs_;
};

}  // namespace

void run_mix(const Model& model, const Model* draft, uint64_t seed, const StressScale& scale, StressCounts* counts) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  Mix(model, draft, seed, scale, *counts).run();
}

}  // namespace kdelta::test
