// Many requests of many threads on one engine, for whatever listens on a socket or a queue. One thread of the service's
// own runs the engine; nobody else ever waits for it, and it waits for nobody: what it has to say is put where the
// reader finds it. Includes nothing but the standard library and engine.h.
#pragma once

#include <chrono>

#include "kdelta/api/engine.h"

namespace kdelta {

// More of a tool call. The arguments of its pieces joined are the text of a JSON object, unless it fails: then its
// spelling comes as content behind it, and what was told of it is no JSON.
struct CallDelta {
  int64_t index = 0;     // among the calls announced so far
  std::string id, name;  // in its first piece; the id as the model spelled it, empty where the format has none
  std::string arguments;
  bool ended = false, failed = false;
};

// A piece of an answer. Plain answers are text; a chat's are taken apart.
struct AnswerPart {
  enum class Kind : uint8_t { text, reasoning, content, call };
  Kind kind = Kind::text;
  std::string text;
  CallDelta call = {};
};

struct ServiceTimings {
  double queued = 0, prefill = 0, decode = 0;  // seconds until it ran, until the first token, until the last
};

struct ServiceEnd {
  std::string reason;  // "stop", "length", "cancelled", "error"
  std::string error;   // with "error"; with "cancelled" why, when it was not the caller
  std::string stop;    // the stop string that ended it
  int64_t prompt_tokens = 0, cached_tokens = 0, tokens = 0;
  ServiceTimings timings;
};

// What came of a request since the last look, in order; neighbours of one kind are joined, so a slow reader gets fewer,
// larger deltas. All the deltas joined are the answer.
struct ServiceDelta {
  std::vector<AnswerPart> parts;
  std::vector<int32_t> tokens;
  std::vector<TokenLogprobs> logprobs;  // of `tokens` when they were asked for
  int64_t prompt_tokens = 0, cached_tokens = 0;
  std::optional<ServiceEnd> end;
};

struct ServiceRequest {
  GenerateTask task;     // its stop strings end the text, or a chat's content
  bool chat = false;     // the answer is a message of the model's chat format
  bool thinking = true;  // chat: it begins with a thinking part
};

struct KDELTA_API Histogram {
  std::vector<double> bounds;    // upper ones, ascending; a last bucket holds the rest
  std::vector<int64_t> buckets;  // bounds + 1, each its own count
  double sum = 0;
  int64_t count = 0;

  explicit Histogram(std::vector<double> upper = {}) : bounds(std::move(upper)), buckets(bounds.size() + 1) {}
  void add(double value);
};

// Since the service was made; `running` and below are of this moment.
struct KDELTA_API ServiceStats {
  int64_t running = 0, waiting = 0, max_sequences = 0;
  double page_usage = 0;  // of the memory for context, without what may be evicted
  int64_t pages = 0, page_tokens = 0;
  int64_t stopped = 0, cut = 0, cancelled = 0, failed = 0;  // requests by how they ended
  int64_t prompt_tokens = 0, tokens = 0;                    // of requests that got their first token; generated
  int64_t prefix_queries = 0, prefix_hits = 0;              // prompt tokens looked up, and found
  double step_seconds = 0;  // that the step of this moment has taken so far; 0 between steps
  int64_t slow_steps = 0;   // that came to an end beyond the limit
  WorkCounts work;
  Histogram first_token, inter_token, whole, queued, prefill, decode;  // seconds
  Histogram step_tokens, prompt_length, answer_length, max_tokens;

  ServiceStats();
};

struct ServiceOptions {
  int64_t max_waiting = 256;                // requests beyond those that run at once; the next is refused
  int64_t max_unread = 16384;               // tokens that nobody has read; then the request ends as "cancelled"
  std::chrono::milliseconds step_limit{0};  // a step that takes longer hangs, as hang() says; 0: none does
  // Runs on the engine's thread before every step. What it throws ends the service: a test of that.
  std::function<void()> before_step;
};

enum class Admission : uint8_t { accepted, full, draining, dead };

class ServiceImpl;

// The caller's end of a request. Its destructor cancels what has not ended. May outlive the service.
class KDELTA_API ServiceAnswer {
 public:
  struct KDELTA_HIDDEN Channel;
  ServiceAnswer(std::weak_ptr<ServiceImpl> service, std::shared_ptr<Channel> channel);
  ~ServiceAnswer();
  ServiceAnswer(const ServiceAnswer&) = delete;
  ServiceAnswer& operator=(const ServiceAnswer&) = delete;

  // What came since the last look; false: nothing. Nothing comes behind an end. Never waits.
  bool take(ServiceDelta* delta);
  // The same, waiting for something at most that long.
  bool wait(ServiceDelta* delta, std::chrono::milliseconds most);
  // The request ends as "cancelled" before the engine's next step, wherever it is; from any thread.
  void cancel();

 private:
  std::weak_ptr<ServiceImpl> service_;
  std::shared_ptr<Channel> channel_;
};

// All functions from any thread.
class KDELTA_API Service {
 public:
  // Takes the engine and runs a few tokens through it, so that the first request finds all in place.
  explicit Service(Engine engine, ServiceOptions options = {});
  // Ends everything, as stop() does.
  ~Service();
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;

  struct Submitted {
    Admission admission = Admission::accepted;
    std::unique_ptr<ServiceAnswer> answer = {};  // when it was accepted
  };
  // Queues a request. `ready`, if any, is called by the engine's thread when take() would give something again: it must
  // only pass that on. Throws Error(invalid_argument) as Engine::generate would, before anything is queued.
  Submitted submit(ServiceRequest request, std::function<void()> ready = {});

  // From now on nothing is accepted; what was goes on.
  void drain();
  // Whether nothing waits or runs any more, after at most that long.
  bool wait_idle(std::chrono::milliseconds most);
  // Ends everything that waits or runs as "cancelled", says why, and stops the thread.
  void stop(const std::string& why);

  // Empty while it works; else what broke the engine. Every request has ended with that error.
  std::string problem() const;
  // Empty while no step takes longer than step_limit; else how long it has been. It may still come to its end: nobody
  // is ended for it. Told by the clock alone, so that it is told whatever the engine's thread does.
  std::string hang() const;
  bool draining() const;
  ServiceStats stats() const;
  // For its facts, tokenizer and chat format: const functions that neither compute nor look at states.
  const Engine& engine() const;

 private:
  std::shared_ptr<ServiceImpl> impl_;
};

}  // namespace kdelta
