// Runs the built program as a person would.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace kdelta::test {

struct Result {
  int status = -1;
  std::string out, err;
};

// With standard input from `in` (a shell redirection), capturing both streams; 128 + N for an end by signal N.
// `before`: assignments of variables, or shell commands.
inline Result run_program(const std::string& arguments, const std::string& in = "</dev/null",
                          const std::string& before = "") {
  const std::filesystem::path err = std::filesystem::temp_directory_path() / ("kdelta_cli_" + std::to_string(getpid()));
  const std::string command = before + " " + KDELTA_PROGRAM + " " + arguments + " 2>" + err.string() + " " + in;
  Result r;
  FILE* pipe = popen(command.c_str(), "r");
  char buffer[4096];
  for (size_t n; (n = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) r.out.append(buffer, n);
  const int status = pclose(pipe);
  r.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  std::ifstream file(err);
  r.err.assign(std::istreambuf_iterator<char>(file), {});
  std::filesystem::remove(err);
  return r;
}

}  // namespace kdelta::test
