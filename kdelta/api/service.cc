#include "kdelta/api/service.h"

#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "kdelta/api/crowd.h"
#include "kdelta/core/check.h"

namespace kdelta {
namespace {

using Clock = std::chrono::steady_clock;

double seconds(Clock::duration d) {
  return std::chrono::duration<double>(d).count();
}

}  // namespace

struct ServiceAnswer::Channel {
  // Fixed once it is submitted.
  int64_t number = 0, prompt_tokens = 0, max_tokens = 0;
  std::function<void()> ready;
  Clock::time_point submitted;
  // The engine's thread alone.
  ServiceRequest request;
  std::optional<Clock::time_point> started, first;
  Clock::time_point last;
  bool runs = false;          // and is counted so, rather than as waiting
  std::string ended_because;  // of one that the service cancels
  // Of both.
  std::mutex mutex;
  std::condition_variable came;
  ServiceDelta pending;
  bool any = false;
};

// What a service and its answers share. Its thread alone touches the engine; whatever comes in waits in `inbox_` and
// `cancels_` for the next step.
class KDELTA_HIDDEN ServiceImpl {
 public:
  using Channel = ServiceAnswer::Channel;

  ServiceImpl(Engine engine, ServiceOptions options) : engine_(std::move(engine)), options_(std::move(options)) {
    if (options_.max_waiting < 0)
      fail(ErrorCode::invalid_argument, "max_waiting: ", options_.max_waiting, ", expected >= 0");
    if (options_.max_unread < 1)
      fail(ErrorCode::invalid_argument, "max_unread: ", options_.max_unread, ", expected >= 1");
    warm_up();
    const runtime::Engine& inner = *engine_.impl_->engine;
    max_sequences_ = inner.config().max_sequences;
    stats_.max_sequences = max_sequences_;
    stats_.page_tokens = inner.config().page_tokens;
    stats_.pages = engine_.impl_->engine->pool().size().pages;
    thread_ = std::thread([this] { run(); });
  }

  Admission submit(const std::shared_ptr<Channel>& channel) {
    const std::lock_guard lock(mutex_);
    if (!problem_.empty()) return Admission::dead;
    if (draining_ || stopping_) return Admission::draining;
    if (std::ssize(live_) >= max_sequences_ + options_.max_waiting) return Admission::full;
    channel->number = next_number_++;
    inbox_.push_back(channel);
    live_.emplace(channel->number, channel);
    {
      const std::lock_guard stats_lock(stats_mutex_);
      ++stats_.waiting;
    }
    work_.notify_one();
    return Admission::accepted;
  }

  void cancel(int64_t number) {
    const std::lock_guard lock(mutex_);
    if (!live_.contains(number)) return;
    cancels_.push_back(number);
    work_.notify_one();
  }

  void drain() {
    const std::lock_guard lock(mutex_);
    draining_ = true;
  }

  bool wait_idle(std::chrono::milliseconds most) {
    std::unique_lock lock(mutex_);
    return idle_.wait_for(lock, most, [&] { return live_.empty(); });
  }

  void stop(const std::string& why) {
    {
      const std::lock_guard lock(mutex_);
      if (!stopping_) stop_why_ = why;
      stopping_ = true;
      work_.notify_one();
    }
    const std::lock_guard lock(joining_);
    if (thread_.joinable()) thread_.join();
  }

  std::string problem() const {
    const std::lock_guard lock(mutex_);
    return problem_;
  }
  bool draining() const {
    const std::lock_guard lock(mutex_);
    return draining_ || stopping_;
  }
  ServiceStats stats() const {
    const std::lock_guard lock(stats_mutex_);
    ServiceStats out = stats_;
    out.step_seconds = seconds(step_time());
    return out;
  }
  std::string hang() const {
    const auto time = step_time();
    if (options_.step_limit.count() == 0 || time <= options_.step_limit) return "";
    return str("a step has taken ", seconds(time), " s, longer than ", seconds(options_.step_limit), " s");
  }
  const Engine& engine() const { return engine_; }

