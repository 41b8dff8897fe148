// Progress on a terminal, memory plans and numbers for people. Everything here writes to stderr.
#pragma once

#include <fmt/core.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "frontends/cli/usage.h"
#include "kdelta/api/engine.h"

namespace kdelta::cli {

// Gives closed standard streams something to hold on to, or the next file opened would get their number: reading finds
// the end, diagnostics vanish, and writing a result fails as it must.
void open_standard_streams();

// Text for people. What stderr does not take is lost, and nothing else is.
template <class... Values>
void say(fmt::format_string<Values...> text, Values&&... values) {
  const std::string line = fmt::format(text, std::forward<Values>(values)...);
  std::fwrite(line.data(), 1, line.size(), stderr);
}

// A one-line bar, redrawn at most ten times a second; silent when stderr is no terminal, and when asked. Erases itself.
class ProgressBar {
 public:
  explicit ProgressBar(std::string label, bool quiet = false);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  void update(int64_t done, int64_t total, const char* unit);

 private:
  std::string label_;
  bool terminal_;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point start_, last_;
};

// "12.3 MB"
std::string human_bytes(double bytes);
// Loads; `bar` shows progress on a terminal, `whole` also prints build, device, memory plan and notes.
enum class LoadReport : uint8_t { silent, bar, whole };
Engine load_engine(LoadOptions options, LoadReport report, const LengthFlags& flags = {});
// check_options(), and that the model itself goes as far as --max-model-len. Throws UsageError or Error.
void check_load(const LoadOptions& options);

// "1,2,3" or white space between, or the path of a file with such text. Throws UsageError naming the flag and the
// offending word.
std::vector<int32_t> parse_ids(const char* flag, const std::string& list_or_file);
// A whole file, or standard input for "-".
std::string read_text(const std::string& path);
// The same; throws UsageError when it is empty or no UTF-8.
std::string read_whole_text(const std::string& path);
// The same without the newline that ends it (one, of either kind): echo and editors put it there, nobody meant it.
std::string read_prompt(const std::string& path);
std::string without_last_newline(std::string text);
// How messages name what was read from `path`.
std::string name_of_text(const std::string& path);

}  // namespace kdelta::cli
