// What the public Engine holds; shared by the files that implement its parts.
#pragma once

#include <optional>

#include "kdelta/api/constraints.h"
#include "kdelta/api/engine.h"
#include "kdelta/api/roof/roof.h"
#include "kdelta/io/tokenizer.h"
#include "kdelta/model/load.h"
#include "kdelta/runtime/engine.h"

namespace kdelta {

// Whatever leaves a function that submitted a request, the request must not stay in the engine.
class RequestGuard {
 public:
  RequestGuard(runtime::Engine& engine, runtime::RequestId id) : engine_(engine), id_(id) {}
  ~RequestGuard() { engine_.finish(id_, runtime::FinishReason::cancelled); }
  RequestGuard(const RequestGuard&) = delete;
  RequestGuard& operator=(const RequestGuard&) = delete;

 private:
  runtime::Engine& engine_;
  runtime::RequestId id_;
};

// And an engine must not keep an observer that is gone.
class ProbeGuard {
 public:
  ProbeGuard(runtime::Engine& engine, TensorProbe* probe, OpObserver* ops = nullptr) : engine_(engine) {
    engine_.observe(ops, probe);
  }
  ~ProbeGuard() { engine_.observe(nullptr, nullptr); }
  ProbeGuard(const ProbeGuard&) = delete;
  ProbeGuard& operator=(const ProbeGuard&) = delete;

 private:
  runtime::Engine& engine_;
};

// "bf16" or "fp32" and their long names; throws naming the option.
DType parse_float_type(const std::string& name, const char* option);
// "cpu", "cuda" or "cuda:N"; throws naming the option, and why when there is no such device. "auto": the first CUDA
// device, if there is one; whether it has room is known when the model is.
Device parse_device(const std::string& name);
// None: auto.
std::optional<DraftStates> parse_draft_states(const std::string& name);
// "experts" or "width"; throws likewise.
ExpertSplit parse_expert_split(const std::string& name);

class Collector;

struct Engine::Impl {
  LoadOptions options;
  LoadedModel model;
  ModelInfo info;
  MemoryReport memory;
  runtime::EngineConfig config;
  LoadedModel draft;                        // without a model when there is none
  std::unique_ptr<runtime::Engine> engine;  // null when headers_only
  std::optional<bench::RoofMeter> roofs;    // made when somebody measures; on the team of `engine`, so behind it
  std::function<void(const std::string&)> step_log;
  std::optional<Tokenizer> tokenizer;
  std::string tokenizer_problem;
  std::vector<int32_t> end_ids;
  std::unique_ptr<Constraints> constraints;  // null without a tokenizer

  // Throws unless this engine was loaded to compute, with or without all_logits.
  runtime::Engine& running(bool all_logits) const;
  // Throws unless this engine computes and nobody waits for it.
  runtime::Engine& idle() const;
  const Tokenizer& text() const;
  // Steps until the request has ended, was cancelled or cut at a stop string; false: it goes on and has said `most`
  // tokens at least.
  bool follow(runtime::RequestId id, const GenerateOptions& asked, int64_t most, Collector& collector, Generation& g);
  // One step of the running engine, explained when somebody wants to know.
  bool step(const std::function<void(const runtime::TokenEvent&)>& on_event);
};

}  // namespace kdelta
