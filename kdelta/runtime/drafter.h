// Who guesses the next tokens. A verification step runs the guesses behind the certain token and keeps those that the
// model itself would have produced, so a bad guess costs time and never changes an answer.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "kdelta/core/exec.h"
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
  // Fills `tokens` of each query. Called between steps with the requests that decode.
  virtual void propose(std::span<DraftQuery> queries) = 0;
  // The request ended: whatever was kept for it goes.
  virtual void forget(RequestId) {}
};

// Prompt lookup: the longest run of the last tokens (longest..shortest of them) that occurred before, most recent
// occurrence first; proposes what followed it.
std::unique_ptr<Drafter> make_lookup_drafter(int64_t longest = 4, int64_t shortest = 2);

}  // namespace kdelta::runtime
