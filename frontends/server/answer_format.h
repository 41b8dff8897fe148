// What came of answers in the form that an endpoint gives them: events of a stream, or one object that is by
// construction what the events say when they are joined.
#pragma once

#include <memory>
#include <string>

#include "frontends/server/answer_request.h"
#include "frontends/server/http.h"

namespace kdelta::server {

// A stretch of an answer that is of one kind.
struct Block {
  AnswerPart::Kind kind = AnswerPart::Kind::text;
  std::string text;      // of a call its arguments
  std::string id, name;  // of a call
  bool failed = false;   // a call that came to no good end: `text` is the beginning of an object, its spelling follows

  bool cut = false;  // the answer reached its limit in it

  bool is_call() const { return kind == AnswerPart::Kind::call; }
};

// What a delta did to one block.
struct BlockStep {
  enum class What : uint8_t { begin, more, end };
  What what = What::begin;
  size_t block = 0;
  std::string text = {};  // of more
};

// All deltas of one answer joined. A stream tells the steps that made it, so it cannot say otherwise.
struct WholeAnswer {
  std::vector<Block> blocks;  // neighbours differ in kind, unless they are calls
  std::vector<int32_t> tokens;
  std::vector<TokenLogprobs> logprobs;
  ServiceEnd end;

  // The last delta ends what is open.
  std::vector<BlockStep> add(const ServiceDelta& delta);
  // What all blocks of a kind say.
  std::string joined(AnswerPart::Kind kind) const;
  // Those that did not fail.
  std::vector<Block> calls() const;

 private:
  bool open_ = false;  // the last block
  int64_t call_ = 0;   // its number, if it is a call
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
  virtual std::string ping() const { return ": ping\n\n"; }
  // Without a stream.
  virtual Json whole(const std::vector<WholeAnswer>& answers, const Usage& usage) = 0;
};

// Everything must outlive it but `request`. The message is the Anthropic API's, the response the OpenAI Responses
// API's.
std::unique_ptr<AnswerFormat> chat_format(const Engine& engine, const AnswerRequest& request, const std::string& id);
std::unique_ptr<AnswerFormat> completion_format(const Engine& engine, const AnswerRequest& request,
                                                const std::string& id);
std::unique_ptr<AnswerFormat> message_format(const AnswerRequest& request, const std::string& id);
std::unique_ptr<AnswerFormat> response_format(const Engine& engine, const AnswerRequest& request,
                                              const std::string& id);

// An event of a stream; one whose name is data's type.
std::string event(const Json& data);
std::string named_event(const Json& data);
// {"key": value, ...}
Json object(std::initializer_list<std::pair<std::string_view, Json>> members);
Json usage_json(const Usage& usage);
// The number that was meant: 0.7, not what a float makes of it.
Json plain_number(float value);
Json timings_json(const ServiceTimings& timings, const Usage& usage);
// "stop", "length" or, of a chat that ended by itself behind calls, "tool_calls".
std::string finish_reason(const ServiceEnd& end, bool calls);

}  // namespace kdelta::server