 private:
  // Kernels, scratch and pages are touched once before anybody waits for them.
  void warm_up() {
    GenerateOptions o;
    o.temperature = 0;
    o.max_tokens = 3;
    o.ignore_eos = true;
    const int64_t length = std::clamp<int64_t>(engine_.max_length() - o.max_tokens, 1, 130);
    std::vector<int32_t> prompt(static_cast<size_t>(length));
    for (size_t i = 0; i < prompt.size(); ++i)
      prompt[i] = static_cast<int32_t>(static_cast<int64_t>(i) % engine_.vocab_size());
    (void)engine_.generate(prompt, o);
  }

  void run() {
    pthread_setname_np(pthread_self(), "kdelta-engine");  // for top and for whoever asks what it costs
    try {
      Crowd crowd(
          *engine_.impl_, [this](int64_t number, Generation g) { done(number, std::move(g)); },
          [this](int64_t number, const Generation& g, std::vector<AnswerPart>& parts, int32_t token) {
            heard(number, g, parts, token);
          });
      while (take_in(crowd)) step(crowd);
    } catch (const std::exception& e) {
      stepping_since_ = 0;
      die(e.what());
    }
    wake();
  }

  // False when it is time to leave; everything has ended then.
  bool take_in(Crowd& crowd) {
    std::vector<std::shared_ptr<Channel>> submitted;
    std::vector<int64_t> cancelled;
    bool stopping = false;
    {
      std::unique_lock lock(mutex_);
      work_.wait(lock, [&] { return stopping_ || !inbox_.empty() || !cancels_.empty() || crowd.size() > 0; });
      submitted.swap(inbox_);
      cancelled.swap(cancels_);
      stopping = stopping_;
    }
    for (const auto& channel : submitted) {
      channels_.emplace(channel->number, channel);
      crowd.submit(channel->number, std::move(channel->request));
    }
    for (const int64_t number : cancelled) crowd.cancel(number);
    if (stopping) {
      for (auto& [number, channel] : channels_) channel->ended_because = stop_why_;
      crowd.cancel();
    }
    wake();
    return !stopping;
  }

  // Of the step that is under way.
  Clock::duration step_time() const {
    const Clock::rep began = stepping_since_;
    return began == 0 ? Clock::duration(0) : Clock::now() - Clock::time_point(Clock::duration(began));
  }

  void step(Crowd& crowd) {
    if (crowd.size() == 0) return;
    stepping_since_ = Clock::now().time_since_epoch().count();
    if (options_.before_step) options_.before_step();
    step_began_ = Clock::now();
    engine_.impl_->step([&](const runtime::TokenEvent& e) { crowd.take(e); });
    for (const auto& [number, channel] : channels_) channel->runs = false;
    int64_t running = 0;
    crowd.each_running([&](int64_t number) {
      ++running;
      channels_.at(number)->runs = true;
      note_start(*channels_.at(number));
    });
    note_step(running);
    for (const int64_t number : std::exchange(slow_, {})) crowd.cancel(number);
    stepping_since_ = 0;
    wake();
  }

  void note_start(Channel& channel) {
    if (channel.started) return;
    channel.started = step_began_;
    const std::lock_guard lock(stats_mutex_);
    stats_.queued.add(seconds(step_began_ - channel.submitted));
  }

  double page_usage() const {
    runtime::Engine& inner = *engine_.impl_->engine;
    const auto free =
        inner.pool().free_pages() + (inner.config().prefix_snapshots > 0 ? inner.prefixes().evictable_pages() : 0);
    return stats_.pages == 0 ? 0 : 1 - static_cast<double>(free) / static_cast<double>(stats_.pages);
  }

  void note_step(int64_t running) {
    const WorkCounts work = engine_.work();
    const std::lock_guard lock(stats_mutex_);
    stats_.slow_steps += options_.step_limit.count() > 0 && step_time() > options_.step_limit;
    const auto tokens = [](const WorkCounts& w) { return w.prefill_tokens + w.decode_tokens; };
    stats_.step_tokens.add(static_cast<double>(tokens(work) - tokens(stats_.work)));
    stats_.work = work;
    stats_.waiting += stats_.running - running;
    stats_.running = running;
    stats_.page_usage = page_usage();
  }

