#include "kdelta/api/batch.h"

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <set>

#include "kdelta/api/messages.h"
#include "kdelta/core/check.h"
#include "kdelta/io/json_reader.h"

namespace kdelta {
namespace {

constexpr JsonLimits kLine{.max_bytes = int64_t{64} << 20, .max_values = int64_t{1} << 22};

struct Line {
  std::string id, text;
  bool chat = false;
};

JsonReader object_of(const std::string& text, const std::string& name) {
  const JsonSource source{.name = name, .code = ErrorCode::invalid_argument};
  return JsonReader(parse_json(text, source, kLine), source);
}

std::vector<std::string> lines_of(const std::string& path) {
  std::ifstream in(path);
  if (!in) fail(ErrorCode::invalid_argument, "input: ", path, ": cannot be read");
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);)
    if (line.find_first_not_of(" \t\r") != std::string::npos) lines.push_back(line);
  return lines;
}

std::vector<Line> read_input(const std::string& path) {
  std::vector<Line> all;
  std::set<std::string> ids;
  for (const std::string& text : lines_of(path)) {
    Line line{.id = "line-" + std::to_string(all.size() + 1), .text = text};
    try {
      line.id = object_of(text, "line").find<std::string>("custom_id").value_or(line.id);
    } catch (const Error&) {
      // Answered with its error, when its turn comes.
    }
    if (!ids.insert(line.id).second)
      fail(ErrorCode::invalid_argument, "input: ", path, ": custom_id ", line.id, " twice");
    all.push_back(std::move(line));
  }
  return all;
}

// The ids that the output answers already; a last line without its end is cut off.
std::set<std::string> read_output(const std::string& path) {
  std::set<std::string> ids;
  std::error_code missing;
  if (!std::filesystem::exists(path, missing)) return ids;
  if (!std::filesystem::is_regular_file(path)) fail(ErrorCode::invalid_argument, "output: ", path, ": no regular file");
  std::ifstream in(path, std::ios::binary);
  std::string line;
  uintmax_t whole = 0;
  while (std::getline(in, line)) {
    if (in.eof()) break;  // no newline behind it
    whole += line.size() + 1;
    if (line.empty()) continue;
    ids.insert(object_of(line, "output: " + path).get<std::string>("custom_id"));
  }
  in.close();
  if (std::filesystem::file_size(path) != whole) std::filesystem::resize_file(path, whole);
  return ids;
}

template <class T, class Out>
void read_if(const JsonReader& body, const char* field, Out& out) {
  if (const auto value = body.find<T>(field)) out = static_cast<Out>(*value);
}

std::vector<int32_t> prompt_of(const Engine& engine, const JsonReader& body, bool chat) {
  if (chat) {
    std::vector<ChatMessage> messages;
    for (const JsonReader& m : body.get<std::vector<JsonReader>>("messages")) messages.push_back(read_message(m));
    return engine.chat_prompt(messages, {.thinking = body.find<bool>("thinking").value_or(true),
                                         .effort = body.find<std::string>("reasoning_effort").value_or("")});
  }
  if (body.kind("prompt") == Json::Kind::string) return engine.tokenize(body.get<std::string>("prompt"));
  std::vector<int32_t> ids;
  for (const int64_t id : body.get<std::vector<int64_t>>("prompt")) {
    if (id < 0 || id > INT32_MAX) body.refuse("prompt", "token ids");
    ids.push_back(static_cast<int32_t>(id));
  }
  return ids;
}

GenerateOptions options_of(const JsonReader& body, GenerateOptions o) {
  body.find_in("n", 1, 1);
  if (body.find<bool>("stream").value_or(false)) body.refuse("stream", "false");
  read_if<int64_t>(body, "max_tokens", o.max_tokens);
  read_if<int64_t>(body, "max_completion_tokens", o.max_tokens);
  read_if<int64_t>(body, "min_tokens", o.min_tokens);
  read_if<double>(body, "temperature", o.temperature);
  read_if<double>(body, "top_p", o.top_p);
  read_if<double>(body, "min_p", o.min_p);
  read_if<double>(body, "repetition_penalty", o.repetition_penalty);
  read_if<double>(body, "presence_penalty", o.presence_penalty);
  read_if<double>(body, "frequency_penalty", o.frequency_penalty);
  if (const auto k = body.find_in("top_k", -1, INT32_MAX)) o.top_k = static_cast<int32_t>(*k);
  if (const auto seed = body.find_in("seed", 0, INT64_MAX)) o.seed = static_cast<uint64_t>(*seed);
  read_if<bool>(body, "ignore_eos", o.ignore_eos);
  if (body.kind("stop") == Json::Kind::string)
    o.stop = {body.get<std::string>("stop")};
  else if (const auto stop = body.find<std::vector<std::string>>("stop"))
    o.stop = *stop;
  check_options(o);
  return o;
}

