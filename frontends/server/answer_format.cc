#include "frontends/server/answer_format.h"

namespace kdelta::server {

void WholeAnswer::add(const ServiceDelta& d) {
  using Kind = AnswerPart::Kind;
  for (const AnswerPart& p : d.parts) {
    switch (p.kind) {
      case Kind::text:
        text += p.text;
        break;
      case Kind::reasoning:
        reasoning += p.text;
        break;
      case Kind::content:
        content += p.text;
        break;
      case Kind::call:
        if (calls.empty() || calls.back().index != p.call.index) {
          calls.push_back(p.call);
        } else {
          calls.back().arguments += p.call.arguments;
          calls.back().ended = p.call.ended;
        }
        if (p.call.failed) calls.pop_back();
        break;
    }
  }
  tokens.insert(tokens.end(), d.tokens.begin(), d.tokens.end());
  logprobs.insert(logprobs.end(), d.logprobs.begin(), d.logprobs.end());
  if (!d.end) return;
  end = *d.end;
  // One that was cancelled in the middle of a call.
  if (!calls.empty() && !calls.back().ended) calls.pop_back();
}

std::string event(const Json& data) {
  return "data: " + json_text(data) + "\n\n";
}

Json object(std::initializer_list<std::pair<std::string_view, Json>> members) {
  Json::Object out;
  out.reserve(members.size());
  for (const auto& [key, value] : members) out.push_back({std::string(key), value});
  return out;
}

Json usage_json(const Usage& u) {
  return object({{"prompt_tokens", u.prompt},
                 {"completion_tokens", u.answer},
                 {"total_tokens", u.prompt + u.answer},
                 {"prompt_tokens_details", object({{"cached_tokens", u.cached}})}});
}

Json timings_json(const ServiceTimings& t, const Usage& u) {
  const auto rate = [](int64_t tokens, double seconds) {
    return seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
  };
  return object({{"queued_ms", 1e3 * t.queued},
                 {"prompt_ms", 1e3 * t.prefill},
                 {"predicted_ms", 1e3 * t.decode},
                 {"predicted_per_second", rate(u.answer, t.decode)}});
}

std::string finish_reason(const ServiceEnd& end, bool calls) {
  return end.reason == "stop" && end.stop.empty() && calls ? "tool_calls" : end.reason;
}

}  // namespace kdelta::server
