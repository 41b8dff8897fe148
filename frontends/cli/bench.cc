// kdelta bench: rows in the manner of llama-bench, pp = prompt processing, tg = token generation, in tokens per second.
// With --concurrency also against one at a time and against what the machine can do.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "frontends/cli/commands.h"
#include "frontends/cli/json_text.h"
#include "frontends/cli/terminal.h"
#include "frontends/cli/usage.h"

namespace kdelta::cli {
namespace {

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  const size_t n = v.size();
  return n % 2 == 1 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

struct Row {
  std::string test;
  int64_t tokens = 0, depth = 0;
  std::vector<double> rates;
  int64_t concurrency = 0;  // the rest is for rows that have one, repetition by repetition
  std::vector<double> against_one = {}, roof_percent = {};

  double mean() const {
    double sum = 0;
    for (double r : rates) sum += r;
    return sum / static_cast<double>(rates.size());
  }
  double deviation() const {
    if (rates.size() < 2) return 0;
    double sum = 0;
    for (double r : rates) sum += (r - mean()) * (r - mean());
    return std::sqrt(sum / static_cast<double>(rates.size() - 1));
  }
  // Nothing where the roof is not known.
  std::string of_roof(fmt::format_string<double> format) const {
    return roof_percent.empty() ? "" : fmt::format(format, median(roof_percent));
  }
  // Range over median.
  double spread_percent() const {
    const auto [least, most] = std::minmax_element(rates.begin(), rates.end());
    return 100 * (*most - *least) / median(rates);
  }
};

// What tables of other flags differ in: gate and state as they were chosen, drafts, forced kernels. The instruction set
// is in the summary of the device.
std::string settings_of(const LoadOptions& o, const Engine& engine) {
  std::string out = engine.precision();
  out.erase(0, out.find(", ") + 2);  // the dtype has a column
  if (o.drafts > 0)
    out += fmt::format(", drafts {}{} as {}", o.drafts, o.draft_model.empty() ? "" : " by " + o.draft_model,
                       engine.memory().draft_states);
  if (!o.force.empty()) out += ", " + o.force;
  return out;
}

class Printer {
 public:
  Printer(const BenchOptions& o, const Engine& engine)
      : o_(o), engine_(engine), settings_(settings_of(o.load, engine)) {}

  void begin() const {
    const bool many = !o_.concurrency.empty();
    if (o_.output == "md")
      fmt::print(
          "| model | size | dtype | threads | settings | test | t/s |{}\n"
          "| --- | ---: | --- | ---: | --- | --- | ---: |{}\n",
          many ? " of one | of roof |" : "", many ? " ---: | ---: |" : "");
    if (o_.output == "csv")
      fmt::print("model,size_bytes,dtype,device,settings,test,tokens,depth,repetitions,mean_ts,stddev_ts{}\n",
                 many ? ",median_ts,spread_percent,against_one,percent_of_roof" : "");
    if (o_.output == "json") fmt::print("[");
  }

  void row(const Row& r, bool first) const {
    const auto size = engine_.info().bytes;
    const std::string name = r.depth > 0 ? fmt::format("{} @ d{}", r.test, r.depth) : r.test;
    if (o_.output == "md") {
      fmt::print("| {} | {} | {} | {} | {} | {} | {:.2f} ± {:.2f} |", engine_.info().kind,
                 human_bytes(static_cast<double>(size)), o_.load.dtype, engine_.device_summary(), settings_, name,
                 r.mean(), r.deviation());
      if (r.concurrency > 0)
        fmt::print(" {} | {} |", r.against_one.empty() ? "" : fmt::format("{:.2f}", median(r.against_one)),
                   r.of_roof("{:.0f} %"));
      fmt::print("\n");
    } else if (o_.output == "csv") {
      fmt::print("{},{},{},\"{}\",\"{}\",{},{},{},{},{:.4f},{:.4f}", engine_.info().kind, size, o_.load.dtype,
                 engine_.device_summary(), settings_, r.test, r.tokens, r.depth, r.rates.size(), r.mean(),
                 r.deviation());
      if (r.concurrency > 0)
        fmt::print(",{:.4f},{:.1f},{},{}", median(r.rates), r.spread_percent(),
                   r.against_one.empty() ? "" : fmt::format("{:.3f}", median(r.against_one)), r.of_roof("{:.1f}"));
      fmt::print("\n");
    } else {
      if (o_.output == "json" && !first) fmt::print(",\n ");
      fmt::print(
          "{{\"build\":{},\"model\":{},\"size_bytes\":{},\"dtype\":\"{}\",\"device\":{},\"settings\":{},\"test\":\"{}"
          "\",\"tokens\":{},"
          "\"depth\":{},\"samples_ts\":[",
          quoted(version()), quoted(engine_.info().kind), size, o_.load.dtype, quoted(engine_.device_summary()),
          quoted(settings_), r.test, r.tokens, r.depth);
      for (size_t i = 0; i < r.rates.size(); ++i) fmt::print("{}{:.4f}", i == 0 ? "" : ",", r.rates[i]);
      fmt::print("],\"mean_ts\":{:.4f},\"stddev_ts\":{:.4f}", r.mean(), r.deviation());
      if (r.concurrency > 0) {
        fmt::print(",\"concurrency\":{},\"median_ts\":{:.4f},\"spread_percent\":{:.1f}", r.concurrency, median(r.rates),
                   r.spread_percent());
        if (!r.roof_percent.empty()) fmt::print(",\"percent_of_roof\":{}", r.of_roof("{:.1f}"));
        if (!r.against_one.empty()) fmt::print(",\"against_one\":{:.3f}", median(r.against_one));
      }
      fmt::print("}}");
      if (o_.output == "jsonl") fmt::print("\n");
    }
    std::fflush(stdout);
  }

