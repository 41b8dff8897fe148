#include "kdelta/api/batch.h"

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>

#include "kdelta/api/answer_file.h"
#include "kdelta/api/batch_request.h"
#include "kdelta/core/check.h"
#include "kdelta/io/json_events.h"
#include "kdelta/io/json_reader.h"

namespace kdelta {
namespace {

constexpr JsonLimits kLine{.max_bytes = int64_t{64} << 20, .max_values = int64_t{1} << 22};

struct Line : BatchLine {
  explicit Line(BatchLine&& line) : BatchLine(std::move(line)) {}

  std::string request;  // number of what the answer depends on
  bool chat = false, thinking = true;
  std::vector<Generation> choices;  // that have ended, by index
  size_t missing = 0;               // others
};

JsonReader object_of(const std::string& text, const std::string& name) {
  const JsonSource source{.name = name, .code = ErrorCode::invalid_argument};
  return JsonReader(parse_json(text, source, kLine), source);
}

// The first custom_id of a line, up to where it stops being JSON: a fault behind it must not take its name away.
class FirstId final : public JsonEvents {
 public:
  void scalar(Json&& value) override {
    if (awaited_ && value.kind() == Json::Kind::string) id = value.string();
    awaited_ = false;
  }
  void key(std::string&& name) override { awaited_ = depth_ == 1 && !id && name == "custom_id"; }
  void begin_object() override { enter(); }
  void end_object() override { --depth_; }
  void begin_array() override { enter(); }
  void end_array() override { --depth_; }

  std::optional<std::string> id;

 private:
  void enter() { ++depth_, awaited_ = false; }

  int depth_ = 0;
  bool awaited_ = false;
};

std::optional<std::string> id_of(const std::string& text) {
  FirstId found;
  try {
    parse_json_events(text, {.name = "line", .code = ErrorCode::invalid_argument}, kLine, found);
  } catch (const Error&) {
    // Answered with its error, when its turn comes.
  }
  return found.id;
}

// With their numbers in the file, from 1; empty ones are none.
std::vector<std::pair<int64_t, std::string>> lines_of(const std::string& path) {
  std::ifstream in(path);
  if (!in) fail(ErrorCode::invalid_argument, "input: ", path, ": cannot be read");
  std::vector<std::pair<int64_t, std::string>> lines;
  int64_t number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") != std::string::npos) lines.emplace_back(number, line);
  }
  return lines;
}

std::vector<BatchLine> read_lines(const std::string& path) {
  std::vector<BatchLine> all;
  std::map<std::string, int64_t> seen;
  for (auto& [number, text] : lines_of(path)) {
    BatchLine line{.id = id_of(text).value_or("line-" + std::to_string(number)), .text = std::move(text)};
    if (const auto [first, fresh] = seen.emplace(line.id, number); !fresh)
      fail(ErrorCode::invalid_argument, "input: ", path, ": custom_id ", printable(line.id), " twice, in lines ",
           first->second, " and ", number);
    all.push_back(std::move(line));
  }
  return all;
}

// A number of the request as it stands in the file, of the model, its precision and what a body that says nothing
// means. Not of the seed: where nobody names one, every run draws another.
std::string request_number(const Line& line, const Engine& engine, const GenerateOptions& d) {
  std::string all =
      str(line.text, '\n', engine.model_id(), ' ', engine.precision(), ' ', d.temperature, ' ', d.top_p, ' ', d.min_p,
          ' ', d.top_k, ' ', d.repetition_penalty, ' ', d.presence_penalty, ' ', d.frequency_penalty, ' ', d.max_tokens,
          ' ', d.min_tokens, ' ', d.ignore_eos, ' ', d.show_specials);
  for (const auto& [token, bias] : d.logit_bias) all += str(' ', token, ':', bias);
  for (const int32_t id : d.stop_ids) all += str(' ', id);
  for (const std::string& text : d.stop) all += str('\n', text);
  if (const auto& c = d.constraint) {
    all += str('\n', static_cast<int>(c->kind), ' ', c->text);
    for (const std::string& text : c->choices) all += str('\n', text);
  }
  uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
  for (const char c : all) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text(16, '0');
  for (size_t i = 16; i-- > 0; hash >>= 4) text[i] = kDigits[hash & 15];
  return text;
}

AnswerFile::Asked numbered(std::vector<Line>& lines, const Engine& engine, const GenerateOptions& defaults) {
  AnswerFile::Asked asked;
  for (Line& l : lines) asked[l.id] = l.request = request_number(l, engine, defaults);
  return asked;
}

Json message_of(const ChatReply& reply) {
  Json::Object message{{"role", "assistant"}, {"content", reply.content}};
  if (!reply.reasoning.empty()) message.push_back({"reasoning", reply.reasoning});
  Json::Array calls;
  for (const ChatToolCall& c : reply.calls)
    calls.push_back(Json::Object{
        {"id", c.id}, {"type", "function"}, {"function", Json::Object{{"name", c.name}, {"arguments", c.arguments}}}});
  if (!calls.empty()) message.push_back({"tool_calls", std::move(calls)});
  return message;
}

class Batch {
 public:
  Batch(Engine& engine, const BatchOptions& options, std::vector<BatchLine> lines)
      : engine_(engine),
        o_(options),
        lines_(std::make_move_iterator(lines.begin()), std::make_move_iterator(lines.end())),
        out_(options.output, numbered(lines_, engine, options.defaults)) {
    progress_.total = static_cast<int64_t>(lines_.size());
    std::erase_if(lines_, [&](const Line& l) { return out_.answered().contains(l.id); });
    progress_.skipped = progress_.total - static_cast<int64_t>(lines_.size());
  }

