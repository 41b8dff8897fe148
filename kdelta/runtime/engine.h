// Many requests on one device: submit, step, collect. step() plans, builds the batch, runs the model, samples, and
// commits. One thread calls it; the model runs on the engine's own team.
#pragma once

#include <functional>
#include <memory>

#include "kdelta/core/trace.h"
#include "kdelta/runtime/device_queue.h"
#include "kdelta/runtime/device_sampler.h"
#include "kdelta/runtime/drafter.h"
#include "kdelta/runtime/engine_config.h"
#include "kdelta/runtime/recording.h"
#include "kdelta/runtime/scheduler.h"
#include "kdelta/runtime/state_image.h"
#include "kdelta/runtime/state_pool.h"

namespace kdelta::runtime {

// What a finished or stepped request produced this step. A verification may give several of one request.
struct TokenEvent {
  RequestId id = 0;
  int32_t token = -1;  // -1: none, the request only ended
  const SampleResult* sample = nullptr;
  FinishReason finish = FinishReason::none;
  const std::string* error = nullptr;
};

// Work since the engine was made. Counts, not times.
struct EngineStats {
  int64_t steps = 0, prefill_tokens = 0, decode_tokens = 0;  // tokens computed; decode: drafts included
  int64_t drafts = 0, accepted_drafts = 0, failed_proposals = 0;
  int64_t preempted = 0, saved = 0, replayed_tokens = 0;  // saved: of the preempted, those whose state was kept
  int64_t followed = 0;  // requests that waited for another's prefix and started behind it
};

class Engine {
 public:
  // The model must outlive the engine. With drafts > 0 and no drafter, the prompt is looked up. Throws
  // Error(invalid_argument) naming the setting, Error(out_of_memory).
  Engine(const Model& model, const EngineConfig& config, std::unique_ptr<Drafter> drafter = nullptr);
  ~Engine();

  // The part `host` of the plan, without what depends on the model.
  static int64_t host_bytes(const EngineConfig& config);

  const EngineConfig& config() const { return config_; }
  const MemoryPlan& memory() const { return plan_; }
  const EngineStats& stats() const { return stats_; }
  const PrefixStats& prefix_stats() const { return prefixes_->stats(); }

  // Queues a request. Throws Error(invalid_argument): empty prompt, ids outside the vocabulary, prompt that leaves no
  // room for a token, parameters out of range.
  RequestId submit(std::vector<int32_t> prompt, const RequestOptions& options);
  // Throws what submit() would; looks at nothing that a step changes, so any thread may ask.
  void check(std::span<const int32_t> prompt, const RequestOptions& options) const;
  // Ends a request now; its slot and pages are free before this returns. Unknown ids are ignored (it may just have
  // ended).
  void finish(RequestId id, FinishReason reason);

  // The state of a live request, of this model's shard, with the tokens up to now; the request itself goes on. Throws
  // Error(invalid_argument) for an id that is not live.
  StateImage export_state(RequestId id);
  // Queues a request that goes on where the image ends: its next token comes from a decode row. The state lies in
  // memory of its own until it is admitted. Throws Error(invalid_argument) naming what does not fit: another model,
  // shard or dtype, tokens that are computed already, more than the context holds.
  RequestId import_state(const StateImage& image);
  // The longest beginning of `prompt` that a request could start behind now, as an image of that many tokens; of none
  // when nothing is kept.
  StateImage export_prefix(std::span<const int32_t> prompt);
  // Keeps such an image for requests that begin with its tokens, who answer as if this engine had computed it (to the
  // bit, when it was computed with the same EngineConfig::arithmetic). False
  // when all snapshots or pages are in use. Throws Error(invalid_argument) naming what does not fit.
  bool import_prefix(const StateImage& image);
  // Throws what import_prefix() would, and keeps nothing.
  void check_prefix(const StateImage& image) const;

  // Requests that wait or run.
  int64_t pending() const;
  // The model's weights have been replaced. Forgets what was computed with the old ones: prefixes; state images of
  // before are those of another model, which `model_id` now tells apart. Throws Error(invalid_argument) while requests
  // wait or run: their states are of the old weights.
  void weights_changed(uint64_t model_id);

  // One step. False when nothing is left to do. Events arrive during the call, in row order. A step that throws ends
  // its requests with FinishReason::error; the others go on.
  bool step(const std::function<void(const TokenEvent&)>& on_event);

  // A step without requests in the shape of one of the configuration's buckets: this rank's part in the collectives of
  // ranks that have work in that shape. No state changes. Throws what the step threw.
  void idle(const Bucket& bucket);

  // The logits of the last step [rows, vocabulary] and, per row, the request. For parity checks.
  View<const float> last_logits();
  // What the last step ran and why, for people. Filled only while explain(true).
  const std::string& explanation() const { return explanation_; }
  void explain(bool on) { explain_ = on; }

