#include "tests/gpu/bench.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>

#include "kdelta/core/check.h"
#include "tests/gpu/roof.h"

namespace kdelta::gpu_bench {
namespace {

using Json = nlohmann::ordered_json;
constexpr Device kDevice{DeviceKind::cuda, 0};
constexpr int kReplays = 15, kWarmUps = 3;
constexpr int64_t kRoofBytes = int64_t{2} << 30;

std::vector<void (*)()>& registrations() {
  static std::vector<void (*)()> list;
  return list;
}
std::vector<Case>& cases() {
  static std::vector<Case> list;
  return list;
}

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  const size_t n = v.size();
  return n % 2 == 1 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

double round_to(double x, double unit) {
  return std::round(x / unit) * unit;
}

// Seconds of each replay, after the warm-ups.
std::vector<double> time_replays(Stream& stream, const Graph& graph) {
  std::vector<double> seconds;
  Event begin(kDevice, Event::Timing::on), end(kDevice, Event::Timing::on);
  for (int i = 0; i < kWarmUps + kReplays; ++i) {
    stream.record(begin);
    graph.launch(stream);
    stream.record(end);
    const double s = seconds_between(begin, end);
    if (i >= kWarmUps) seconds.push_back(s);
  }
  return seconds;
}

class Bench {
 public:
  Bench() : stream_(kDevice), scratch_(kDevice, int64_t{8} << 30), roof_memory_(kDevice, kRoofBytes) {
    exec_.device = kDevice;
    exec_.stream = &stream_;
    exec_.scratch = &scratch_;
    exec_.options = &options_;
    enqueue_fill(stream_, roof_memory_.data(), kRoofBytes);
  }

  // Best of three passes.
  double roof(RoofKind kind) {
    Event begin(kDevice, Event::Timing::on), end(kDevice, Event::Timing::on);
    double& best = best_[kind];
    for (int i = 0; i < 4; ++i) {
      stream_.record(begin);
      enqueue_roof(stream_, kind, roof_memory_.data(), kRoofBytes, target().multiprocessors);
      stream_.record(end);
      const double bytes = static_cast<double>(kRoofBytes) * (kind == RoofKind::update ? 2 : 1);
      best = std::max(best, bytes / seconds_between(begin, end));
    }
    return best;
  }

  void measure(const Case& c) {
    const int64_t l2 = device_properties(kDevice).l2_bytes;
    const auto footprint = c.footprint > 0 ? c.footprint : static_cast<int64_t>(c.cost.bytes);
    const auto sets = static_cast<int>(std::clamp<int64_t>((4 * l2 + footprint - 1) / footprint, 1, 2048));
    const int calls = std::max(sets, 8);
    const auto call = c.make(sets);
    const Exec ex = forced(exec_, c.op, c.variant);
    call(ex, 0);  // loads the kernels outside of the capture
    stream_.synchronize();
    const Graph graph = Graph::capture(ex, [&] {
      for (int i = 0; i < calls; ++i) call(ex, i % sets);
    });
    const double limit = roof(c.roof);
    std::vector<double> seconds = time_replays(stream_, graph);
    for (double& s : seconds) s /= calls;
    report(c, seconds, limit, sets);
  }

  Json results = Json::array();
  Json roofs() const {
    Json out = Json::array();
    for (const auto& [kind, best] : best_)
      out.push_back({{"kind", to_string(kind)}, {"footprint", kRoofBytes}, {"per_s", round_to(best, 1e6)}});
    return out;
  }

