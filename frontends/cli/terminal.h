// Progress on a terminal, memory plans and numbers for people. Everything here writes to stderr.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "kdelta/api/engine.h"

namespace kdelta::cli {

// A one-line bar, redrawn at most ten times a second; silent when stderr is no terminal. Erases itself.
class ProgressBar {
 public:
  explicit ProgressBar(std::string label);
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
// Loads with a progress bar and prints build, device, memory plan and notes (unless quiet).
Engine load_engine(LoadOptions options, bool quiet);

// "1,2,3" or white space between, or the path of a file with such text. Throws UsageError naming the flag and the
// offending word.
std::vector<int32_t> parse_ids(const char* flag, const std::string& list_or_file);
// A whole file, or standard input for "-".
std::string read_text(const std::string& path);

}  // namespace kdelta::cli
