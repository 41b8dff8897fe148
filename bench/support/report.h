// Turns the repetitions of a case into one line and one JSON object.
#pragma once

#include <benchmark/benchmark.h>

#include <nlohmann/json.hpp>

#include "bench/support/session.h"

namespace kdelta::bench {

class Report : public benchmark::BenchmarkReporter {
 public:
  explicit Report(Session& session) : session_(session) {}
  bool ReportContext(const Context&) override { return true; }
  void ReportRuns(const std::vector<Run>& runs) override;
  void Finalize() override;

  const nlohmann::ordered_json& results() const { return results_; }

 private:
  Session& session_;
  nlohmann::ordered_json results_ = nlohmann::ordered_json::array();
};

// {machine, roofs, results} to <folder>/<cpu>/<date>-<topic>.json; returns the path.
std::string write_results(Session& session, const Report& report, const std::string& folder, const std::string& topic,
                          const std::string& command);

}  // namespace kdelta::bench
