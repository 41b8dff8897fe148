#include "kdelta/core/trace.h"

#include <cstdio>

namespace kdelta {
namespace {

std::atomic<TraceSink*> sink_of_all{nullptr};
thread_local TraceSink* op_open = nullptr;  // who heard that an op begins, and not yet that it ends

void end_op() {
  if (op_open != nullptr) op_open->pop();
  op_open = nullptr;
}

}  // namespace

void trace_to(TraceSink* sink) {
  sink_of_all.store(sink, std::memory_order_release);
}
TraceSink* trace_sink() {
  return sink_of_all.load(std::memory_order_acquire);
}

TraceRange::TraceRange(const char* name) : sink_(name == nullptr ? nullptr : trace_sink()) {
  if (sink_ == nullptr) return;
  end_op();
  sink_->push(name);
}
TraceRange::~TraceRange() {
  if (sink_ == nullptr) return;
  end_op();
  sink_->pop();
}

void OpRanges::on_op(std::string_view op, std::string_view variant, const Cost&) {
  TraceSink* sink = trace_sink();
  end_op();
  if (sink == nullptr) return;
  char name[96];
  std::snprintf(name, sizeof(name), "%.*s:%.*s", static_cast<int>(op.size()), op.data(),
                static_cast<int>(variant.size()), variant.data());
  sink->push(name);
  op_open = sink;
}

}  // namespace kdelta
