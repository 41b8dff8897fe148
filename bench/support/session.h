// State of one run of kdelta_bench, owned by main.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bench/support/bench.h"

namespace kdelta::bench {

class Session {
 public:
  Session(int threads, IsaLevel isa);
  const Exec& exec() const { return exec_; }
  const Exec& exec_with(const std::string& op, const std::string& variant);
  RoofMeter& roofs() { return roofs_; }
  // Registers every case of every bench.cc with Google Benchmark under "op/variant/shape".
  void register_cases();
  const Case& of(const std::string& name) const { return cases_.at(name); }
  void add(Case c);

 private:
  struct Forced {
    Options options;
    Exec exec;
  };
  ThreadPool team_;
  Arena arena_;
  Options options_;
  Exec exec_;
  RoofMeter roofs_;
  std::map<std::string, std::unique_ptr<Forced>> forced_;
  std::map<std::string, Case> cases_;
  std::string made_name_;
  std::function<void()> made_;
};

Session*& session();

}  // namespace kdelta::bench
