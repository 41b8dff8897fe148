// The form of the Anthropic Messages API: blocks of content, as events or as a message.
#include "frontends/server/answer_format.h"

namespace kdelta::server {
namespace {

using What = BlockStep::What;
using Kind = AnswerPart::Kind;

// Prompt tokens that were found are counted apart.
Json usage_of(const Usage& u) {
  return object({{"input_tokens", u.prompt - u.cached},
                 {"cache_creation_input_tokens", 0},
                 {"cache_read_input_tokens", u.cached},
                 {"output_tokens", u.answer}});
}

class MessageFormat final : public AnswerFormat {
 public:
  MessageFormat(const AnswerRequest& request, std::string id)
      : id_(std::move(id)),
        model_(request.model),
        prompt_(std::ssize(request.prompts.front())),
        max_tokens_(request.options.max_tokens),
        show_thinking_(request.show_thinking) {}

  std::string start() override {
    Json first = message(Json::Array{}, {}, {.prompt = prompt_});
    return named_event(object({{"type", "message_start"}, {"message", std::move(first)}})) + ping();
  }

  std::string piece(size_t, const ServiceDelta& delta, const Usage&) override {
    std::string out;
    for (const BlockStep& step : streamed_.add(delta)) {
      const Block& block = streamed_.blocks[step.block];
      const auto index = static_cast<int64_t>(step.block);
      const auto tell = [&](const char* type, const char* member, Json what) {
        out += named_event(object({{"type", type}, {"index", index}, {member, std::move(what)}}));
      };
      if (step.what == What::begin) tell("content_block_start", "content_block", empty(block));
      if (step.what == What::more && shows(block)) tell("content_block_delta", "delta", delta_of(block, step.text));
      if (step.what != What::end) continue;
      if (block.kind == Kind::reasoning)
        tell("content_block_delta", "delta", object({{"type", "signature_delta"}, {"signature", id_}}));
      out += named_event(object({{"type", "content_block_stop"}, {"index", index}}));
    }
    return out;
  }

  std::string finish(const Usage& usage, const ServiceTimings&) override {
    const Json delta = object({{"stop_reason", stop_reason(streamed_)}, {"stop_sequence", stop_sequence(streamed_)}});
    return named_event(object({{"type", "message_delta"}, {"delta", delta}, {"usage", usage_of(usage)}})) +
           named_event(object({{"type", "message_stop"}}));
  }

  std::string failure(const Reply& error) override { return "event: error\ndata: " + anthropic_error(error) + "\n\n"; }
  std::string ping() const override { return named_event(object({{"type", "ping"}})); }

  Json whole(const std::vector<WholeAnswer>& answers, const Usage& usage) override {
    const WholeAnswer& answer = answers.front();
    Json content = Json::Array{};
    for (const Block& block : answer.blocks)
      if (!block.failed) content.array().push_back(filled(block));
    return message(std::move(content), answer, usage);
  }

 private:
  // `answer` without an end: one that has just begun.
  Json message(Json content, const WholeAnswer& answer, const Usage& usage) const {
    return object({{"id", id_},
                   {"type", "message"},
                   {"role", "assistant"},
                   {"model", model_},
                   {"content", std::move(content)},
                   {"stop_reason", stop_reason(answer)},
                   {"stop_sequence", stop_sequence(answer)},
                   {"usage", usage_of(usage)}});
  }

  Json stop_reason(const WholeAnswer& answer) const {
    const ServiceEnd& end = answer.end;
    if (end.reason.empty()) return {};
    if (end.reason == "length") return end.tokens < max_tokens_ ? "model_context_window_exceeded" : "max_tokens";
    if (!end.stop.empty()) return "stop_sequence";
    return answer.calls().empty() ? "end_turn" : "tool_use";
  }
  static Json stop_sequence(const WholeAnswer& answer) {
    return answer.end.stop.empty() ? Json() : Json(answer.end.stop);
  }

  bool shows(const Block& block) const { return block.kind != Kind::reasoning || show_thinking_; }

  static Json empty(const Block& block) {
    if (block.is_call())
      return object({{"type", "tool_use"}, {"id", block.id}, {"name", block.name}, {"input", Json::Object{}}});
    if (block.kind == Kind::reasoning) return object({{"type", "thinking"}, {"thinking", ""}, {"signature", ""}});
    return object({{"type", "text"}, {"text", ""}});
  }

  static Json delta_of(const Block& block, const std::string& text) {
    if (block.is_call()) return object({{"type", "input_json_delta"}, {"partial_json", text}});
    if (block.kind == Kind::reasoning) return object({{"type", "thinking_delta"}, {"thinking", text}});
    return object({{"type", "text_delta"}, {"text", text}});
  }

  // What a block's events make of its beginning.
  Json filled(const Block& block) const {
    Json out = empty(block);
    if (block.is_call()) {
      out.set("input", parse_json(block.text, {.name = "arguments"}, {.max_bytes = std::ssize(block.text)}));
    } else if (block.kind == Kind::reasoning) {
      if (show_thinking_) out.set("thinking", block.text);
      out.set("signature", id_);
    } else {
      out.set("text", block.text);
    }
    return out;
  }

  const std::string id_, model_;
  const int64_t prompt_, max_tokens_;
  const bool show_thinking_;
  WholeAnswer streamed_;
};

}  // namespace

std::unique_ptr<AnswerFormat> message_format(const AnswerRequest& request, const std::string& id) {
  return std::make_unique<MessageFormat>(request, id);
}

}  // namespace kdelta::server
