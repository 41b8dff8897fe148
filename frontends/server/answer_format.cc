#include "frontends/server/answer_format.h"

#include <charconv>
#include <cmath>
#include <utility>

namespace kdelta::server {

std::vector<BlockStep> WholeAnswer::add(const ServiceDelta& d) {
  using What = BlockStep::What;
  std::vector<BlockStep> steps;
  const auto close = [&](bool failed) {
    if (!std::exchange(open_, false)) return;
    blocks.back().failed = failed;
    steps.push_back({What::end, blocks.size() - 1});
  };
  for (const AnswerPart& p : d.parts) {
    const bool call = p.kind == AnswerPart::Kind::call;
    const bool goes_on = open_ && blocks.back().kind == p.kind && (!call || call_ == p.call.index);
    if (!goes_on) {
      close(false);
      blocks.push_back({.kind = p.kind});
      if (call) {
        call_ = p.call.index;
        blocks.back().name = p.call.name;
        blocks.back().id = p.call.id.empty() ? new_id("call_") : p.call.id;
      }
      open_ = true;
      steps.push_back({What::begin, blocks.size() - 1});
    }
    const std::string& more = call ? p.call.arguments : p.text;
    if (!more.empty()) {
      blocks.back().text += more;
      steps.push_back({What::more, blocks.size() - 1, more});
    }
    if (call && p.call.ended) close(p.call.failed);
  }
  tokens.insert(tokens.end(), d.tokens.begin(), d.tokens.end());
  logprobs.insert(logprobs.end(), d.logprobs.begin(), d.logprobs.end());
  if (d.end) {
    end = *d.end;
    if (open_) blocks.back().cut = end.reason == "length";
    close(open_ && blocks.back().is_call());
  }
  return steps;
}

std::string WholeAnswer::joined(AnswerPart::Kind kind) const {
  std::string out;
  for (const Block& b : blocks)
    if (b.kind == kind) out += b.text;
  return out;
}

std::vector<Block> WholeAnswer::calls() const {
  std::vector<Block> out;
  for (const Block& b : blocks)
    if (b.is_call() && !b.failed) out.push_back(b);
  return out;
}

std::string event(const Json& data) {
  return "data: " + json_text(data) + "\n\n";
}

std::string named_event(const Json& data) {
  return "event: " + data.find("type")->string() + "\n" + event(data);
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
  const auto thousandths = [](double value) { return std::round(1e3 * value) / 1e3; };  // no clock knows more
  const auto ms = [&](double seconds) { return thousandths(1e3 * seconds); };
  const double rate = t.decode > 0 ? static_cast<double>(u.answer) / t.decode : 0;
  return object({{"queued_ms", ms(t.queued)},
                 {"prompt_ms", ms(t.prefill)},
                 {"predicted_ms", ms(t.decode)},
                 {"predicted_per_second", thousandths(rate)}});
}

Json plain_number(float value) {
  char text[64];
  const auto end = std::to_chars(text, std::end(text), value).ptr;
  double plain = 0;
  std::from_chars(text, end, plain);
  return plain;
}

std::string finish_reason(const ServiceEnd& end, bool calls) {
  return end.reason == "stop" && end.stop.empty() && calls ? "tool_calls" : end.reason;
}

}  // namespace kdelta::server
