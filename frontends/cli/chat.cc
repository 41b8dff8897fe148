// kdelta chat: a conversation. The answer goes to stdout; thinking, prompts and numbers go to stderr.
#include <fmt/core.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>

#include "frontends/cli/commands.h"
#include "frontends/cli/json_text.h"
#include "frontends/cli/line_input.h"
#include "frontends/cli/open_line.h"
#include "frontends/cli/sampling.h"
#include "frontends/cli/terminal.h"
#include "frontends/cli/usage.h"
#include "kdelta/api/whole_file.h"

namespace kdelta::cli {
namespace {

constexpr const char* kHelp =
    "/help            this list\n"
    "/reset           forget the conversation\n"
    "/system TEXT     start again with this system message\n"
    "/think on|off    whether answers begin with a thinking part\n"
    "/save FILE       write the conversation as JSON lines, and to FILE.state what was computed of it\n"
    "/load FILE       go on with a saved conversation, without computing it again\n"
    "/stats           tokens and speed of the last answer\n"
    "/exit, /quit     leave (also Ctrl-D)\n"
    "A line ending in \\ goes on in the next. Ctrl-C stops an answer and clears a line; twice on an empty line it "
    "leaves.\n"
    "Ctrl-\\ ends the program at once.\n";

std::string history_path() {
  const char* home = std::getenv("HOME");
  return home == nullptr ? "" : std::string(home) + "/.kdelta_history";
}

class Session {
 public:
  Session(const ChatFlags& o, ChatSettings settings)
      : o_(o),
        engine_(load_engine(o.load, o.quiet ? LoadReport::silent : LoadReport::whole)),
        settings_(std::move(settings)) {
    // What only the model's chat format can refuse is refused now, not after the first question.
    (void)engine_.chat_prompt({{.role = "user", .content = "x"}}, settings_);
    reset();
  }

  int once(const std::string& text) {
    messages_.push_back({.role = "user", .content = text});
    const ChatReply reply = answer();
    if (o_.json)
      print_json(reply);
    else  // nobody is there to give results: the calls are the answer
      for (const ChatToolCall& call : reply.calls) fmt::print("{}\n", call_line(call));
    return reply.generation.finish_reason == "cancelled" ? kExitInterrupted : 0;
  }

  int interactive() {
    LineInput input(o_.no_history ? "" : history_path(),
                    "(Ctrl-C once more leaves and forgets the conversation; /save FILE keeps it)");
    const bool person = person_ = input.person();
    int failed = 0;
    if (person && !o_.quiet) say("\n/help lists the commands.\n");
    for (;;) {
      // Of a pipe nobody sits at the prompt: Ctrl-C leaves; during an answer it only stops the answer.
      if (!person) std::signal(SIGINT, SIG_DFL);
      // At any prompt, that for a tool's result included.
      if (ending_signal() != 0) return kExitSignal + ending_signal();
      const auto line = input.read("> ");
      if (input.left()) return kExitInterrupted;
      if (ending_signal() != 0) continue;
      if (!line || *line == "/exit" || *line == "/quit") return person || failed == 0 ? 0 : kExitFailed;
      if (line->empty()) continue;
      try {
        check_text(*line, "line");
        if (line->front() == '/')
          command(*line);
        else
          turn(*line, input);
      } catch (const std::exception& e) {
        ++failed;  // a person sees that and goes on; a script sees the exit code
        const std::string problem = in_words_of_flags(e.what());
        const bool full = problem.ends_with("(--max-model-len)");
        say("kdelta: {}{}\n", problem, full ? "; /reset forgets the conversation, a larger -c makes room" : "");
      }
    }
  }

 private:
  void reset() {
    messages_.clear();
    if (!o_.system.empty()) messages_.push_back({.role = "system", .content = o_.system});
  }

  void turn(const std::string& text, LineInput& input) {
    messages_.push_back({.role = "user", .content = text});
    const size_t before = messages_.size() - 1;
    try {
      for (ChatReply reply = answer(); !reply.calls.empty(); reply = answer()) {
        for (const ChatToolCall& call : reply.calls) {
          say("[the model calls {}({})]\n", call.name, call.arguments);
          const auto result = input.read("result> ");
          if (!result) throw std::runtime_error("end of input instead of the result of " + call.name);
          check_text(*result, "result of " + call.name);
          messages_.push_back({.role = "tool", .content = *result, .name = call.name, .call_id = call.id});
        }
      }
    } catch (...) {
      messages_.resize(before);  // a failed turn leaves the conversation as it was
      throw;
    }
  }

