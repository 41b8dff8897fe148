// Who guesses the next tokens. A verification step runs the guesses behind the certain token and keeps those that the
// model itself would have produced, so a bad guess costs time and never changes an answer.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "kdelta/core/exec.h"
#include "kdelta/model/model.h"
#include "kdelta/runtime/request.h"

namespace kdelta::runtime {

struct DraftQuery {
  const Request* request = nullptr;  // prompt and output are final; drafts is 0
  int64_t most = 0;                  // tokens wanted at most
  std::vector<int32_t> tokens;       // the answer; capacity for `most` is there
};

class Drafter {
 public:
  virtual ~Drafter() = default;
  // Memory beside the weights, counted in the engine's plan.
  virtual int64_t bytes() const { return 0; }
  // Called once before any query; the engine's threads and options, its scratch is not to be used.
  virtual void attach(const Exec&) {}
  // Fills `tokens` of each query. Called between steps with the requests that decode. When it throws, the step runs
  // without drafts and the requests are forgotten.
  virtual void propose(std::span<DraftQuery> queries) = 0;
  // The request ended: whatever was kept for it goes.
  virtual void forget(RequestId) {}
};

// Prompt lookup: the longest run of the last tokens (longest..shortest of them) that occurred before, most recent
// occurrence first; proposes what followed it.
std::unique_ptr<Drafter> make_lookup_drafter(int64_t longest = 4, int64_t shortest = 2);

// A smaller model of the same vocabulary, run greedily or with the request's own draws ahead of the target. It keeps a
// state of the certain tokens per request and drafts on a copy of it, so a rejected draft leaves nothing behind.
struct DraftModelConfig {
  Device device;  // where the draft model's weights are; a CUDA device gives it a queue of its own
  DType activation = DType::bf16;
  DType recurrent = DType::f32;
  int64_t max_sequences = 1, max_length = 4096;  // the target engine's
  int64_t drafts = 4;                            // most per request and step
  int64_t token_budget = 512;                    // tokens of one forward pass while it catches up with a prompt
};
// What the drafter takes beside the draft model's weights.
int64_t plan_model_drafter(const Model& model, const DraftModelConfig& config);
// The model must outlive the drafter. Throws Error(invalid_argument) when its vocabulary is not `target_vocabulary`.
std::unique_ptr<Drafter> make_model_drafter(const Model& model, const DraftModelConfig& config,
                                            int64_t target_vocabulary);

}  // namespace kdelta::runtime
