// The first argument of every op: on what it runs and what it may borrow. Ops only enqueue: no allocation (scratch
// comes from the arena), no synchronisation, no hidden stream. The CPU backend runs the work before it returns; on a
// CUDA device work runs in the order of the stream.
#pragma once

#include <string_view>

#include "kdelta/core/arena.h"
#include "kdelta/core/cost.h"
#include "kdelta/core/options.h"
#include "kdelta/core/stream.h"
#include "kdelta/core/threads.h"

namespace kdelta {

class Communicator;

// Sees every op that runs (or would run, when planning): for counting, tracing and cost sums.
class OpObserver {
 public:
  virtual ~OpObserver() = default;
  virtual void on_op(std::string_view op, std::string_view variant, const Cost& cost) = 0;
};

// Sees named intermediate tensors of a forward pass (--dump): "router_expert", "layer_out", ... The view is valid
// during the call. With a stream it is of memory of that CUDA device, written when the stream has come so far
// (host_copy() of kdelta/core/moves.h).
class TensorProbe {
 public:
  virtual ~TensorProbe() = default;
  virtual void on_tensor(std::string_view name, int layer, const AnyConstView& tensor, Stream* stream) = 0;
};

// A second queue of a CUDA device, lent to Fork: its stream, its own scratch, and the events that order it with the
// first. Null stream and events serve planning.
struct AuxQueue {
  Stream* stream = nullptr;
  Arena* scratch = nullptr;
  Event *forked = nullptr, *joined = nullptr;
  bool open = false;  // between a fork and its join
};

struct Exec {
  Device device;
  Stream* stream = nullptr;    // CUDA: where ops enqueue
  AuxQueue* aux = nullptr;     // CUDA: where Fork puts its side; null: forks run in order on the one stream
  uint32_t* faults = nullptr;  // CUDA: device word into which kernels or their Fault bits; null: nobody wants to know
  Arena* scratch = nullptr;
  ThreadPool* threads = nullptr;
  const Options* options = nullptr;
  Communicator* comm = nullptr;  // null: one rank
  OpObserver* observer = nullptr;
  TensorProbe* probe = nullptr;
  int layer = -1;  // the decoder layer that runs, for probes
  // Walk through a step without touching memory: ops check, choose and take scratch, then return. Views may point
  // nowhere.
  bool planning = false;

  void show(std::string_view name, const AnyConstView& tensor) const {
    if (probe != nullptr && !planning) probe->on_tensor(name, layer, tensor, stream);
  }
  // Whether work on `rows` rows is worth a second queue here.
  bool overlaps(int64_t rows) const { return aux != nullptr && rows <= options->overlap_rows; }
  // At the end of a step or a capture: throws Error(internal) when a fork was never joined.
  void expect_joined() const;
};

// Work beside the main queue: begins after everything enqueued on `main` so far, ends at join(), behind which the main
// queue waits for the side's tail. Without a second queue (the CPU, or Exec::aux null) the side is the main queue, and
// the program order is the order of execution. One fork is open at a time.
//   Fork side(ex);
//   op(side, ...); op(ex, ...);
//   side.join();
class Fork {
 public:
  explicit Fork(const Exec& main);
  // Joins when an exception unwinds, so that the queues stay in order; otherwise an unjoined fork stays open and
  // Exec::expect_joined() and the next fork refuse.
  ~Fork();
  Fork(const Fork&) = delete;
  Fork& operator=(const Fork&) = delete;

  const Exec& exec() const { return side_; }
  operator const Exec&() const { return side_; }
  // Afterwards the side's Exec refuses ops.
  void join();

 private:
  const Exec& main_;
  Exec side_;
  int exceptions_;
  bool joined_ = false;
};

}  // namespace kdelta
