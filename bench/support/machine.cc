#include "bench/support/machine.h"

#include <cctype>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <map>
#include <memory>

#include "kdelta/core/isa.h"
#include "kdelta/core/threads.h"

namespace kdelta::bench {
namespace {

std::string cpu_field(const std::string& name) {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const std::string key = line.substr(0, line.find_last_not_of(" \t", colon - 1) + 1);
    if (key == name) return line.substr(std::min(line.size(), colon + 2));
  }
  return "unknown";
}

std::string output_of(const char* command) {
  std::string out;
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command, "r"), pclose);
  char chunk[256];
  while (pipe != nullptr && fgets(chunk, sizeof(chunk), pipe.get()) != nullptr) out += chunk;
  while (!out.empty() && std::isspace(static_cast<unsigned char>(out.back())) != 0) out.pop_back();
  return out;
}

std::string slug(const std::string& text) {
  std::string out;
  for (char c : text) {
    const auto u = static_cast<unsigned char>(c);
    if (std::isalnum(u) != 0)
      out += static_cast<char>(std::tolower(u));
    else if (!out.empty() && out.back() != '-')
      out += '-';
  }
  while (!out.empty() && out.back() == '-') out.pop_back();
  return out;
}

}  // namespace

Machine this_machine() {
  Machine m;
  const std::string name = cpu_field("model name"), family = cpu_field("cpu family"), model = cpu_field("model");
  m.cpu = name + ", family " + family + " model " + model;
  m.folder = slug(name) + "-f" + family + "m" + model;
  m.isa = to_string(detect_isa());
  m.cpus = available_cpus();
  m.commit = output_of("git rev-parse --short=12 HEAD 2>/dev/null");
  if (m.commit.empty())
    m.commit = "unknown";
  else if (!output_of("git status --porcelain -uno 2>/dev/null").empty())
    m.commit += "+changes";
  const std::time_t now = std::time(nullptr);
  char date[16];
  std::strftime(date, sizeof(date), "%Y-%m-%d", std::gmtime(&now));
  m.date = date;
  return m;
}

}  // namespace kdelta::bench
