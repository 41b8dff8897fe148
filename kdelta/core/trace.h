// Named ranges of the host's work, for a profiler's timeline: a step, its sublayers, its ops, one inside the other.
// Where nobody listens a range costs one look at a pointer. Ranges of a thread are its own.
#pragma once

#include <atomic>
#include <string_view>

#include "kdelta/core/exec.h"

namespace kdelta {

class TraceSink {
 public:
  virtual ~TraceSink() = default;
  virtual void push(const char* name) = 0;  // opens a range inside the open ones of this thread
  virtual void pop() = 0;
};

// Who hears of ranges from now on, in the whole process; null: nobody. It must outlive every range that is open.
void trace_to(TraceSink* sink);
TraceSink* trace_sink();
// NVTX of the CUDA toolkit, if this build has it and a profiler is attached to this process (the toolkit's header looks
// for one, once, where the profiler has left its name in the environment); else null.
TraceSink* profiler_sink();

class TraceRange {
 public:
  explicit TraceRange(const char* name);  // null: none
  ~TraceRange();
  TraceRange(const TraceRange&) = delete;
  TraceRange& operator=(const TraceRange&) = delete;

 private:
  TraceSink* sink_;
};

// Ops as ranges, "linear:cuda_stream": each ends where the next op or range begins, or where the range around it ends.
class OpRanges final : public OpObserver {
 public:
  void on_op(std::string_view op, std::string_view variant, const Cost& cost) override;
};

}  // namespace kdelta
