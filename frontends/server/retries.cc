#include "frontends/server/retries.h"

#include <algorithm>
#include <condition_variable>
#include <utility>

#include "frontends/server/threads.h"
#include "kdelta/api/json.h"

namespace kdelta::server {
namespace {

constexpr size_t kMostKey = 255;
constexpr int64_t kOfOne = 1024;  // bytes beside its texts

bool is_fit(std::string_view key) {
  return !key.empty() && key.size() <= kMostKey && std::ranges::all_of(key, [](char c) { return c > ' ' && c < 127; });
}

}  // namespace

// Whom an answer wakes. The engine's thread rings, which waits for nobody who holds Retries' mutex.
class Retries::Bells {
 public:
  explicit Bells(Wake nobody) : nobody_(std::move(nobody)) {}
  void add(const Reader* reader, Wake wake) {
    const std::lock_guard lock(mutex_);
    wakes_.emplace(reader, std::move(wake));
  }
  void remove(const Reader* reader) {
    const std::lock_guard lock(mutex_);
    wakes_.erase(reader);
  }
  void ring(const Reader* all_but = nullptr) {
    const std::lock_guard lock(mutex_);
    for (const auto& [reader, wake] : wakes_)
      if (reader != all_but) wake();
    if (wakes_.empty()) nobody_();
  }

 private:
  std::mutex mutex_;
  std::map<const Reader*, Wake> wakes_;
  const Wake nobody_;
};

struct Retries::Signal {
  std::mutex mutex;
  std::condition_variable given;
  bool rung = false, ending = false;

  void give(bool end = false) {
    const std::lock_guard lock(mutex);
    rung = true;
    ending = ending || end;
    given.notify_one();
  }
  // False at the end.
  bool wait(std::optional<Clock::time_point> until) {
    std::unique_lock lock(mutex);
    const auto come = [&] { return rung; };
    if (until)
      given.wait_until(lock, *until, come);
    else
      given.wait(lock, come);
    rung = false;
    return !ending;
  }
};

// An answer, what it has said so far, and how much of that each reader has.
struct Retries::Run {
  std::string key, asked;
  bool lingers = false;  // goes on without a reader
  std::shared_ptr<Bells> bells;

  std::unique_ptr<Exchange> inner;  // from its start to its end
  bool done = false, failed = false;
  std::exception_ptr broken;  // what ended it
  std::optional<Reply> whole, head;
  std::string said, ping;
  size_t dropped = 0;  // bytes in front of `said`
  std::map<const Reader*, size_t> readers;

  bool kept = true;  // in runs_
  int64_t held = 0;
  std::optional<std::list<RunPtr>::iterator> aside;
  Clock::time_point since;  // when it was put aside
};

// One connection's end of an answer.
class Retries::Reader final : public Exchange {
 public:
  Reader(Retries& retries, RunPtr run, bool first) : retries_(retries), run_(std::move(run)), first_(first) {}
  ~Reader() override {
    const std::lock_guard lock(retries_.mutex_);
    retries_.leave(run_, this);
  }

  void next(Output& out) override {
    const std::lock_guard lock(retries_.mutex_);
    retries_.advance(run_, this);
    if (run_->broken) std::rethrow_exception(run_->broken);
    if (run_->whole) out.whole = marked(*run_->whole);
    if (!run_->head) return;
    if (!std::exchange(told_head_, true)) out.head = marked(*run_->head);
    size_t& has = run_->readers.at(this);
    out.piece = run_->said.substr(has - run_->dropped);
    has += out.piece.size();
    out.done = run_->done;
    if (!run_->kept) drop_what_all_have();
  }
  std::optional<Clock::time_point> deadline() const override {
    const std::lock_guard lock(retries_.mutex_);
    return run_->inner ? run_->inner->deadline() : std::nullopt;
  }
  std::string ping() const override {
    const std::lock_guard lock(retries_.mutex_);
    return run_->ping;
  }

 private:
  Reply marked(Reply reply) const {
    if (!first_) reply.headers.emplace_back("Idempotent-Replayed", "true");
    return reply;
  }
  void drop_what_all_have() {
    size_t all = run_->dropped + run_->said.size();
    for (const auto& [reader, has] : run_->readers) all = std::min(all, has);
    run_->said.erase(0, all - run_->dropped);
    run_->dropped = all;
  }

