// The form of the OpenAI Responses API: items of output, as numbered events or as a response.
#include <algorithm>
#include <chrono>

#include "frontends/server/answer_format.h"

namespace kdelta::server {
namespace {

using What = BlockStep::What;
using Kind = AnswerPart::Kind;

class ResponseFormat final : public AnswerFormat {
 public:
  ResponseFormat(const Engine& engine, const AnswerRequest& request, std::string id)
      : engine_(engine),
        id_(std::move(id)),
        model_(request.model),
        repeated_(request.repeated),
        created_(std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
                     .count()) {}

  std::string start() override {
    const Json begun = response("in_progress", Json::Array{}, {});
    std::string out = tell("response.created", {{"response", begun}});
    return out += tell("response.in_progress", {{"response", begun}});
  }

  std::string piece(size_t, const ServiceDelta& delta, const Usage&) override {
    std::string out;
    for (const BlockStep& step : streamed_.add(delta)) {
      const auto index = static_cast<int64_t>(step.block);
      const Block& block = streamed_.blocks[step.block];
      const std::string& id = item_id(block, step.block);
      switch (step.what) {
        case What::begin:
          out += tell("response.output_item.added",
                      {{"output_index", index}, {"item", item(block, id, "in_progress", false)}});
          if (!block.is_call())
            out += tell_of_part("response.content_part.added", id, index, {{"part", part(block, "")}});
          break;
        case What::more:
          out += block.is_call() ? tell("response.function_call_arguments.delta",
                                        {{"item_id", id}, {"output_index", index}, {"delta", step.text}})
                                 : tell_of_text(block, ".delta", id, index, {"delta", step.text});
          break;
        case What::end:
          out += end_of(block, id, index);
          break;
      }
    }
    return out;
  }

  std::string finish(const Usage& usage, const ServiceTimings&) override {
    const Json done = whole_of(streamed_, usage);
    return tell("response." + done.find("status")->string(), {{"response", done}});
  }

  std::string failure(const Reply& error) override {
    Json failed = response("failed", output_of(streamed_), {});
    failed.set("error", object({{"code", "server_error"}, {"message", error.error ? error.error->message : ""}}));
    return tell("response.failed", {{"response", std::move(failed)}});
  }

  Json whole(const std::vector<WholeAnswer>& answers, const Usage& usage) override {
    return whole_of(answers.front(), usage);
  }

 private:
  using Members = std::initializer_list<std::pair<std::string_view, Json>>;

  std::string tell(const std::string& type, Members members) {
    Json data = object({{"type", type}, {"sequence_number", sequence_++}});
    for (const auto& [key, value] : members) data.set(key, value);
    return named_event(data);
  }
  std::string tell_of_part(const std::string& type, const std::string& id, int64_t index, Members members) {
    Json data = object({{"type", type},
                        {"sequence_number", sequence_++},
                        {"item_id", id},
                        {"output_index", index},
                        {"content_index", 0}});
    for (const auto& [key, value] : members) data.set(key, value);
    return named_event(data);
  }
  std::string tell_of_text(const Block& block, const char* what, const std::string& id, int64_t index,
                           std::pair<std::string_view, Json> member) {
    if (block.kind == Kind::reasoning)
      return tell_of_part(std::string("response.reasoning_text") + what, id, index, {member});
    return tell_of_part(std::string("response.output_text") + what, id, index, {member, {"logprobs", Json::Array{}}});
  }

  std::string end_of(const Block& block, const std::string& id, int64_t index) {
    std::string out;
    if (!block.is_call()) {
      out += tell_of_text(block, ".done", id, index, {"text", block.text});
      out += tell_of_part("response.content_part.done", id, index, {{"part", part(block, block.text)}});
    } else if (!block.failed) {
      out += tell("response.function_call_arguments.done",
                  {{"item_id", id}, {"output_index", index}, {"name", block.name}, {"arguments", block.text}});
    }
    return out + tell("response.output_item.done",
                      {{"output_index", index}, {"item", item(block, id, status_of(block), true)}});
  }