  // Sees every op and named tensor from now on; null: none. As long as somebody does, nothing recorded is replayed.
  void observe(OpObserver* ops, TensorProbe* tensors);

  // What was recorded of a bucket of the configuration; on a CUDA device.
  const Recording& recorded(size_t bucket) const { return recordings_.at(bucket); }
  // Of the CUDA device it runs on; null on the CPU.
  Stream* stream() const { return exec_.stream; }
  // The threads its ops run on, for measurements between steps.
  ThreadPool& team() { return *threads_; }
  StatePool& pool() { return *pool_; }
  PrefixCache& prefixes() { return *prefixes_; }
  const Request* find(RequestId id) const;
  // In order of arrival; those that ended in the last step are among them.
  std::span<const std::unique_ptr<Request>> requests() const { return requests_; }

 private:
  std::unique_ptr<Request> checked(std::vector<int32_t> prompt, const RequestOptions& options) const;
  RequestId enqueue(std::unique_ptr<Request> request);
  void reserve_queue(size_t requests);
  StateImage empty_image() const;
  void add_parts(StateImage& image, std::span<const char> bytes) const;
  std::vector<char> joined_parts(const StateImage& image) const;
  void check_image(const StateImage& image) const;
  void draft();
  void plan();
  void withdraw_offers();
  void gather_candidates(int64_t offers);
  void offer_prefix(Request& r, Candidate& c);
  void find_leader(Request& r, Candidate& c);
  int64_t usable_pages() const;
  void preempt(Request& r);
  bool save(Request& r);
  void start(Request& r, size_t candidate);
  void hand_out_memory();
  std::string explain_rows() const;
  template <class F>
  void note(const F& text);
  void reserve_snapshots(Request& r, const PlanRow& row);
  void give_back(Request& r);
  void drop_saved(Request& r);
  void run_step();
  void forward(const Batch& b, const Bucket* bucket);
  void run_recorded(const Batch& b, const Bucket& bucket, Recording& recording);
  void drain();
  void capture_buckets();
  void sample_rows();
  void commit();
  void commit_row(const BatchRow& row, std::span<const SampleResult> results,
                  std::span<const TokenConstraint::Next> next);
  void drop_refused_drafts(Request& r);
  void constrain(size_t m, Request& r, SampleRow& row);
  bool end_constrained(Request& r, TokenConstraint::Next next);
  bool take_token(Request& r, const SampleResult& s);
  void publish(Request& r);
  bool is_awaited(const Request& r) const;
  static void set_error(Request& r, const char* what);
  void fail_request(Request& r, const char* what);
  void deliver(const std::function<void(const TokenEvent&)>& on_event);
  void end(Request& r, FinishReason reason);

  const Model& model_;
  EngineConfig config_;
  std::unique_ptr<Drafter> drafter_;
  MemoryPlan plan_;
  BatchCapacity capacity_;
  SchedulerConfig scheduler_;
  EngineStats stats_;
  std::unique_ptr<ThreadPool> threads_;
  std::unique_ptr<DeviceQueue> queue_;  // null on the CPU, as the next two
  std::unique_ptr<DeviceSampler> sampler_;
  std::unique_ptr<HostBuffer> host_logits_;  // made when somebody asks for them
  std::unique_ptr<Arena> scratch_;
  std::unique_ptr<StatePool> pool_;
  std::unique_ptr<PrefixCache> prefixes_;
  std::unique_ptr<BatchBuilder> builder_;
  Buffer logits_;
  Exec exec_;
  OpRanges op_ranges_;                 // sees the ops when somebody traces and nobody else watches
  bool watched_ = false;               // observe() named somebody
  std::vector<Recording> recordings_;  // by bucket of the configuration
  std::vector<bool> broken_;           // the model's break list
  RequestId next_id_ = 1;

  std::vector<std::unique_ptr<Request>> requests_;  // in order of arrival
  std::vector<Candidate> candidates_;
  std::vector<Request*> live_;
  std::vector<PrefixCache::Hit> hits_;  // by candidate
  std::vector<DraftQuery> queries_;
  Plan step_plan_;
  std::vector<BatchRow> rows_;
  std::vector<RowSnapshot> row_snapshots_;
  std::vector<int64_t> boundaries_, wanted_;
  std::vector<SampleRow> sample_rows_;
  std::vector<SampleResult> results_;
  std::vector<uint32_t> masks_;              // by row of logits; empty before the first request with a constraint
  std::vector<TokenConstraint::Next> next_;  // by row of logits: what its constraint says
  struct Heard {
    TokenEvent event;
    const Request* request;
  };
  std::vector<Heard> events_;
  int64_t logit_rows_ = 0, saved_bytes_ = 0;
  bool explain_ = false;
  std::string explanation_;
};

}  // namespace kdelta::runtime