  void heard(int64_t number, const Generation& g, std::vector<AnswerPart>& parts, int32_t token) {
    Channel& channel = *channels_.at(number);
    const auto now = Clock::now();
    if (token >= 0) note_token(channel, g, now);
    size_t unread = 0;
    bool wakes = false;
    {
      const std::lock_guard lock(channel.mutex);
      ServiceDelta& d = channel.pending;
      for (AnswerPart& p : parts) append_part(d.parts, std::move(p));
      if (token >= 0) d.tokens.push_back(token);
      if (token >= 0 && g.logprobs.size() == g.tokens.size()) d.logprobs.push_back(g.logprobs.back());
      d.prompt_tokens = g.prompt_tokens;
      d.cached_tokens = g.cached_tokens;
      unread = d.tokens.size();
      wakes = !std::exchange(channel.any, true);
      channel.came.notify_all();
    }
    if (wakes) to_wake_.push_back(channels_.at(number));
    if (static_cast<int64_t>(unread) > options_.max_unread && channel.ended_because.empty()) {
      channel.ended_because = str("nobody read the last ", unread, " tokens");
      slow_.push_back(number);
    }
  }

  void note_token(Channel& channel, const Generation& g, Clock::time_point now) {
    const std::lock_guard lock(stats_mutex_);
    ++stats_.tokens;
    if (channel.first) {
      stats_.inter_token.add(seconds(now - channel.last));
    } else {
      channel.first = now;
      if (!channel.started) {
        channel.started = step_began_;
        stats_.queued.add(seconds(step_began_ - channel.submitted));
      }
      stats_.first_token.add(seconds(now - channel.submitted));
      stats_.prefill.add(seconds(now - *channel.started));
      stats_.prompt_tokens += g.prompt_tokens;
      stats_.prefix_queries += g.prompt_tokens;
      stats_.prefix_hits += g.cached_tokens;
    }
    channel.last = now;
  }

  void done(int64_t number, Generation g) {
    const auto it = channels_.find(number);
    const std::shared_ptr<Channel> channel = it->second;
    channels_.erase(it);
    finish(channel, std::move(g));
  }

  // The last word on a request. It counts no longer when its reader hears of it: no step may follow for a long time.
  void finish(const std::shared_ptr<Channel>& channel, Generation g) {
    const auto now = Clock::now();
    ServiceEnd end{.reason = std::move(g.finish_reason),
                   .error = std::move(g.error),
                   .stop = std::move(g.stop),
                   .prompt_tokens = channel->prompt_tokens,
                   .cached_tokens = g.cached_tokens,
                   .tokens = std::ssize(g.tokens),
                   .timings = {}};
    if (end.reason == "cancelled") end.error = channel->ended_because;
    const auto started = channel->started.value_or(now), first = channel->first.value_or(now);
    end.timings = {.queued = seconds(started - channel->submitted),
                   .prefill = seconds(first - started),
                   .decode = channel->first ? seconds(channel->last - first) : 0};
    {
      const std::lock_guard lock(stats_mutex_);
      (end.reason == "stop"        ? stats_.stopped
       : end.reason == "length"    ? stats_.cut
       : end.reason == "cancelled" ? stats_.cancelled
                                   : stats_.failed)++;
      --(channel->runs ? stats_.running : stats_.waiting);
      stats_.page_usage = page_usage();
      stats_.whole.add(seconds(now - channel->submitted));
      if (channel->first) stats_.decode.add(end.timings.decode);
      stats_.prompt_length.add(static_cast<double>(channel->prompt_tokens));
      stats_.answer_length.add(static_cast<double>(end.tokens));
      stats_.max_tokens.add(static_cast<double>(channel->max_tokens));
    }
    {
      const std::lock_guard lock(channel->mutex);
      channel->pending.prompt_tokens = end.prompt_tokens;
      channel->pending.cached_tokens = end.cached_tokens;
      channel->pending.end = std::move(end);
      if (!std::exchange(channel->any, true)) to_wake_.push_back(channel);
      channel->came.notify_all();
    }
    const std::lock_guard lock(mutex_);
    live_.erase(channel->number);
    if (live_.empty()) idle_.notify_all();
  }