  const std::string& item_id(const Block& block, size_t i) {
    while (item_ids_.size() <= i)
      item_ids_.push_back(new_id(block.is_call() ? "fc_" : block.kind == Kind::reasoning ? "rs_" : "msg_"));
    return item_ids_[i];
  }

  static const char* status_of(const Block& block) { return block.failed || block.cut ? "incomplete" : "completed"; }

  static Json part(const Block& block, const std::string& text) {
    if (block.kind == Kind::reasoning) return object({{"type", "reasoning_text"}, {"text", text}});
    return object(
        {{"type", "output_text"}, {"text", text}, {"annotations", Json::Array{}}, {"logprobs", Json::Array{}}});
  }

  // `filled`: with what it says.
  static Json item(const Block& block, const std::string& id, const char* status, bool filled) {
    if (block.is_call())
      return object({{"id", id},
                     {"type", "function_call"},
                     {"status", status},
                     {"call_id", block.id},
                     {"name", block.name},
                     {"arguments", filled ? block.text : ""}});
    Json content = Json::Array{};
    if (filled) content.array().push_back(part(block, block.text));
    if (block.kind == Kind::reasoning)
      return object({{"id", id},
                     {"type", "reasoning"},
                     {"status", status},
                     {"summary", Json::Array{}},
                     {"content", std::move(content)}});
    return object(
        {{"id", id}, {"type", "message"}, {"status", status}, {"role", "assistant"}, {"content", std::move(content)}});
  }

  Json output_of(const WholeAnswer& answer) {
    Json out = Json::Array{};
    for (size_t i = 0; i < answer.blocks.size(); ++i) {
      const Block& block = answer.blocks[i];
      out.array().push_back(item(block, item_id(block, i), status_of(block), true));
    }
    return out;
  }

  Json whole_of(const WholeAnswer& answer, const Usage& usage) {
    const bool cut = answer.end.reason == "length";
    Json out = response(cut ? "incomplete" : "completed", output_of(answer), usage_of(answer, usage));
    if (cut) out.set("incomplete_details", object({{"reason", "max_output_tokens"}}));
    return out;
  }

  // What was thought is counted from its text.
  Json usage_of(const WholeAnswer& answer, const Usage& u) const {
    const std::string reasoning = answer.joined(Kind::reasoning);
    const int64_t thought =
        reasoning.empty() ? 0 : std::min<int64_t>(u.answer, std::ssize(engine_.tokenize(reasoning)));
    return object({{"input_tokens", u.prompt},
                   {"input_tokens_details", object({{"cached_tokens", u.cached}, {"cache_write_tokens", 0}})},
                   {"output_tokens", u.answer},
                   {"output_tokens_details", object({{"reasoning_tokens", thought}})},
                   {"total_tokens", u.prompt + u.answer}});
  }

  Json response(const char* status, Json output, Json usage) const {
    Json out = object({{"id", id_},
                       {"object", "response"},
                       {"created_at", created_},
                       {"status", status},
                       {"background", false},
                       {"error", Json()},
                       {"incomplete_details", Json()},
                       {"model", model_},
                       {"output", std::move(output)},
                       {"previous_response_id", Json()},
                       {"service_tier", "default"},
                       {"store", false},
                       {"top_logprobs", 0},
                       {"truncation", "disabled"},
                       {"usage", std::move(usage)}});
    for (const JsonMember& m : repeated_.object()) out.set(m.key, m.value);
    return out;
  }

  const Engine& engine_;
  const std::string id_, model_;
  const Json repeated_;
  const int64_t created_;
  int64_t sequence_ = 0;
  std::vector<std::string> item_ids_;  // by block
  WholeAnswer streamed_;
};

}  // namespace

std::unique_ptr<AnswerFormat> response_format(const Engine& engine, const AnswerRequest& request,
                                              const std::string& id) {
  return std::make_unique<ResponseFormat>(engine, request, id);
}

}  // namespace kdelta::server
