// Many requests on one device: submit, step, collect. step() plans, builds the batch, runs the model, samples, and
// commits. One thread calls it; the model runs on the engine's own team.
#pragma once

#include <functional>
#include <memory>

#include "kdelta/model/model.h"
#include "kdelta/runtime/batch_builder.h"
#include "kdelta/runtime/request.h"
#include "kdelta/runtime/scheduler.h"
#include "kdelta/runtime/state_pool.h"

namespace kdelta::runtime {

struct EngineConfig {
  DType activation = DType::bf16;
  DType recurrent = DType::f32;
  int64_t max_sequences = 1;
  int64_t token_budget = 512;  // tokens of one step
  int64_t max_length = 4096;   // prompt + output of one request
  int64_t cache_tokens = 0;    // of all requests together; 0: max_sequences * max_length
  int64_t page_tokens = 64;
  int64_t prefill_grid = 64;  // see SchedulerConfig
  bool all_logits = false;    // logits of every token, not only of the last (logits, perplexity)
  Options options;
};

// Bytes that an engine of this configuration takes beside the weights. Exact: the scratch part comes from walking a
// full step.
struct MemoryPlan {
  int64_t slots = 0, pages = 0, scratch = 0, logits = 0, batch = 0;
  int64_t slot_bytes = 0, page_bytes = 0;  // of one slot, one page, all layers
  int64_t total() const { return slots + pages + scratch + logits + batch; }
};
MemoryPlan plan_memory(const Model& model, const EngineConfig& config);
// Walks one full step (all tokens of the budget prefilling, or one decode row per sequence) without touching memory.
// The observer sees every op it would run; the return value is the scratch it needs.
int64_t walk_step(const Model& model, const EngineConfig& config, bool decode, OpObserver* observer);

// What a finished or stepped request produced this step.
struct TokenEvent {
  RequestId id = 0;
  int32_t token = -1;  // -1: none, the request only ended
  const SampleResult* sample = nullptr;
  FinishReason finish = FinishReason::none;
  const std::string* error = nullptr;
};

class Engine {
 public:
  // The model must outlive the engine. Throws Error(invalid_argument) naming the setting, Error(out_of_memory).
  Engine(const Model& model, const EngineConfig& config);
  ~Engine();

  const EngineConfig& config() const { return config_; }
  const MemoryPlan& memory() const { return plan_; }

  // Queues a request. Throws Error(invalid_argument): empty prompt, ids outside the vocabulary, prompt that leaves no
  // room for a token, parameters out of range.
  RequestId submit(std::vector<int32_t> prompt, const RequestOptions& options);
  // Ends a request now; its slot and pages are free before this returns. Unknown ids are ignored (it may just have
  // ended).
  void finish(RequestId id, FinishReason reason);

  // One step. False when nothing is left to do. Events arrive during the call, in row order. A step that throws ends
  // its requests with FinishReason::error; the others go on.
  bool step(const std::function<void(const TokenEvent&)>& on_event);

  // The logits of the last step [rows, vocabulary] and, per row, the request. For parity checks.
  View<const float> last_logits() const;

  // Sees every op and named tensor from now on; null: none.
  void observe(OpObserver* ops, TensorProbe* tensors);

  StatePool& pool() { return *pool_; }
  const Request* find(RequestId id) const;

 private:
  void gather_candidates();
  void hand_out_memory();
  void run_step();
  void sample_rows();
  void commit();
  void take_token(Request& r, const SampleResult& s);
  void fail_request(Request& r, const char* what);
  void end_youngest_holder();
  void deliver(const std::function<void(const TokenEvent&)>& on_event);
  void end(Request& r, FinishReason reason);

  const Model& model_;
  EngineConfig config_;
  MemoryPlan plan_;
  BatchCapacity capacity_;
  std::unique_ptr<ThreadPool> threads_;
  std::unique_ptr<Arena> scratch_;
  std::unique_ptr<StatePool> pool_;
  std::unique_ptr<BatchBuilder> builder_;
  Buffer logits_;
  Exec exec_;
  RequestId next_id_ = 1;

  std::vector<std::unique_ptr<Request>> requests_;  // in order of arrival
  std::vector<Candidate> candidates_;
  std::vector<Request*> live_;
  Plan step_plan_;
  std::vector<BatchRow> rows_;
  std::vector<SampleRow> sample_rows_;
  std::vector<SampleResult> results_;
  std::vector<TokenEvent> events_;
  int64_t logit_rows_ = 0;
};

}  // namespace kdelta::runtime
