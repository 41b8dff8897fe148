// The two forms of the OpenAI API: chat.completion and text_completion.
#include <algorithm>
#include <chrono>

#include "frontends/server/answer_format.h"

namespace kdelta::server {
namespace {

int64_t unix_time() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// A token's own text; a part of a character shows as U+FFFD, beside its exact bytes.
std::string token_text(const std::string& bytes) {
  if (is_utf8(bytes)) return bytes;
  std::string out;
  for (size_t i = 0; i < bytes.size(); ++i)
    out += static_cast<unsigned char>(bytes[i]) < 0x80 ? std::string(1, bytes[i]) : std::string("\uFFFD");
  return out;
}

// JSON has no infinity; a token that was ruled out has this.
double finite(float logprob) {
  return std::max(static_cast<double>(logprob), -9999.0);
}

class OpenAiFormat : public AnswerFormat {
 public:
  OpenAiFormat(const Engine& engine, const AnswerRequest& request, std::string id, const char* kind)
      : engine_(engine), request_(request), id_(std::move(id)), kind_(kind), created_(unix_time()) {
    request_.prompts.clear();
  }

  std::string finish(const Usage& usage, const ServiceTimings& timings) override {
    std::string out;
    if (request_.usage) {
      Json last = chunk(Json::Array{}, usage);
      last.set("usage", usage_json(usage));
      last.set("timings", timings_json(timings, usage));
      out = event(last);
    }
    return out + "data: [DONE]\n\n";
  }

  std::string failure(const Reply& error) override { return "data: " + error.body + "\n\n"; }

 protected:
  Json head(const char* kind) const {
    return object({{"id", id_}, {"object", kind}, {"created", created_}, {"model", request_.model}});
  }
  Json chunk(Json choices, const Usage& usage) const {
    Json out = head(kind_);
    out.set("choices", std::move(choices));
    if (request_.usage_always)
      out.set("usage", usage_json(usage));
    else if (request_.usage)
      out.set("usage", Json());
    return out;
  }
  Json response(const char* kind, Json choices, const std::vector<WholeAnswer>& answers, const Usage& usage) const {
    Json out = head(kind);
    out.set("choices", std::move(choices));
    out.set("usage", usage_json(usage));
    out.set("timings", timings_json(answers.front().end.timings, usage));
    return out;
  }

  const Engine& engine_;
  AnswerRequest request_;
  const std::string id_;
  const char* kind_;
  const int64_t created_;
};

class ChatFormat final : public OpenAiFormat {
 public:
  ChatFormat(const Engine& engine, const AnswerRequest& request, std::string id)
      : OpenAiFormat(engine, request, std::move(id), "chat.completion.chunk"),
        streamed_(static_cast<size_t>(request.choices)) {}

  std::string start() override {
    std::string out;
    for (int64_t i = 0; i < request_.choices; ++i)
      out += event(chunk(Json::Array{choice(i, object({{"role", "assistant"}, {"content", ""}}), {}, {})}, {}));
    return out;
  }

  std::string piece(size_t number, const ServiceDelta& d, const Usage& so_far) override {
    std::string out;
    Json logprobs = request_.options.logprobs >= 0 && !d.logprobs.empty() ? logprobs_json(d.logprobs) : Json();
    const auto tell = [&](Json delta, Json reason) {
      out += event(chunk(Json::Array{choice(static_cast<int64_t>(number), std::move(delta),
                                            std::exchange(logprobs, Json()), std::move(reason))},
                         so_far));
    };
    WholeAnswer& answer = streamed_[number];
    for (const BlockStep& step : answer.add(d))
      if (Json delta = delta_of(answer, step); !delta.is_null()) tell(std::move(delta), {});
    if (!logprobs.is_null()) tell(Json::Object{}, {});
    if (d.end) tell(Json::Object{}, finish_reason(answer.end, !answer.calls().empty()));
    return out;
  }

  Json whole(const std::vector<WholeAnswer>& answers, const Usage& usage) override {
    Json choices = Json::Array{};
    for (size_t i = 0; i < answers.size(); ++i) {
      const WholeAnswer& a = answers[i];
      const std::vector<Block> calls = a.calls();
      const std::string content = a.joined(AnswerPart::Kind::content),
                        reasoning = a.joined(AnswerPart::Kind::reasoning);
      Json message = object({{"role", "assistant"}, {"content", content}});
      if (content.empty() && !calls.empty()) message.set("content", Json());
      if (!reasoning.empty()) message.set("reasoning_content", reasoning);
      if (!calls.empty()) message.set("tool_calls", calls_json(calls));
      choices.array().push_back(
          object({{"index", static_cast<int64_t>(i)},
                  {"message", std::move(message)},
                  {"logprobs", request_.options.logprobs >= 0 ? logprobs_json(a.logprobs) : Json()},
                  {"finish_reason", finish_reason(a.end, !calls.empty())}}));
    }
    return response("chat.completion", std::move(choices), answers, usage);
  }

 private:
  static Json choice(int64_t index, Json delta, Json logprobs, Json reason) {
    return object({{"index", index},
                   {"delta", std::move(delta)},
                   {"logprobs", std::move(logprobs)},
                   {"finish_reason", std::move(reason)}});
  }

