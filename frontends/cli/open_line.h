// Text on standard output that comes piece by piece. What goes wrong in the middle of a line is told on the next one.
#pragma once

#include <cstdio>
#include <string>

namespace kdelta::cli {

class OpenLine {
 public:
  OpenLine() = default;
  ~OpenLine() {
    if (open_) end();
  }
  OpenLine(const OpenLine&) = delete;
  OpenLine& operator=(const OpenLine&) = delete;
  void print(const std::string& text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
    open_ = open_ || !text.empty();
  }
  void end() {
    std::fputc('\n', stdout);
    std::fflush(stdout);
    open_ = false;
  }

 private:
  bool open_ = false;
};

}  // namespace kdelta::cli
