// What came of answers in the form that an endpoint gives them: events of a stream, or one object that is by
// construction what the events say when they are joined.
#pragma once

#include <memory>
#include <string>

#include "frontends/server/answer_request.h"
#include "frontends/server/http.h"

namespace kdelta::server {

// All deltas of one answer joined.
struct WholeAnswer {
  std::string text, reasoning, content;
  std::vector<CallDelta> calls;  // without those that failed
  std::vector<int32_t> tokens;
  std::vector<TokenLogprobs> logprobs;
  ServiceEnd end;

  void add(const ServiceDelta& delta);
};

struct Usage {
  int64_t prompt = 0, cached = 0, answer = 0;
};

class AnswerFormat {
 public:
  virtual ~AnswerFormat() = default;
  // Of a stream: what comes first; what a delta says, its end included; what comes last.
  virtual std::string start() = 0;
  virtual std::string piece(size_t choice, const ServiceDelta& delta, const Usage& so_far) = 0;
  virtual std::string finish(const Usage& usage, const ServiceTimings& timings) = 0;
  virtual std::string failure(const Reply& error) = 0;
  // Without a stream.
  virtual Json whole(const std::vector<WholeAnswer>& answers, const Usage& usage) = 0;
};

// Everything must outlive it but `request`.
std::unique_ptr<AnswerFormat> chat_format(const Engine& engine, const AnswerRequest& request, const std::string& id);
std::unique_ptr<AnswerFormat> completion_format(const Engine& engine, const AnswerRequest& request,
                                                const std::string& id);

// An event of a stream.
std::string event(const Json& data);
// {"key": value, ...}
Json object(std::initializer_list<std::pair<std::string_view, Json>> members);
Json usage_json(const Usage& usage);
Json timings_json(const ServiceTimings& timings, const Usage& usage);
// "stop", "length" or, of a chat that ended by itself behind calls, "tool_calls".
std::string finish_reason(const ServiceEnd& end, bool calls);

}  // namespace kdelta::server
