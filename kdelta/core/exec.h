// The first argument of every op: on what it runs and what it may borrow. Ops only enqueue: no allocation (scratch
// comes from the arena), no synchronisation, no hidden stream. The CPU backend runs the work before it returns.
#pragma once

#include <string_view>

#include "kdelta/core/arena.h"
#include "kdelta/core/cost.h"
#include "kdelta/core/options.h"
#include "kdelta/core/threads.h"

namespace kdelta {

// Sees every op that runs (or would run, when planning): for counting, tracing and cost sums.
class OpObserver {
 public:
  virtual ~OpObserver() = default;
  virtual void on_op(std::string_view op, std::string_view variant, const Cost& cost) = 0;
};

// Sees named intermediate tensors of a forward pass (--dump): "router_expert", "layer_out", ... The view is valid
// during the call.
class TensorProbe {
 public:
  virtual ~TensorProbe() = default;
  virtual void on_tensor(std::string_view name, int layer, const AnyConstView& tensor) = 0;
};

struct Exec {
  Device device;
  Arena* scratch = nullptr;
  ThreadPool* threads = nullptr;
  const Options* options = nullptr;
  OpObserver* observer = nullptr;
  TensorProbe* probe = nullptr;
  int layer = -1;  // the decoder layer that runs, for probes
  // Walk through a step without touching memory: ops check, choose and take scratch, then return. Views may point
  // nowhere.
  bool planning = false;

  void show(std::string_view name, const AnyConstView& tensor) const {
    if (probe != nullptr && !planning) probe->on_tensor(name, layer, tensor);
  }
};

}  // namespace kdelta
