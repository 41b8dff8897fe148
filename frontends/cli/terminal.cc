#include "frontends/cli/terminal.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <optional>
#include <stdexcept>

#include "frontends/cli/commands.h"
#include "frontends/cli/usage.h"

namespace kdelta::cli {

using Clock = std::chrono::steady_clock;

void open_standard_streams() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(fd, F_GETFD) != -1) continue;
    // The lowest free number is this one. Read only as stdout: its writes fail.
    if (open("/dev/null", fd == STDERR_FILENO ? O_WRONLY : O_RDONLY) < 0) return;
  }
}

ProgressBar::ProgressBar(std::string label, bool quiet)
    : label_(std::move(label)), terminal_(!quiet && isatty(STDERR_FILENO) != 0), start_(Clock::now()), last_(start_) {}

ProgressBar::~ProgressBar() {
  if (drawn_) say("\r\033[K");
}

void ProgressBar::update(int64_t done, int64_t total, const char* unit) {
  if (!terminal_ || total <= 0) return;
  const auto now = Clock::now();
  // Nothing flickers for work that is over before a person could read it.
  if (now - start_ < std::chrono::milliseconds(300) || now - last_ < std::chrono::milliseconds(100)) return;
  last_ = now;
  drawn_ = true;
  constexpr int kWidth = 30;
  const double part = static_cast<double>(done) / static_cast<double>(total);
  const double rate = static_cast<double>(done) / std::chrono::duration<double>(now - start_).count();
  const int filled = static_cast<int>(part * kWidth);
  const std::string amount =
      std::string(unit) == "B" ? human_bytes(rate) + "/s" : fmt::format("{:.0f} {}/s", rate, unit);
  say("\r\033[K{} [{}{}] {:3.0f} %  {}  {:.0f} s left", label_, std::string(static_cast<size_t>(filled), '#'),
      std::string(static_cast<size_t>(kWidth - filled), ' '), 100 * part, amount,
      rate > 0 ? static_cast<double>(total - done) / rate : 0.0);
  std::fflush(stderr);
}

std::string human_bytes(double bytes) {
  const char* units[] = {"B", "KB", "MB", "GB", "TB"};
  int u = 0;
  while (bytes >= 1000 && u < 4) bytes /= 1000, ++u;
  return u == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.1f} {}", bytes, units[u]);
}

namespace {

Engine load_with_bar(LoadOptions options, LoadReport report) {
  ProgressBar bar("loading", report == LoadReport::silent);
  options.progress = [&](int64_t done, int64_t total) {
    if (interrupted) throw std::runtime_error("interrupted");
    bar.update(done, total, "B");
  };
  std::optional<ProgressBar> recording;
  options.recording = [&](int64_t done, int64_t total) {
    if (interrupted) throw std::runtime_error("interrupted");
    if (!recording) recording.emplace("recording", report == LoadReport::silent);
    recording->update(done, total, "steps");
  };
  return Engine::load(options);
}

}  // namespace

Engine load_engine(LoadOptions options, LoadReport report, const LengthFlags& flags) {
  Engine engine = [&] {
    try {
      return load_with_bar(options, report);
    } catch (const std::bad_alloc&) {
      throw std::runtime_error(want_of_memory("cannot allocate memory", flags));
    } catch (const std::exception& e) {
      const std::string what = e.what();
      if (!what.starts_with("memory:") && !what.starts_with("cannot allocate")) throw;
      throw std::runtime_error(want_of_memory(what, flags));
    }
  }();
  if (report != LoadReport::whole) return engine;
  const MemoryReport& m = engine.memory();
  const auto size = [](int64_t bytes) { return human_bytes(static_cast<double>(bytes)); };
  say("kdelta {}\n{}: {}, {}, {}\n", version(), engine.info().kind, options.model, options.dtype,
      engine.device_summary());
  const std::string drafts = m.draft_states.empty() ? "" : " (drafts as " + m.draft_states + ")";
  const std::string weights =
      options.dummy_weights ? size(m.weights_converted) + ", random"
                            : fmt::format("{} (+ {} converted)", size(m.weights_mapped), size(m.weights_converted));
  say("memory: weights {}, {} per sequence{}, {} per token of context; planned for {} tokens: {} "
      "in all\n",
      weights, size(m.sequence_bytes), drafts, size(m.token_bytes), engine.max_length(), size(m.total()));
  for (const std::string& note : engine.info().notes) say("note: {}\n", note);
  return engine;
}

void check_load(const LoadOptions& options) {
  check_options(options);
  if (options.max_length == 0) return;
  const int64_t most = read_limits(options.model).max_positions;
  if (most > 0 && options.max_length > most)
    throw UsageError(fmt::format("--max-model-len: {}, this model's context is {}", options.max_length, most));
}

std::string name_of_text(const std::string& path) {
  return path == "-" ? "standard input" : "--file: '" + path + "'";
}

std::string without_last_newline(std::string text) {
  if (text.ends_with('\n')) text.pop_back();
  if (text.ends_with('\r')) text.pop_back();
  return text;
}

std::string read_whole_text(const std::string& path) {
  std::string text = read_text(path);
  if (text.empty()) throw UsageError(name_of_text(path) + ": empty");
  check_text(text, name_of_text(path));
  return text;
}

std::string read_prompt(const std::string& path) {
  std::string text = without_last_newline(read_whole_text(path));
  if (text.empty()) throw UsageError(name_of_text(path) + ": a newline alone");
  return text;
}

std::string read_text(const std::string& path) {
  if (path == "-") return std::string(std::istreambuf_iterator<char>(std::cin), {});
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error(path + ": cannot open");
  return std::string(std::istreambuf_iterator<char>(in), {});
}

std::vector<int32_t> parse_ids(const char* flag, const std::string& list_or_file) {
  std::error_code no_file;  // a long list is no legal path
  const std::string text =
      std::filesystem::is_regular_file(list_or_file, no_file) ? read_text(list_or_file) : list_or_file;
  std::vector<int32_t> ids;
  const char* end = text.data() + text.size();
  bool comma = true;  // no id since the last comma or the beginning; one may end the list
  for (const char* p = text.data(); p < end;) {
    if (*p == ',') {
      if (comma) throw UsageError(fmt::format("{}: a comma without a token id, after {} ids", flag, ids.size()));
      comma = true;
    }
    if (*p == ',' || *p == ' ' || *p == '\n' || *p == '\t' || *p == '\r' || *p == '[' || *p == ']') {
      ++p;
      continue;
    }
    int32_t id = 0;
    const auto r = std::from_chars(p, end, id);
    if (r.ec != std::errc() || id < 0)
      throw UsageError(fmt::format("{}: '{}' is no token id and no file", flag,
                                   std::string(p, std::min<size_t>(16, static_cast<size_t>(end - p)))));
    ids.push_back(id);
    comma = false;
    p = r.ptr;
  }
  if (ids.empty()) throw UsageError(std::string(flag) + ": no token id");
  return ids;
}

}  // namespace kdelta::cli
