// Requests that run: an exchange for each, and a list of them by id so that others can cancel them.
#pragma once

#include <map>
#include <mutex>

#include "frontends/server/answer_format.h"

namespace kdelta::server {

// The answers of one request.
struct Answers {
  std::vector<std::unique_ptr<ServiceAnswer>> all;  // prompt after prompt, its choices together
  size_t choices = 1;

  void cancel();
};

// Requests under way by their ids. From any thread.
class RunningRequests {
 public:
  // Forgotten when `answers` is gone.
  void add(const std::string& id, const std::shared_ptr<Answers>& answers);
  // Those of another request by that id stay.
  void remove(const std::string& id, const std::shared_ptr<Answers>& answers);
  // False when none is under way by that id.
  bool cancel(const std::string& id);

 private:
  std::mutex mutex_;
  std::map<std::string, std::weak_ptr<Answers>> answers_;
};

struct AnswerOptions {
  std::chrono::milliseconds timeout{0};  // of a whole request; 0: none
};

// Queues what `request` asks for. Throws Error(invalid_argument) for what the engine refuses; a reply instead of an
// exchange when there is no room.
Answered answer(Service& service, RunningRequests& running, const AnswerRequest& request, const HttpRequest& http,
                const std::string& id, std::unique_ptr<AnswerFormat> format, const AnswerOptions& options, Wake wake);

}  // namespace kdelta::server