  ChatReply answer() {
    interrupted = false;
    if (!person_) catch_interrupts();
    GenerateOptions options = generate_options(engine_, o_.sampling);
    options.cancel = &interrupted;
    ProgressBar bar("prefill", o_.quiet);
    options.prefill_progress = [&](int64_t done, int64_t total) { bar.update(done, total, "tokens"); };
    const bool color = isatty(STDERR_FILENO) != 0 && std::getenv("NO_COLOR") == nullptr;
    bool thinking = false;
    const auto end_thought = [&] {
      if (thinking) std::fputs(color ? "\033[0m\n" : "\n", stderr);
      thinking = false;
    };
    OpenLine line;
    ChatReply reply;
    try {
      reply =
          engine_.chat(messages_, settings_, options, [&](const std::string& reasoning, const std::string& content) {
            if (!reasoning.empty() && !o_.quiet) {
              if (color && !thinking) say("\033[2m");
              thinking = true;
              say("{}", reasoning);
            }
            if (content.empty()) return;
            end_thought();
            if (!o_.json) line.print(content);
          });
    } catch (...) {
      end_thought();
      throw;
    }
    end_thought();
    if (!o_.json && !reply.content.empty()) line.end();
    std::fflush(stdout);
    last_ = reply.generation;
    if (reply.generation.finish_reason == "length") say_cut(reply);
    std::vector<ChatToolCall> calls = reply.calls;
    for (size_t i = 0; i < calls.size(); ++i)
      if (calls[i].id.empty()) calls[i].id = fmt::format("call_{}_{}", messages_.size(), i + 1);
    messages_.push_back({.role = "assistant", .content = reply.content, .reasoning = reply.reasoning, .calls = calls});
    ChatReply out = reply;
    out.calls = calls;
    return out;
  }

  // An answer that ends in the middle looks like one that does not; with --quiet only one of which nothing is to be
  // seen is worth a word.
  void say_cut(const ChatReply& reply) const {
    const bool nothing = reply.content.empty() && reply.calls.empty();
    if (o_.quiet && !nothing) return;
    const int64_t all = reply.generation.prompt_tokens + static_cast<int64_t>(reply.generation.tokens.size());
    say("note: the answer was cut behind {} tokens{}; {}\n", reply.generation.tokens.size(),
        nothing ? ", before it said anything" : "",
        all >= engine_.max_length() ? "the context is full (a larger -c makes room)" : "a larger -n makes room");
  }

  void command(const std::string& line) {
    const size_t space = line.find(' ');
    const std::string name = line.substr(0, space), rest = space == std::string::npos ? "" : line.substr(space + 1);
    if (name == "/help")
      say("{}", kHelp);
    else if (name == "/reset")
      reset();
    else if (name == "/system")
      messages_ = {{.role = "system", .content = rest}};
    else if (name == "/think")
      set_thinking(rest);
    else if (name == "/save")
      save(rest);
    else if (name == "/load")
      load(rest);
    else if (name == "/stats")
      stats();
    else
      say("{}: unknown; /help lists the commands\n", name);
  }

  void set_thinking(const std::string& value) {
    if (value != "on" && value != "off") throw std::runtime_error("/think: '" + value + "', accepted: on, off");
    settings_.thinking = value == "on";
  }

  // The text is what counts, the state only spares computing it again: it lies in a file of its own, and its tokens say
  // what it belongs to.
  static std::string state_file(const std::string& path) { return path + ".state"; }

  void save(const std::string& path) const {
    if (path.empty()) throw std::runtime_error("/save: no file named");
    if (messages_.empty()) throw std::runtime_error("/save: nothing has been said; '" + path + "' stays as it is");
    std::string lines;
    for (const ChatMessage& m : messages_) lines += message_line(m) + "\n";
    write_whole_file(path, lines);
    const std::vector<char> state = engine_.save_prefix(engine_.chat_prompt(messages_, settings_));
    std::error_code none;
    if (!state.empty())
      write_whole_file(state_file(path), state);
    else
      std::filesystem::remove(state_file(path), none);  // of another conversation
    if (!o_.quiet)
      say("{} messages, {}\n", messages_.size(),
          state.empty() ? "too few for a state" : human_bytes(static_cast<double>(state.size())) + " of state");
  }

