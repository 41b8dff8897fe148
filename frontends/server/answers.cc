#include "frontends/server/answers.h"

namespace kdelta::server {
namespace {

class AnswerExchange final : public Exchange {
 public:
  AnswerExchange(RunningRequests& running, std::vector<std::string> ids, std::shared_ptr<Answers> answers,
                 std::unique_ptr<AnswerFormat> format, bool stream, std::chrono::milliseconds timeout)
      : running_(running),
        ids_(std::move(ids)),
        answers_(std::move(answers)),
        format_(std::move(format)),
        stream_(stream),
        whole_(answers_->all.size()),
        usage_(answers_->all.size()) {
    if (timeout.count() > 0) deadline_ = Clock::now() + timeout;
    for (const std::string& id : ids_) running_.add(id, answers_);
  }
  ~AnswerExchange() override {
    answers_->cancel();
    for (const std::string& id : ids_) running_.remove(id, answers_);
  }

  void next(Output& out) override {
    if (stream_ && !std::exchange(began_, true)) {
      out.head =
          Reply{.type = "text/event-stream", .headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}}};
      out.piece = format_->start();
    }
    if (deadline_ && Clock::now() >= *deadline_) return fail(error_reply(504, "the request took too long"), out);
    for (size_t i = 0; i < whole_.size(); ++i) {
      ServiceDelta delta;
      if (!answers_->all[i]->take(&delta)) continue;
      if (delta.end && delta.end->reason != "stop" && delta.end->reason != "length")
        return fail(failure_of(*delta.end), out);
      usage_[i].answer += std::ssize(delta.tokens);
      usage_[i].prompt = delta.prompt_tokens;
      usage_[i].cached = delta.cached_tokens;
      if (stream_) out.piece += format_->piece(i, delta, usage_[i]);
      if (!stream_) whole_[i].add(delta);
      if (!delta.end) continue;
      ++ended_;
      last_ = delta.end->timings;
    }
    if (ended_ < whole_.size()) return;
    out.done = true;
    if (stream_)
      out.piece += format_->finish(total(), last_);
    else
      out.whole = Reply{.body = json_text(format_->whole(whole_, total()))};
  }

  std::optional<Clock::time_point> deadline() const override { return deadline_; }
  std::string ping() const override { return format_->ping(); }

 private:
  // Choices of one prompt read it once.
  Usage total() const {
    Usage all;
    for (const Usage& u : usage_) all.answer += u.answer;
    for (size_t i = 0; i < usage_.size(); i += answers_->choices) {
      all.prompt += usage_[i].prompt;
      all.cached += usage_[i].cached;
    }
    return all;
  }

  static Reply failure_of(const ServiceEnd& end) {
    // The engine's word for an answer that may not end although its constraint allows nothing else.
    if (end.error.find("; min_tokens: ") != std::string::npos) return error_reply(400, end.error, "", "min_tokens");
    if (end.reason == "error") return error_reply(500, end.error);
    return end.error.empty() ? error_reply(499, "the request was cancelled", "cancelled", "", "cancelled")
                             : error_reply(503, end.error);
  }

  void fail(const Reply& error, Output& out) {
    answers_->cancel();
    out.done = out.failed = true;
    if (stream_)
      out.piece += format_->failure(error);
    else
      out.whole = error;
  }

  RunningRequests& running_;
  const std::vector<std::string> ids_;
  const std::shared_ptr<Answers> answers_;
  const std::unique_ptr<AnswerFormat> format_;
  const bool stream_;
  bool began_ = false;
  size_t ended_ = 0;
  std::vector<WholeAnswer> whole_;
  std::vector<Usage> usage_;
  ServiceTimings last_;
  std::optional<Clock::time_point> deadline_;
};

Reply refusal(Admission admission, const Service& service) {
  switch (admission) {
    case Admission::accepted:
      break;
    case Admission::full:
      return error_reply(429, "too many requests wait already; try again later");
    case Admission::draining:
      return error_reply(503, "the server is shutting down");
    case Admission::dead:
      return error_reply(503, "the engine has stopped: " + service.problem(), "server_error");
  }
  throw std::logic_error("admission " + std::to_string(static_cast<int>(admission)));
}

}  // namespace

void Answers::cancel() {
  for (const auto& a : all) a->cancel();
}

void RunningRequests::add(const std::string& id, const std::shared_ptr<Answers>& answers) {
  const std::lock_guard lock(mutex_);
  answers_[id] = answers;
}

void RunningRequests::remove(const std::string& id, const std::shared_ptr<Answers>& answers) {
  const std::lock_guard lock(mutex_);
  if (const auto it = answers_.find(id); it != answers_.end() && it->second.lock() == answers) answers_.erase(it);
}

bool RunningRequests::cancel(const std::string& id) {
  std::shared_ptr<Answers> found;
  {
    const std::lock_guard lock(mutex_);
    if (const auto it = answers_.find(id); it != answers_.end()) found = it->second.lock();
  }
  if (found) found->cancel();
  return found != nullptr;
}

Answered answer(Service& service, RunningRequests& running, const AnswerRequest& request, const HttpRequest& http,
                const std::string& id, std::unique_ptr<AnswerFormat> format, const AnswerOptions& options, Wake wake) {
  auto answers = std::make_shared<Answers>();
  answers->choices = static_cast<size_t>(request.choices);
  for (size_t p = 0; p < request.prompts.size(); ++p) {
    for (int64_t c = 0; c < request.choices; ++c) {
      // All or none: those that were accepted go with `answers`.
      Service::Submitted submitted = service.submit(request.task(p, c), wake);
      if (submitted.admission != Admission::accepted) return {.reply = refusal(submitted.admission, service)};
      answers->all.push_back(std::move(submitted.answer));
    }
  }
  return {.reply = {},
          .exchange = std::make_unique<AnswerExchange>(running, std::vector{id, http.id}, std::move(answers),
                                                       std::move(format), request.stream, options.timeout)};
}

}  // namespace kdelta::server
