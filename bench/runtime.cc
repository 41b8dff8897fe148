// runtime_bench [--topic=NAME [--results=FOLDER]] [MODEL [DRAFT]]: what the runtime itself costs and saves, in CPU time
// of one thread, on tiny-k3 by default. One JSON line per measurement, the median of several and their spread (max /
// min);
// --topic also writes the results file.
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <new>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "bench/support/machine.h"
#include "kdelta/core/error.h"
#include "kdelta/model/load.h"
#include "kdelta/runtime/engine.h"

namespace {
std::atomic<int64_t> allocations{0};
}

// The pair below is consistent with itself; g++ 12 sees only that free() meets a pointer from operator new.
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"
void* operator new(size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* p = std::malloc(bytes == 0 ? 1 : bytes)) return p;
  throw std::bad_alloc();
}
void operator delete(void* p) noexcept {
  std::free(p);
}
void operator delete(void* p, size_t) noexcept {
  std::free(p);
}

namespace kdelta {
namespace {

using Json = nlohmann::ordered_json;
using runtime::Engine;
using runtime::EngineConfig;

double cpu_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

struct Measured {
  double median = 0, spread = 0;
};

Measured measure(int times, const std::function<double()>& once) {
  std::vector<double> all;
  for (int i = 0; i < times; ++i) all.push_back(once());
  std::sort(all.begin(), all.end());
  return {all[all.size() / 2], all.back() / all.front()};
}

Json measurements = Json::array();

void print(const std::string& what, const Measured& m, const char* unit, const Json& more = Json::object()) {
  Json row{{"what", what}, {"median", m.median}, {"unit", unit}, {"spread", m.spread}};
  row.update(more);
  std::printf("%s\n", row.dump().c_str());
  std::fflush(stdout);
  measurements.push_back(std::move(row));
}

std::vector<int32_t> prompt(int64_t length, uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::vector<int32_t> ids(static_cast<size_t>(length));
  for (int32_t& id : ids) id = static_cast<int32_t>(rng() % 2000);
  return ids;
}

EngineConfig config(int64_t sequences) {
  EngineConfig c;
  c.options.threads = 1;
  c.max_sequences = sequences;
  c.max_length = 2560;
  c.token_budget = std::max<int64_t>(512, sequences);
  return c;
}

runtime::RequestOptions greedy(int64_t tokens) {
  runtime::RequestOptions o;
  o.sampling.temperature = 0;
  o.max_tokens = tokens;
  return o;
}

double run(Engine& engine) {
  const double begin = cpu_seconds();
  while (engine.step([](const runtime::TokenEvent&) {})) {
  }
  return cpu_seconds() - begin;
}

// Plan and batch of a step of decoding sequences of 2,000 tokens, without the model.
double plan_and_build(int64_t sequences, int64_t columns) {
  constexpr int64_t kTokens = 2000, kPages = 40;
  const runtime::SchedulerConfig sc{.max_sequences = sequences, .token_budget = 8192, .columns = columns};
  std::vector<runtime::Request> requests(static_cast<size_t>(sequences));
  std::vector<runtime::Candidate> candidates;
  int32_t slot = 1, page = 1;
  for (auto& r : requests) {
    r.prompt = prompt(kTokens, 1);
    r.output.assign(static_cast<size_t>(columns), 5);
    r.drafts = columns - 1;
    r.computed = kTokens;
    for (int64_t i = 0; i < columns; ++i) r.slots.push_back(slot++);
    for (int64_t i = 0; i < 32; ++i) r.pages.push_back(page++);
    candidates.push_back({.prompt = kTokens,
                          .known = kTokens + 1,
                          .computed = kTokens,
                          .running = true,
                          .pages = 32,
                          .freed_pages = 32,
                          .drafts = columns - 1});
  }
  runtime::BatchBuilder builder(
      Device{},
      {.tokens = 8192, .sequences = sequences, .columns = columns, .pages = kPages, .logit_rows = sequences * columns});
  runtime::Plan plan;
  std::vector<runtime::BatchRow> rows;
  rows.reserve(static_cast<size_t>(sequences));
  const Measured m = measure(201, [&] {
    const double begin = cpu_seconds();
    plan_step(sc, candidates, 0, 100, &plan);
    rows.clear();
    for (const auto& row : plan.rows)
      rows.push_back({.request = &requests[static_cast<size_t>(row.candidate)],
                      .tokens = row.tokens,
                      .drafts = row.drafts,
                      .prefill = row.prefill});
    builder.build(rows, false);
    return (cpu_seconds() - begin) * 1e6;
  });
  print("plan and build " + std::to_string(sequences) + " sequences, " + std::to_string(columns - 1) + " drafts", m,
        "us");
  return m.median;
}

void concurrency(const Model& model) {
  double alone = 0;
  for (const int64_t n : {1, 4, 16, 64}) {
    Engine engine(model, config(n));
    const Measured m = measure(5, [&] {
      for (int64_t i = 0; i < n; ++i) engine.submit(prompt(32, static_cast<uint64_t>(i)), greedy(128));
      return static_cast<double>(n * 128) / run(engine);
    });
    if (n == 1) alone = m.median;
    print("concurrency " + std::to_string(n), m, "tokens/s", {{"against_one", m.median / alone}});
    // What could be hidden behind the model if the next step were planned while one runs.
    const double step_us = 1e6 * static_cast<double>(n) / m.median, host_us = plan_and_build(n, 1);
    print("share of planning and building in a step of " + std::to_string(n), {100 * host_us / step_us, m.spread}, "%");
  }
}

// Steps of sequences that decode, once all are under way.
void allocations_per_step(const Model& model) {
  constexpr int64_t kSequences = 16, kSteps = 100;
  Engine engine(model, config(kSequences));
  for (int64_t i = 0; i < kSequences; ++i) engine.submit(prompt(32, static_cast<uint64_t>(i)), greedy(400));
  const std::function<void(const runtime::TokenEvent&)> ignore = [](const runtime::TokenEvent&) {};
  for (int i = 0; i < 20; ++i) engine.step(ignore);
  const int64_t before = allocations;
  for (int64_t i = 0; i < kSteps; ++i) engine.step(ignore);
  const double each = static_cast<double>(allocations - before) / static_cast<double>(kSteps);
  print("allocations of a step of 16 decoding sequences", {each, 1}, "");
}

void prefix(const Model& model) {
  EngineConfig c = config(1);
  c.prefix_snapshots = 32;
  Engine engine(model, c);
  const auto once = [&](const std::vector<int32_t>& ids) {
    engine.submit(ids, greedy(1));
    return run(engine) * 1e3;
  };
  uint64_t seed = 100;
  const Measured cold = measure(7, [&] { return once(prompt(2049, ++seed)); });
  const auto ids = prompt(2049, 7);
  once(ids);
  const Measured hit = measure(21, [&] { return once(ids); });
  print("prompt of 2,049 tokens, cold", cold, "ms");
  print("the same behind a prefix of 2,048", hit, "ms");
  print("a prefix hit of 2,048 tokens, of its prefill", {100 * hit.median / cold.median, hit.spread}, "%");
}

void drafts(const Model& model, const Model& draft) {
  double plain = 0;
  const auto text = prompt(40, 3);
  for (const std::string kind : {"none", "lookup", "model"}) {
    EngineConfig c = config(1);
    c.drafts = kind == "none" ? 0 : 4;
    std::unique_ptr<runtime::Drafter> drafter;
    if (kind == "model")
      drafter = runtime::make_model_drafter(draft, {.max_sequences = 1, .max_length = c.max_length, .drafts = 4},
                                            model.config().vocab_size);
    Engine engine(model, c, std::move(drafter));
    const Measured m = measure(5, [&] {
      engine.submit(text, greedy(300));
      return 300 / run(engine);
    });
    if (plain == 0) plain = m.median;
    const runtime::EngineStats& stats = engine.stats();
    print("drafts: " + kind, m, "tokens/s",
          {{"against_none", m.median / plain},
           {"kept_per_step", static_cast<double>(stats.accepted_drafts) / static_cast<double>(stats.steps)},
           {"slot_bytes", engine.memory().slots}});
  }
}

struct Flags {
  std::string topic, results = "bench/results", command = "runtime_bench";
  std::vector<std::string> models = {"models/tiny-k3", "models/tiny-k3-draft"};
};

Flags parse(int argc, char** argv) {
  Flags f;
  size_t given = 0;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    f.command += " " + arg;
    if (arg.starts_with("--topic="))
      f.topic = arg.substr(8);
    else if (arg.starts_with("--results="))
      f.results = arg.substr(10);
    else if (given < 2 && !arg.starts_with("-"))
      f.models[given++] = arg;
    else
      fail(ErrorCode::invalid_argument, "'", arg, "', accepted: --topic=NAME, --results=FOLDER, MODEL, DRAFT");
  }
  return f;
}

void write(const Flags& f) {
  const bench::Machine m = bench::this_machine();
  const Json all{{"machine", {{"cpu", m.cpu}, {"isa", m.isa}, {"cpus", m.cpus}}},
                 {"commit", m.commit},
                 {"date", m.date},
                 {"threads", 1},
                 {"command", f.command},
                 {"measurements", measurements}};
  const std::filesystem::path folder = std::filesystem::path(f.results) / m.folder;
  std::filesystem::create_directories(folder);
  const std::filesystem::path path = folder / (m.date + "-" + f.topic + ".json");
  std::ofstream(path) << all.dump(1) << "\n";
  std::printf("written: %s\n", path.c_str());
}

int run_all(const Flags& f) {
  const LoadedModel model = load_model(f.models[0], LoadFormat::checkpoint);
  const LoadedModel draft = load_model(f.models[1], LoadFormat::checkpoint);
  plan_and_build(256, 1);
  plan_and_build(256, 8);
  allocations_per_step(*model.model);
  prefix(*model.model);
  concurrency(*model.model);
  drafts(*model.model, *draft.model);
  if (!f.topic.empty()) write(f);
  return 0;
}

}  // namespace
}  // namespace kdelta

int main(int argc, char** argv) {
  try {
    return kdelta::run_all(kdelta::parse(argc, argv));
  } catch (const std::exception& e) {
    std::fprintf(stderr, "runtime_bench: %s\n", e.what());
    return 1;
  }
}