  // No device or pipe, which may have no end.
  static std::string read_regular(const std::string& path) {
    const std::vector<char> bytes = read_whole_file(path);
    return {bytes.begin(), bytes.end()};
  }

  // Nothing changes unless all of it can be read.
  void load(const std::string& path) {
    if (path.empty()) throw std::runtime_error("/load: no file named");
    std::vector<ChatMessage> messages = Engine::read_messages(read_regular(path), path);
    if (messages.empty()) throw std::runtime_error("/load: '" + path + "' holds no message");
    const std::vector<int32_t> prompt = engine_.chat_prompt(messages, settings_);
    const std::string state = state_file(path);
    LoadedPrefix loaded;
    std::string unfit;
    if (o_.load.prefix_snapshots > 0 && std::filesystem::exists(state)) {
      try {
        loaded = engine_.load_prefix(read_whole_file(state), state, &prompt);
      } catch (const std::exception& e) {
        unfit = e.what();  // the text is what counts
      }
    }
    messages_ = std::move(messages);
    if (!o_.quiet) say("{} messages, {} tokens of state\n", messages_.size(), loaded.kept);
    // Of the state even with --quiet: one of the two files may be damaged.
    if (!unfit.empty())
      say("note: {}; the conversation is loaded, and its next turn computes all of it again\n", unfit);
    if (!o_.system.empty() && !o_.quiet &&
        (messages_.front().role != "system" || messages_.front().content != o_.system))
      say("note: --system: the loaded conversation has {}; /reset begins a new one with it\n",
          messages_.front().role == "system" ? "a system message of its own" : "no system message");
    if (loaded.foreign)
      say("note: {}: the state does not belong to this text: 0 of {} tokens kept\n", state, loaded.tokens);
    else if (!loaded.computed_otherwise.empty() && !o_.quiet)
      say("note: {}: {}; last bits may differ from an answer computed here alone\n", state, loaded.computed_otherwise);
  }

  void stats() const {
    const auto rate = [](size_t n, double s) { return s > 0 ? static_cast<double>(n) / s : 0; };
    if (!last_) {
      say("no answer yet\n");
      return;
    }
    const Generation& g = *last_;
    say("prompt {} tokens in {:.2f} s, {} of them from earlier turns ({}), answer {} tokens, {:.1f} tokens/s, ended by "
        "{}\n",
        g.prompt_tokens, g.prefill_seconds, g.cached_tokens, g.cache_limit, g.tokens.size(),
        rate(g.tokens.size(), g.decode_seconds), g.finish_reason);
  }

  static std::string call_line(const ChatToolCall& call) {
    return fmt::format("{{\"name\":{},\"arguments\":{}}}", quoted(call.name), call.arguments);
  }

  static void print_json(const ChatReply& r) {
    fmt::print("{{\"content\":{},\"reasoning\":{},\"tool_calls\":[", quoted(r.content), quoted(r.reasoning));
    for (size_t i = 0; i < r.calls.size(); ++i) fmt::print("{}{}", i == 0 ? "" : ",", call_line(r.calls[i]));
    fmt::print("],\"finish_reason\":\"{}\",\"prompt_tokens\":{},\"completion_tokens\":{}}}\n",
               r.generation.finish_reason, r.generation.prompt_tokens, r.generation.tokens.size());
  }

  const ChatFlags& o_;
  Engine engine_;
  ChatSettings settings_;
  bool person_ = false;  // whose Ctrl-C goes to LineInput
  std::vector<ChatMessage> messages_;
  std::optional<Generation> last_;
};

}  // namespace

int chat(const ChatFlags& o) {
  if (o.json && !o.prompt) throw UsageError("--json: goes with --prompt");
  check_load(o.load);
  if (o.prompt && o.prompt->empty()) throw UsageError("--prompt: empty");
  check_text(o.prompt.value_or(""), "--prompt");
  check_text(o.system, "--system");
  check_sampling(o.sampling, o.load.model);
  ChatSettings settings{.thinking = !o.no_think, .effort = o.effort, .tools_json = {}};
  if (!o.tools.empty()) settings.tools_json = read_text(o.tools);
  check_options(settings);
  Session session(o, std::move(settings));
  return o.prompt ? session.once(*o.prompt) : session.interactive();
}

}  // namespace kdelta::cli