  void die(const std::string& what) {
    std::vector<std::shared_ptr<Channel>> all;
    {
      const std::lock_guard lock(mutex_);
      problem_ = what.empty() ? "unknown" : what;
      for (const auto& [number, channel] : live_) all.push_back(channel);
      inbox_.clear();
    }
    for (const auto& channel : all) {
      Generation g;
      g.finish_reason = "error";
      g.error = "the engine has stopped: " + what;
      finish(channel, std::move(g));
    }
  }

  // Once a step and request, however many tokens it brought.
  void wake() {
    for (const auto& channel : std::exchange(to_wake_, {}))
      if (channel->ready) channel->ready();
  }

  Engine engine_;
  const ServiceOptions options_;
  int64_t max_sequences_ = 1;

  mutable std::mutex mutex_;
  std::condition_variable work_, idle_;
  std::vector<std::shared_ptr<Channel>> inbox_;
  std::vector<int64_t> cancels_;
  std::map<int64_t, std::shared_ptr<Channel>> live_;  // that have not ended
  int64_t next_number_ = 1;
  bool draining_ = false, stopping_ = false;
  std::string stop_why_, problem_;

  mutable std::mutex stats_mutex_;
  ServiceStats stats_;

  // The engine's thread alone.
  std::unordered_map<int64_t, std::shared_ptr<Channel>> channels_;
  std::vector<std::shared_ptr<Channel>> to_wake_;
  std::vector<int64_t> slow_;
  Clock::time_point step_began_;

  std::atomic<Clock::rep> stepping_since_{0};  // the clock when the step of this moment began; 0 between steps

  std::mutex joining_;
  std::thread thread_;
};

ServiceAnswer::ServiceAnswer(std::weak_ptr<ServiceImpl> service, std::shared_ptr<Channel> channel)
    : service_(std::move(service)), channel_(std::move(channel)) {}

ServiceAnswer::~ServiceAnswer() {
  cancel();
}

void ServiceAnswer::cancel() {
  if (const auto service = service_.lock()) service->cancel(channel_->number);
}

bool ServiceAnswer::take(ServiceDelta* delta) {
  return wait(delta, std::chrono::milliseconds(0));
}

bool ServiceAnswer::wait(ServiceDelta* delta, std::chrono::milliseconds most) {
  std::unique_lock lock(channel_->mutex);
  if (!channel_->any && (most.count() == 0 || !channel_->came.wait_for(lock, most, [&] { return channel_->any; })))
    return false;
  channel_->any = false;
  *delta = std::exchange(channel_->pending, {});
  return true;
}

Service::Service(Engine engine, ServiceOptions options)
    : impl_(std::make_shared<ServiceImpl>(std::move(engine), std::move(options))) {}

Service::~Service() {
  impl_->stop("the service was closed");
}

Service::Submitted Service::submit(ServiceRequest request, std::function<void()> ready) {
  if (auto& constraint = request.task.options.constraint; request.chat && constraint) {
    constraint->chat = true;
    constraint->thinking = request.thinking;
  }
  engine().check(request.task);
  if (request.chat) engine().check_chat();
  auto channel = std::make_shared<ServiceAnswer::Channel>();
  channel->prompt_tokens = std::ssize(request.task.prompt);
  channel->max_tokens = std::min(request.task.options.max_tokens, engine().max_length() - channel->prompt_tokens);
  channel->ready = std::move(ready);
  channel->submitted = Clock::now();
  channel->request = std::move(request);
  const Admission admission = impl_->submit(channel);
  if (admission != Admission::accepted) return {.admission = admission};
  return {.admission = admission, .answer = std::make_unique<ServiceAnswer>(impl_, std::move(channel))};
}

void Service::drain() {
  impl_->drain();
}
bool Service::wait_idle(std::chrono::milliseconds most) {
  return impl_->wait_idle(most);
}
void Service::stop(const std::string& why) {
  impl_->stop(why);
}
std::string Service::problem() const {
  return impl_->problem();
}
std::string Service::hang() const {
  return impl_->hang();
}
bool Service::draining() const {
  return impl_->draining();
}
ServiceStats Service::stats() const {
  return impl_->stats();
}
const Engine& Service::engine() const {
  return impl_->engine();
}

}  // namespace kdelta