  // Null for a step that says nothing.
  static Json delta_of(const WholeAnswer& answer, const BlockStep& step) {
    const Block& block = answer.blocks[step.block];
    if (step.what == BlockStep::What::end) return {};
    if (!block.is_call()) {
      if (step.what == BlockStep::What::begin) return {};
      return object({{block.kind == AnswerPart::Kind::reasoning ? "reasoning_content" : "content", step.text}});
    }
    int64_t index = 0;
    for (size_t i = 0; i < step.block; ++i) index += answer.blocks[i].is_call();
    Json call = object({{"index", index}});
    if (step.what == BlockStep::What::begin) {
      call.set("id", block.id);
      call.set("type", "function");
      call.set("function", object({{"name", block.name}, {"arguments", ""}}));
    } else {
      call.set("function", object({{"arguments", step.text}}));
    }
    return object({{"tool_calls", Json::Array{std::move(call)}}});
  }

  static Json calls_json(const std::vector<Block>& calls) {
    Json out = Json::Array{};
    for (const Block& c : calls)
      out.array().push_back(object(
          {{"id", c.id}, {"type", "function"}, {"function", object({{"name", c.name}, {"arguments", c.text}})}}));
    return out;
  }

  Json token_json(int32_t id, float logprob) const {
    const std::string bytes = engine_.token_bytes(id);
    Json numbers = Json::Array{};
    for (const char c : bytes) numbers.array().push_back(static_cast<int64_t>(static_cast<unsigned char>(c)));
    return object({{"token", token_text(bytes)}, {"logprob", finite(logprob)}, {"bytes", std::move(numbers)}});
  }

  Json logprobs_json(const std::vector<TokenLogprobs>& all) const {
    Json content = Json::Array{};
    for (const TokenLogprobs& l : all) {
      Json entry = token_json(l.token, l.logprob);
      Json top = Json::Array{};
      for (const auto& [id, logprob] : l.top) top.array().push_back(token_json(id, logprob));
      entry.set("top_logprobs", std::move(top));
      content.array().push_back(std::move(entry));
    }
    return object({{"content", std::move(content)}, {"refusal", Json()}});
  }

  std::vector<WholeAnswer> streamed_;  // by choice
};

class CompletionFormat final : public OpenAiFormat {
 public:
  CompletionFormat(const Engine& engine, const AnswerRequest& request, std::string id)
      : OpenAiFormat(engine, request, std::move(id), "text_completion"),
        offsets_(request.prompts.size() * static_cast<size_t>(request.choices)) {}

  std::string start() override {
    std::string out;
    if (!request_.echo.empty())
      for (size_t i = 0; i < offsets_.size(); ++i) out += event(chunk(Json::Array{choice(i, echo(i), {}, {})}, {}));
    return out;
  }

  std::string piece(size_t number, const ServiceDelta& d, const Usage& so_far) override {
    std::string text;
    for (const AnswerPart& p : d.parts) text += p.text;
    Json logprobs =
        request_.options.logprobs >= 0 && !d.logprobs.empty() ? logprobs_json(d.logprobs, offsets_[number]) : Json();
    if (text.empty() && logprobs.is_null() && !d.end) return "";
    return event(chunk(Json::Array{choice(number, std::move(text), std::move(logprobs),
                                          d.end ? Json(finish_reason(*d.end, false)) : Json())},
                       so_far));
  }

  Json whole(const std::vector<WholeAnswer>& answers, const Usage& usage) override {
    Json choices = Json::Array{};
    for (size_t i = 0; i < answers.size(); ++i) {
      int64_t offset = 0;
      choices.array().push_back(
          choice(i, echo(i) + answers[i].joined(AnswerPart::Kind::text),
                 request_.options.logprobs >= 0 ? logprobs_json(answers[i].logprobs, offset) : Json(),
                 finish_reason(answers[i].end, false)));
    }
    return response("text_completion", std::move(choices), answers, usage);
  }

 private:
  std::string echo(size_t number) const {
    return request_.echo.empty() ? "" : request_.echo[number / static_cast<size_t>(request_.choices)];
  }

  static Json choice(size_t index, std::string text, Json logprobs, Json reason) {
    return object({{"index", static_cast<int64_t>(index)},
                   {"text", std::move(text)},
                   {"logprobs", std::move(logprobs)},
                   {"finish_reason", std::move(reason)}});
  }

  // `offset`: characters of the tokens so far.
  Json logprobs_json(const std::vector<TokenLogprobs>& all, int64_t& offset) const {
    Json tokens = Json::Array{}, values = Json::Array{}, tops = Json::Array{}, offsets = Json::Array{};
    for (const TokenLogprobs& l : all) {
      const std::string text = token_text(engine_.token_bytes(l.token));
      tokens.array().push_back(text);
      values.array().push_back(finite(l.logprob));
      Json top = Json::Object{};
      for (const auto& [id, logprob] : l.top) top.set(token_text(engine_.token_bytes(id)), finite(logprob));
      tops.array().push_back(std::move(top));
      offsets.array().push_back(offset);
      for (const char c : text) offset += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
    }
    return object({{"tokens", std::move(tokens)},
                   {"token_logprobs", std::move(values)},
                   {"top_logprobs", std::move(tops)},
                   {"text_offset", std::move(offsets)}});
  }

  std::vector<int64_t> offsets_;
};

}  // namespace

std::unique_ptr<AnswerFormat> chat_format(const Engine& engine, const AnswerRequest& request, const std::string& id) {
  return std::make_unique<ChatFormat>(engine, request, id);
}

std::unique_ptr<AnswerFormat> completion_format(const Engine& engine, const AnswerRequest& request,
                                                const std::string& id) {
  return std::make_unique<CompletionFormat>(engine, request, id);
}

}  // namespace kdelta::server