  Retries& retries_;
  const RunPtr run_;
  const bool first_;
  bool told_head_ = false;
};

Retries::Retries(RetryOptions options) : options_(options), signal_(std::make_shared<Signal>()) {
  if (options_.window.count() == 0) return;
  watcher_ = std::thread([this] {
    name_thread("kdelta-retries");
    while (signal_->wait(look())) {
    }
  });
}

Retries::~Retries() {
  signal_->give(true);
  if (watcher_.joinable()) watcher_.join();
}

Answered Retries::answer(const HttpRequest& request, const std::string& caller, const Wake& wake, const Start& start) {
  const bool keyed = std::ranges::any_of(request.headers, [](const auto& h) { return h.first == "idempotency-key"; });
  const std::string given(request.header("idempotency-key"));
  if (keyed && !is_fit(given))
    return {.reply = error_reply(
                400, "Idempotency-Key: '" + printable(given) + "', expected 1 to 255 visible characters of ASCII")};
  if (options_.window.count() == 0 || (!keyed && request.header("x-request-id") != request.id)) return start(wake);
  const std::string zero(1, '\0'), asked = request.path + zero + request.body;
  const std::string key = caller + zero + (keyed ? "key" + zero + given : "id" + zero + request.id + zero + asked);

  const auto run = std::make_shared<Run>();
  std::unique_ptr<Reader> reader;
  {
    const std::lock_guard lock(mutex_);
    const auto [at, is_new] = runs_.emplace(key, run);
    if (!is_new && at->second->asked != asked)
      return {.reply = error_reply(422, "Idempotency-Key: '" + given + "' belongs to another request", "", "",
                                   "idempotency_key_reused")};
    if (!is_new) return {.reply = {}, .exchange = join(at->second, wake, false)};
    run->key = key;
    run->asked = asked;
    run->lingers = keyed;
    run->bells = std::make_shared<Bells>([signal = signal_] { signal->give(); });
    reader = join(run, wake, true);
    count(run);
  }
  Answered first = start([bells = run->bells] { bells->ring(); });
  const std::lock_guard lock(mutex_);
  if (first.exchange) {
    run->ping = first.exchange->ping();
    run->inner = std::move(first.exchange);
  } else {
    run->whole = first.reply;
    run->done = run->failed = true;
    forget(run);
  }
  run->bells->ring(reader.get());  // those that have joined meanwhile
  first.exchange = std::move(reader);
  return first;
}

void Retries::drain() {
  const std::lock_guard lock(mutex_);
  draining_ = true;
  for (const RunPtr& run : std::set(unread_)) forget(run);
}

int64_t Retries::held() const {
  const std::lock_guard lock(mutex_);
  return held_;
}

std::unique_ptr<Retries::Reader> Retries::join(const RunPtr& run, const Wake& wake, bool first) {
  auto reader = std::make_unique<Reader>(*this, run, first);
  run->readers.emplace(reader.get(), run->dropped);
  run->bells->add(reader.get(), wake);
  if (unread_.erase(run) > 0) aside_.erase(*std::exchange(run->aside, std::nullopt));
  return reader;
}

void Retries::leave(const RunPtr& run, const Reader* reader) {
  run->bells->remove(reader);
  run->readers.erase(reader);
  if (!run->readers.empty() || run->done) return;
  if (!run->kept || !run->lingers || draining_) return forget(run);
  unread_.insert(run);
  put_aside(run);
  signal_->give();  // what it has said meanwhile rang elsewhere
}

void Retries::put_aside(const RunPtr& run) {
  if (run->aside) aside_.erase(*run->aside);
  run->since = Clock::now();
  run->aside = aside_.insert(aside_.end(), run);
  if (aside_.size() == 1) signal_->give();
}

void Retries::advance(const RunPtr& run, const Reader* by) {
  if (!run->inner) return;
  Exchange::Output out;
  try {
    run->inner->next(out);
  } catch (...) {
    run->broken = std::current_exception();
    out.done = out.failed = true;
  }
  if (out.whole) out.done = true, out.failed = out.whole->status != 200;
  if (!out.head && out.piece.empty() && !out.done) return;
  if (out.head) run->head = std::move(out.head);
  run->whole = std::move(out.whole);
  run->said += out.piece;
  run->done = out.done;
  run->failed = out.failed;
  run->bells->ring(by);
  if (run->done) {
    run->inner.reset();
    unread_.erase(run);
    if (run->failed) return forget(run);
    if (run->kept) put_aside(run);
  }
  count(run);
}

void Retries::forget(RunPtr run) {
  if (std::exchange(run->kept, false)) {
    runs_.erase(run->key);
    unread_.erase(run);
    if (run->aside) aside_.erase(*std::exchange(run->aside, std::nullopt));
    held_ -= std::exchange(run->held, 0);
  }
  if (run->readers.empty()) run->inner.reset();
}

// What it holds now. The oldest that are aside give way, then what grows.
void Retries::count(const RunPtr& run) {
  if (!run->kept) return;
  const size_t texts =
      run->key.size() + run->asked.size() + run->said.size() + (run->whole ? run->whole->body.size() : 0);
  held_ -= run->held;
  run->held = kOfOne + static_cast<int64_t>(texts);
  held_ += run->held;
  while (held_ > options_.memory && !aside_.empty()) forget(aside_.front());
  if (held_ > options_.memory) forget(run);
}

// Returns when to look again though nobody rings.
std::optional<Clock::time_point> Retries::look() {
  const std::lock_guard lock(mutex_);
  for (const RunPtr& run : std::set(unread_)) advance(run, nullptr);
  const auto now = Clock::now();
  while (!aside_.empty() && aside_.front()->since + options_.window <= now) forget(aside_.front());
  std::optional<Clock::time_point> until;
  if (!aside_.empty()) until = aside_.front()->since + options_.window;
  for (const RunPtr& run : unread_)
    if (const auto limit = run->inner->deadline()) until = std::min(until.value_or(*limit), *limit);
  return until;
}

}  // namespace kdelta::server
