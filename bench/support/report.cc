#include "bench/support/report.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "bench/support/machine.h"

namespace kdelta::bench {
namespace {

using Json = nlohmann::ordered_json;

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  const size_t n = v.size();
  return n % 2 == 1 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

double round_to(double x, double unit) {
  return std::round(x / unit) * unit;
}

}  // namespace

// median: of the repetitions' mean times. percent: work done in the median time against the best roof of this run.
// percent_paired: median over repetitions of the same against the roof sampled just before, which other load lowers
// alike.
void Report::ReportRuns(const std::vector<Run>& runs) {
  std::vector<double> seconds, paired;
  std::string name;
  for (const Run& run : runs) {
    if (run.run_type != Run::RT_Iteration || run.error_occurred) continue;
    name = run.run_name.function_name;
    seconds.push_back(run.real_accumulated_time / static_cast<double>(run.iterations));
  }
  if (seconds.empty()) return;
  const Case& c = session_.of(name);
  const double work = c.roof.is_bandwidth() ? c.cost.bytes : c.cost.flops;
  size_t i = 0;
  for (const Run& run : runs)
    if (run.run_type == Run::RT_Iteration && !run.error_occurred)
      paired.push_back(100 * work / seconds[i++] / run.counters.at("roof").value);
  const double mid = median(seconds), best = *std::min_element(seconds.begin(), seconds.end());
  const double spread = 100 * (*std::max_element(seconds.begin(), seconds.end()) - best) / mid;
  const double roof = session_.roofs().best(c.roof);
  std::printf(
      "%-14s %-12s %-44s %11.1f us  best %11.1f  spread %5.1f %%  %8.2f GB/s %9.2f GFLOP/s  %5.1f %% (paired %5.1f) of "
      "%s %.1f G/s\n",
      c.op.c_str(), c.variant.c_str(), c.shape.c_str(), mid * 1e6, best * 1e6, spread, c.cost.bytes / mid * 1e-9,
      c.cost.flops / mid * 1e-9, 100 * work / mid / roof, median(paired), to_string(c.roof.kind), roof * 1e-9);
  std::fflush(stdout);
  results_.push_back({{"op", c.op},
                      {"variant", c.variant},
                      {"shape", c.shape},
                      {"repetitions", seconds.size()},
                      {"median_us", round_to(mid * 1e6, 0.01)},
                      {"best_us", round_to(best * 1e6, 0.01)},
                      {"spread_percent", round_to(spread, 0.1)},
                      {"bytes", c.cost.bytes},
                      {"flops", c.cost.flops},
                      {"roof", to_string(c.roof.kind)},
                      {"roof_footprint", c.roof.is_bandwidth() ? c.roof.footprint : 0},
                      {"roof_per_s", round_to(roof, 1e6)},
                      {"percent_of_roof", round_to(100 * work / mid / roof, 0.1)},
                      {"best_percent_of_roof", round_to(100 * work / best / roof, 0.1)},
                      {"paired_percent_of_roof", round_to(median(paired), 0.1)}});
}

void Report::Finalize() {}

std::string write_results(Session& session, const Report& report, const std::string& folder, const std::string& topic,
                          const std::string& command) {
  const Machine m = this_machine();
  Json roofs = Json::array();
  for (const auto& [roof, best] : session.roofs().all())
    roofs.push_back({{"kind", to_string(roof.kind)},
                     {"footprint", roof.is_bandwidth() ? roof.footprint : 0},
                     {"per_s", round_to(best, 1e6)},
                     {"how", session.roofs().how(roof)}});
  const Json all = {{"machine", {{"cpu", m.cpu}, {"isa", m.isa}, {"cpus", m.cpus}}},
                    {"commit", m.commit},
                    {"date", m.date},
                    {"threads", session.exec().threads->size()},
                    {"command", command},
                    {"roofs", roofs},
                    {"results", report.results()}};
  const std::filesystem::path dir = std::filesystem::path(folder) / m.folder;
  std::filesystem::create_directories(dir);
  const std::filesystem::path path = dir / (m.date + "-" + topic + ".json");
  std::ofstream(path) << all.dump(1) << "\n";
  return path.string();
}

}  // namespace kdelta::bench
