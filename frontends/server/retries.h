// A request that is sent again is answered once: it joins the answer that is under way, or gets the one that was kept,
// word for word. Requests are the same when one caller gives them one Idempotency-Key, or one X-Request-Id and one
// body. An answer under an Idempotency-Key goes on for a while when nobody reads it any more; every other one ends with
// its last reader.
#pragma once

#include <list>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "frontends/server/http.h"

namespace kdelta::server {

struct RetryOptions {
  std::chrono::milliseconds window{
      60'000};                         // that nobody needs to read an answer, and that a whole one is kept; 0: off
  int64_t memory = int64_t{64} << 20;  // bytes of bodies and answers in all; what is older gives way
};

class Retries {
 public:
  explicit Retries(RetryOptions options);
  ~Retries();  // no reader is left
  Retries(const Retries&) = delete;
  Retries& operator=(const Retries&) = delete;

  using Start = std::function<Answered(Wake)>;
  // What `start` gives, which is asked once for all equal requests and must not throw. Requests of different callers
  // are never equal. A reply of 422 when another request has the key. From any thread.
  Answered answer(const HttpRequest& request, const std::string& caller, const Wake& wake, const Start& start);
  // From now on nothing goes on without a reader.
  void drain();
  // Bytes that are held.
  int64_t held() const;

 private:
  class Bells;
  struct Run;
  struct Signal;
  class Reader;
  using RunPtr = std::shared_ptr<Run>;

  // All of them under mutex_.
  std::unique_ptr<Reader> join(const RunPtr& run, const Wake& wake, bool first);
  // Takes what its answer has to say, and tells all readers but that one.
  void advance(const RunPtr& run, const Reader* by);
  void leave(const RunPtr& run, const Reader* reader);
  // From now on it is kept for the window.
  void put_aside(const RunPtr& run);
  // Nobody joins it from now on; without a reader it ends. By value: it may be the last to hold it.
  void forget(RunPtr run);
  void count(const RunPtr& run);

  // Reads what nobody reads, and forgets. When to do it again, though no signal is given.
  std::optional<Clock::time_point> look();

  const RetryOptions options_;
  mutable std::mutex mutex_;
  std::map<std::string, RunPtr> runs_;
  std::list<RunPtr> aside_;  // whole, or without a reader: the oldest first
  std::set<RunPtr> unread_;  // of these, those that go on
  int64_t held_ = 0;
  bool draining_ = false;

  const std::shared_ptr<Signal> signal_;  // outlives this: who rings may be late
  std::thread watcher_;                   // looks
};

}  // namespace kdelta::server