  void end() const {
    if (o_.output == "json") fmt::print("]\n");
  }

 private:
  const BenchOptions& o_;
  const Engine& engine_;
  std::string settings_;
};

// A repetition runs every concurrency once, so that they see the same machine: what they have of one at a time and of
// the roof is taken within it.
std::vector<Row> measure_concurrency(const BenchOptions& o, Engine& engine) {
  std::vector<Row> rows;
  const int64_t prompt = o.prompt.front(), generate = o.generate.front();
  for (int64_t c : o.concurrency)
    rows.push_back({.test = fmt::format("c{} pp{}+tg{}", c, prompt, generate),
                    .tokens = c * (prompt + generate),
                    .rates = {},
                    .concurrency = c});
  for (int i = 0; i < o.repetitions; ++i) {
    double one = 0;
    for (Row& row : rows) {
      if (interrupted) break;
      const ConcurrentTimes t = engine.bench_concurrent(row.concurrency, prompt, generate);
      row.rates.push_back(static_cast<double>(row.concurrency * generate) / t.seconds);
      if (t.roof_seconds > 0) row.roof_percent.push_back(100 * t.roof_seconds / t.seconds);
      if (row.concurrency == 1) one = row.rates.back();
      if (one > 0) row.against_one.push_back(row.rates.back() / one);
    }
  }
  std::erase_if(rows, [](const Row& r) { return r.rates.empty(); });
  return rows;
}

// What would be left out without a word is refused.
void check_lists(const BenchOptions& o) {
  const auto none = [](const std::vector<int64_t>& list) {
    return std::all_of(list.begin(), list.end(), [](int64_t n) { return n == 0; });
  };
  if (o.concurrency.empty()) {
    if (none(o.prompt) && none(o.generate)) throw UsageError("--n-prompt and --n-gen: 0, nothing to measure");
    return;
  }
  for (const auto& [flag, list] : {std::pair("--n-prompt", &o.prompt), std::pair("--n-gen", &o.generate)})
    if (list->size() != 1 || list->front() == 0)
      throw UsageError(fmt::format("{}: {}, expected one length above 0 beside --concurrency", flag,
                                   list->size() == 1 ? "0" : fmt::format("{} values", list->size())));
  if (!none(o.depth)) throw UsageError("--n-depth: goes without --concurrency");
}

}  // namespace

int bench(const BenchOptions& o) {
  check_lists(o);
  LoadOptions load = o.load;
  check_load(load);
  for (int64_t d : o.depth)
    if (d % load.token_budget != 0)
      throw UsageError(
          fmt::format("--n-depth: {}, expected a multiple of --max-num-batched-tokens {}", d, load.token_budget));
  int64_t longest = 66;  // the warm-up's
  for (int64_t d : o.depth)
    for (const auto* list : {&o.prompt, &o.generate})
      for (int64_t n : *list) longest = std::max(longest, d + n + 2);
  LengthFlags flags{.max_sequences = "--concurrency"};
  if (longest > load.max_length) flags.max_length = "the longest of --n-prompt, --n-gen and --n-depth";
  load.max_length = std::max(load.max_length, longest);
  for (int64_t c : o.concurrency) load.max_sequences = std::max(load.max_sequences, c);
  load.token_budget = std::max(load.token_budget, load.max_sequences);
  Engine engine = load_engine(load, o.quiet ? LoadReport::silent : LoadReport::bar, flags);
  for (const std::string& note : engine.info().notes)
    if (note.starts_with("KDA gate:") && !o.quiet) say("note: {}\n", note);  // the row that decided --kda-gate auto
  const Printer printer(o, engine);
  printer.begin();
  if (o.warmup) engine.bench(64, 2, 0);
  bool first = true;
  const auto measure = [&](const char* kind, int64_t n, int64_t depth) {
    if (n <= 0 || interrupted) return;
    const bool prompt = std::string(kind) == "pp";
    Row row{.test = kind + std::to_string(n), .tokens = n, .depth = depth, .rates = {}};
    for (int i = 0; i < o.repetitions && !interrupted; ++i) {
      const BenchTimes t = prompt ? engine.bench(n, 0, depth) : engine.bench(1, n, depth);
      row.rates.push_back(static_cast<double>(n) / (prompt ? t.prefill_seconds : t.decode_seconds));
    }
    if (!row.rates.empty()) printer.row(row, first);
    first = false;
  };
  for (const Row& row : measure_concurrency(o, engine)) {
    printer.row(row, first);
    first = false;
  }
  for (int64_t d : o.depth) {
    if (!o.concurrency.empty()) break;
    for (int64_t n : o.prompt) measure("pp", n, d);
    for (int64_t n : o.generate) measure("tg", n, d);
  }
  printer.end();
  return interrupted ? kExitInterrupted : 0;
}

}  // namespace kdelta::cli