  BatchProgress run() {
    begin_ = std::chrono::steady_clock::now();
    engine_.generate_many(
        [&](GenerateTask* task) { return next(task); },
        [&](int64_t number, Generation g) { take(asked_[static_cast<size_t>(number)], std::move(g)); }, o_.cancel);
    return progress_;
  }

 private:
  struct Asked {
    Line* line;
    size_t index;  // of the choice
  };

  bool next(GenerateTask* task) {
    if (index_ + 1 < choices_) return ask(task, ++index_);
    while (at_ < lines_.size()) {
      Line& line = lines_[at_++];
      try {
        BatchRequest r = read_request(engine_, object_of(line.text, line.id), o_.defaults);
        line.chat = r.chat;
        line.thinking = r.thinking;
        line.missing = choices_ = static_cast<size_t>(r.choices);
        line.choices.resize(choices_);
        task_ = std::move(r.task);
        return ask(task, index_ = 0);
      } catch (const Error& e) {
        refuse(line, true, e.what());
      }
    }
    return false;
  }

  // Choices of one request differ in nothing but their seeds.
  bool ask(GenerateTask* task, size_t index) {
    *task = task_;
    task->options.seed += index;
    asked_.push_back({&lines_[at_ - 1], index});
    return true;
  }

  void refuse(const Line& line, bool invalid, const std::string& why) {
    ++progress_.failed;
    if (o_.failed) o_.failed(line.id, why);
    write(Json::Object{{"id", "batch_req_" + line.id},
                       {"custom_id", line.id},
                       {"response", nullptr},
                       {"error", Json::Object{{"code", invalid ? "invalid_request" : "failed"}, {"message", why}}}});
  }

  void take(const Asked& asked, Generation g) {
    Line& line = *asked.line;
    line.choices[asked.index] = std::move(g);
    if (--line.missing > 0) return;
    const std::vector<Generation> all = std::move(line.choices);
    for (const Generation& choice : all)
      if (choice.finish_reason == "cancelled") return;  // asked again by the next run
    for (const Generation& choice : all)
      if (choice.finish_reason == "error") return refuse(line, choice.refused, choice.error);
    answer(line, all);
  }

  Json choice_of(const Line& line, size_t index, const Generation& g) const {
    Json::Object choice{{"index", static_cast<int64_t>(index)}};
    if (line.chat) {
      const ChatReply reply = engine_.read_answer(g, line.thinking);
      choice.push_back({"finish_reason", reply.calls.empty() ? g.finish_reason : "tool_calls"});
      choice.push_back({"message", message_of(reply)});
      return choice;
    }
    choice.push_back({"finish_reason", g.finish_reason});
    choice.push_back({"text", g.text});
    // Without a tokenizer the text is empty, and the ids are the answer.
    if (!engine_.has_tokenizer()) choice.push_back({"token_ids", Json::Array(g.tokens.begin(), g.tokens.end())});
    return choice;
  }

  // The prompt of several choices is one prompt.
  void answer(const Line& line, const std::vector<Generation>& all) {
    const int64_t prompt = all.front().prompt_tokens, cached = all.front().cached_tokens;
    int64_t tokens = 0;
    Json::Array choices;
    for (size_t i = 0; i < all.size(); ++i) {
      tokens += std::ssize(all[i].tokens);
      choices.push_back(choice_of(line, i, all[i]));
    }
    ++progress_.done;
    progress_.prompt_tokens += prompt;
    progress_.cached_tokens += cached;
    progress_.tokens += tokens;
    Json::Object usage{{"prompt_tokens", prompt},
                       {"completion_tokens", tokens},
                       {"total_tokens", prompt + tokens},
                       {"prompt_tokens_details", Json::Object{{"cached_tokens", cached}}}};
    Json::Object body{{"id", "cmpl-" + line.id},
                      {"object", line.chat ? "chat.completion" : "text_completion"},
                      {"model", engine_.info().kind},
                      {"choices", std::move(choices)},
                      {"usage", std::move(usage)}};
    write(Json::Object{
        {"id", "batch_req_" + line.id},
        {"custom_id", line.id},
        {"response", Json::Object{{"status_code", 200}, {"request_id", line.request}, {"body", std::move(body)}}},
        {"error", nullptr}});
  }

  void write(const Json& value) {
    out_.append(json_text(value));
    progress_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
    if (o_.progress) o_.progress(progress_);
  }

  Engine& engine_;
  const BatchOptions& o_;
  std::vector<Line> lines_;
  AnswerFile out_;
  std::vector<Asked> asked_;  // by the number of their task
  size_t at_ = 0;             // line that is read next
  GenerateTask task_;         // of the line before it, and its choices
  size_t choices_ = 0, index_ = 0;
  BatchProgress progress_;
  std::chrono::steady_clock::time_point begin_;
};

}  // namespace

std::vector<BatchLine> read_batch(const BatchOptions& o) {
  namespace fs = std::filesystem;
  std::error_code unknown;
  if (fs::equivalent(o.input, o.output, unknown))
    fail(ErrorCode::invalid_argument, "output: ", o.output, ": the same file as the input ", o.input);
  check_answers(o.output);
  return read_lines(o.input);
}

BatchProgress run_batch(Engine& engine, const BatchOptions& options, std::vector<BatchLine> lines) {
  return Batch(engine, options, std::move(lines)).run();
}

}  // namespace kdelta