 private:
  void report(const Case& c, const std::vector<double>& seconds, double limit, int sets) {
    const double mid = median(seconds), best = *std::min_element(seconds.begin(), seconds.end());
    const double spread = 100 * (*std::max_element(seconds.begin(), seconds.end()) - best) / mid;
    const double percent = 100 * c.cost.bytes / mid / limit;
    std::printf("%-14s %-16s %-46s %9.2f us  best %9.2f  spread %4.1f %%  %8.1f GB/s  %5.1f %% of %s %.0f GB/s\n",
                c.op.c_str(), c.variant.c_str(), c.shape.c_str(), mid * 1e6, best * 1e6, spread,
                c.cost.bytes / mid * 1e-9, percent, to_string(c.roof), limit * 1e-9);
    std::fflush(stdout);
    results.push_back({{"op", c.op},
                       {"variant", c.variant},
                       {"shape", c.shape},
                       {"repetitions", seconds.size()},
                       {"sets", sets},
                       {"median_us", round_to(mid * 1e6, 0.01)},
                       {"best_us", round_to(best * 1e6, 0.01)},
                       {"spread_percent", round_to(spread, 0.1)},
                       {"bytes", c.cost.bytes},
                       {"flops", c.cost.flops},
                       {"roof", to_string(c.roof)},
                       {"roof_footprint", kRoofBytes},
                       {"roof_per_s", round_to(limit, 1e6)},
                       {"percent_of_roof", round_to(percent, 0.1)}});
  }

  Stream stream_;
  Arena scratch_;
  Buffer roof_memory_;
  Options options_;
  Exec exec_;
  std::map<RoofKind, double> best_;
};

std::string today() {
  const std::time_t now = std::time(nullptr);
  char date[16];
  std::strftime(date, sizeof(date), "%Y-%m-%d", std::gmtime(&now));
  return date;
}

}  // namespace

const char* to_string(RoofKind kind) {
  switch (kind) {
    case RoofKind::read:
      return "read";
    case RoofKind::copy:
      return "copy";
    case RoofKind::update:
      return "update";
  }
  KDELTA_UNREACHABLE("roof", kind);
}

Registration::Registration(void (*f)()) {
  registrations().push_back(f);
}
void add(Case c) {
  cases().push_back(std::move(c));
}

std::shared_ptr<Buffer> filled(int64_t bytes) {
  auto out = std::make_shared<Buffer>(kDevice, bytes);
  enqueue_fill(default_stream(kDevice), out->data(), bytes);
  default_stream(kDevice).synchronize();
  return out;
}
std::shared_ptr<Buffer> upload(const void* data, int64_t bytes) {
  auto out = std::make_shared<Buffer>(kDevice, bytes);
  copy_async(default_stream(kDevice), out->data(), data, bytes);
  default_stream(kDevice).synchronize();
  return out;
}

Exec forced(const Exec& ex, const std::string& op, const std::string& variant) {
  static std::map<std::string, Options> all;  // Exec keeps a pointer
  Options& options = all[op + ":" + variant];
  options.force[op] = variant;
  Exec out = ex;
  out.options = &options;
  return out;
}

const Target& target() {
  static const Target t = [] {
    const DeviceProperties& p = device_properties(kDevice);
    return Target{.device = DeviceKind::cuda, .cuda = p.level, .multiprocessors = p.multiprocessors};
  }();
  return t;
}

int run(const Flags& flags) {
  for (auto* f : registrations()) f();
  const std::regex wanted(flags.filter);
  Bench bench;
  int failed = 0;
  for (const Case& c : cases()) {
    const std::string name = c.op + "/" + c.variant + "/" + c.shape;
    if (!std::regex_search(name, wanted)) continue;
    try {
      bench.measure(c);
    } catch (const Error& e) {
      std::printf("%s: %s\n", name.c_str(), e.what());
      ++failed;
    }
  }
  if (flags.results.empty()) return failed == 0 ? 0 : 1;
  const DeviceProperties& p = device_properties(kDevice);
  const Json all = {{"machine",
                     {{"gpu", p.name},
                      {"multiprocessors", p.multiprocessors},
                      {"l2_bytes", p.l2_bytes},
                      {"memory_bytes", p.memory_bytes}}},
                    {"commit", flags.commit},
                    {"date", today()},
                    {"command", flags.command},
                    {"roofs", bench.roofs()},
                    {"results", bench.results}};
  std::ofstream(flags.results) << all.dump(1) << "\n";
  std::printf("written: %s\n", flags.results.c_str());
  return failed == 0 ? 0 : 1;
}

}  // namespace kdelta::gpu_bench
