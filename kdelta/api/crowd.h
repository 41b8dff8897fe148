// Requests in the engine's hands, each with what came of it so far. Whoever owns a crowd steps the engine.
#pragma once

#include <map>

#include "kdelta/api/collector.h"

namespace kdelta {

class Crowd {
 public:
  using Done = std::function<void(int64_t number, Generation generation)>;
  // Of a request that goes on: what a token added. The last of generation.tokens is that token, unless it is -1.
  using Heard =
      std::function<void(int64_t number, const Generation& so_far, std::vector<AnswerPart>& parts, int32_t token)>;
  // Everything must outlive this. Neither function may call this object.
  Crowd(Engine::Impl& engine, Done done, Heard heard = {})
      : engine_(*engine.engine),
        tokenizer_(engine.tokenizer ? &*engine.tokenizer : nullptr),
        end_ids_(engine.end_ids),
        constraints_(engine.constraints.get()),
        done_(std::move(done)),
        heard_(std::move(heard)) {}
  // Whatever leaves its owner, no request stays behind.
  ~Crowd() {
    for (const auto& [id, live] : live_) engine_.finish(id, runtime::FinishReason::cancelled);
  }
  Crowd(const Crowd&) = delete;
  Crowd& operator=(const Crowd&) = delete;

  size_t size() const { return live_.size(); }

  // One that cannot be served, for want of memory too, is told so; the others go on.
  void submit(int64_t number, ServiceRequest request) {
    Generation refused;
    refused.prompt_tokens = std::ssize(request.task.prompt);
    refused.finish_reason = "error";
    try {
      return start(number, std::move(request));
    } catch (const std::bad_alloc&) {
      refused.error = runtime::kNoMemory;
    } catch (const Error& e) {
      refused.error = e.what();
      refused.refused = e.code() == ErrorCode::invalid_argument || e.code() == ErrorCode::unsupported;
    }
    done_(number, std::move(refused));
  }

  void take(const runtime::TokenEvent& e) {
    const auto it = live_.find(e.id);
    if (it == live_.end()) return;
    Live& l = *it->second;
    try {
      if (l.generation.tokens.empty()) note_reuse(e.id, l.generation);
      l.collector->take(e);
    } catch (const std::bad_alloc&) {  // its own text; the others go on
      l.generation.error = runtime::kNoMemory;
      engine_.finish(e.id, runtime::FinishReason::error);
      return end(it, "error");
    }
    if (e.error != nullptr) l.generation.error = *e.error;
    if (l.collector->stopped() && e.finish == runtime::FinishReason::none) {
      engine_.finish(e.id, runtime::FinishReason::stop);
      end(it, "stop");
    } else if (e.finish != runtime::FinishReason::none) {
      end(it, to_string(e.finish));
    }
  }

  // Tells the numbers of those that run, rather than wait.
  template <class F>
  void each_running(const F& f) const {
    for (const auto& r : engine_.requests())
      if (const auto it = live_.find(r->id); it != live_.end() && !r->slots.empty()) f(it->second->number);
  }

  void cancel() {
    while (!live_.empty()) cancel(live_.begin());
  }
  // Nothing when it has ended.
  void cancel(int64_t number) {
    for (auto it = live_.begin(); it != live_.end(); ++it)
      if (it->second->number == number) return cancel(it);
  }

 private:
  struct Live {
    Live(int64_t n, ServiceRequest r) : number(n), request(std::move(r)) {
      generation.prompt_tokens = std::ssize(request.task.prompt);
    }
    int64_t number;
    ServiceRequest request;
    Generation generation;
    std::optional<Collector> collector;
  };
  using Lives = std::map<runtime::RequestId, std::unique_ptr<Live>>;

  AnswerText text_of(const ServiceRequest& r) const {
    if (!r.chat) return {tokenizer_, r.task.options};
    if (tokenizer_ == nullptr) fail(ErrorCode::unsupported, "a chat needs a tokenizer");
    return {*tokenizer_, r.task.options, r.thinking};
  }

  void start(int64_t number, ServiceRequest request) {
    auto live = std::make_unique<Live>(number, std::move(request));
    OnParts on_parts;
    if (heard_)
      on_parts = [this, l = live.get()](std::vector<AnswerPart>& parts, int32_t token) {
        heard_(l->number, l->generation, parts, token);
      };
    live->collector.emplace(text_of(live->request), live->request.task.options, std::move(on_parts), live->generation);
    const auto id =
        engine_.submit(live->request.task.prompt, request_options(live->request.task.options, end_ids_, constraints_));
    try {
      live_.emplace(id, std::move(live));
    } catch (...) {
      engine_.finish(id, runtime::FinishReason::cancelled);  // nobody would hear of it
      throw;
    }
  }

  void note_reuse(runtime::RequestId id, Generation& g) const {
    const runtime::Request* r = engine_.find(id);
    if (r != nullptr) g.cached_tokens = r->reuse.tokens, g.cache_limit = to_string(r->reuse.limit);
  }

  void cancel(Lives::iterator it) {
    engine_.finish(it->first, runtime::FinishReason::cancelled);
    end(it, "cancelled");
  }

  void end(Lives::iterator it, const char* reason) {
    const std::unique_ptr<Live> l = std::move(it->second);
    live_.erase(it);
    l->generation.finish_reason = reason;
    try {
      l->collector->finish();
      l->generation.stop = l->collector->stopped_by();
    } catch (const std::bad_alloc&) {
      l->generation.finish_reason = "error";
      l->generation.error = runtime::kNoMemory;
    }
    done_(l->number, std::move(l->generation));
  }

  runtime::Engine& engine_;
  const Tokenizer* tokenizer_;
  const std::vector<int32_t>& end_ids_;
  Constraints* constraints_;
  const Done done_;
  const Heard heard_;
  Lives live_;
};

}  // namespace kdelta