class Batch {
 public:
  Batch(Engine& engine, const BatchOptions& options) : engine_(engine), o_(options), lines_(read_input(options.input)) {
    const std::set<std::string> answered = read_output(options.output);
    progress_.total = static_cast<int64_t>(lines_.size());
    std::erase_if(lines_, [&](const Line& l) { return answered.contains(l.id); });
    progress_.skipped = progress_.total - static_cast<int64_t>(lines_.size());
    out_.open(options.output, std::ios::binary | std::ios::app);
    if (!out_) fail(ErrorCode::invalid_argument, "output: ", options.output, ": cannot be written");
  }

  BatchProgress run() {
    begin_ = std::chrono::steady_clock::now();
    engine_.generate_many([&](GenerateTask* task) { return next(task); },
                          [&](int64_t number, const Generation& g) { answer(asked_[static_cast<size_t>(number)], g); },
                          o_.cancel);
    return progress_;
  }

 private:
  bool next(GenerateTask* task) {
    while (at_ < lines_.size()) {
      Line& line = lines_[at_++];
      try {
        const JsonReader r = object_of(line.text, line.id);
        const auto url = r.find<std::string>("url").value_or("/v1/completions");
        if (url != "/v1/completions" && url != "/v1/chat/completions")
          r.refuse("url", "/v1/completions or /v1/chat/completions");
        line.chat = url == "/v1/chat/completions";
        const JsonReader body = r.find<JsonReader>("body").value_or(r);
        task->options = options_of(body, o_.defaults);
        task->prompt = prompt_of(engine_, body, line.chat);
        asked_.push_back(&line);
        return true;
      } catch (const Error& e) {
        refuse(line, 400, e.what());
      }
    }
    return false;
  }

  void refuse(const Line& line, int status, const std::string& why) {
    ++progress_.failed;
    write(Json::Object{
        {"id", "batch_req_" + line.id},
        {"custom_id", line.id},
        {"response", nullptr},
        {"error", Json::Object{{"code", status == 400 ? "invalid_request" : "failed"}, {"message", why}}}});
  }

  void answer(const Line* line, const Generation& g) {
    if (g.finish_reason == "cancelled") return;  // asked again by the next run
    if (g.finish_reason == "error") return refuse(*line, 500, g.error);
    ++progress_.done;
    progress_.prompt_tokens += g.prompt_tokens;
    progress_.cached_tokens += g.cached_tokens;
    progress_.tokens += static_cast<int64_t>(g.tokens.size());
    Json::Object choice{{"index", 0}, {"finish_reason", g.finish_reason}};
    if (line->chat) {
      const ChatReply reply = engine_.read_answer(g);
      Json::Object message{{"role", "assistant"}, {"content", reply.content}};
      if (!reply.reasoning.empty()) message.push_back({"reasoning", reply.reasoning});
      choice.push_back({"message", std::move(message)});
    } else {
      choice.push_back({"text", g.text});
    }
    const auto tokens = static_cast<int64_t>(g.tokens.size());
    Json::Object usage{{"prompt_tokens", g.prompt_tokens},
                       {"completion_tokens", tokens},
                       {"total_tokens", g.prompt_tokens + tokens},
                       {"prompt_tokens_details", Json::Object{{"cached_tokens", g.cached_tokens}}}};
    Json::Object body{{"id", "cmpl-" + line->id},
                      {"object", line->chat ? "chat.completion" : "text_completion"},
                      {"model", engine_.info().kind},
                      {"choices", Json::Array{Json(std::move(choice))}},
                      {"usage", std::move(usage)}};
    write(Json::Object{{"id", "batch_req_" + line->id},
                       {"custom_id", line->id},
                       {"response", Json::Object{{"status_code", 200}, {"body", std::move(body)}}},
                       {"error", nullptr}});
  }

  void write(const Json& value) {
    out_ << json_text(value) << '\n';
    out_.flush();
    if (!out_) fail(ErrorCode::failed, "output: ", o_.output, ": cannot be written");
    progress_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
    if (o_.progress) o_.progress(progress_);
  }

  Engine& engine_;
  const BatchOptions& o_;
  std::vector<Line> lines_;
  std::vector<const Line*> asked_;
  size_t at_ = 0;
  BatchProgress progress_;
  std::ofstream out_;
  std::chrono::steady_clock::time_point begin_;
};

}  // namespace

BatchProgress run_batch(Engine& engine, const BatchOptions& options) {
  return Batch(engine, options).run();
}

}  // namespace kdelta
