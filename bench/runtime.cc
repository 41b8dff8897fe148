// runtime_bench [MODEL [DRAFT]]: what the runtime itself costs and saves, in CPU time of one thread, on tiny-k3 by
// default. One JSON line per measurement, the median of several and their spread (max / min).
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "kdelta/model/load.h"
#include "kdelta/runtime/engine.h"

namespace kdelta {
namespace {

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

void print(const std::string& what, const Measured& m, const char* unit, const std::string& more = "") {
  std::printf("{\"what\":\"%s\",\"median\":%.4g,\"unit\":\"%s\",\"spread\":%.2f%s}\n", what.c_str(), m.median, unit,
              m.spread, more.c_str());
  std::fflush(stdout);
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

// Plan and batch of a step of 256 decoding sequences of 2,000 tokens, without the model.
void plan_and_build(int64_t columns) {
  constexpr int64_t kRows = 256, kTokens = 2000, kPages = 40;
  const runtime::SchedulerConfig sc{.max_sequences = kRows, .token_budget = 8192, .columns = columns};
  std::vector<runtime::Request> requests(kRows);
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
      {.tokens = 8192, .sequences = kRows, .columns = columns, .pages = kPages, .logit_rows = kRows * columns});
  runtime::Plan plan;
  std::vector<runtime::BatchRow> rows;
  rows.reserve(kRows);
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
  print("plan and build 256 sequences, " + std::to_string(columns - 1) + " drafts", m, "us");
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
    print("concurrency " + std::to_string(n), m, "tokens/s", ",\"against_one\":" + std::to_string(m.median / alone));
  }
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
  print("the same behind a prefix of 2,048", hit, "ms", ",\"of_cold\":" + std::to_string(hit.median / cold.median));
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
    print("drafts: " + kind, m, "tokens/s",
          ",\"against_none\":" + std::to_string(m.median / plain) + ",\"kept_per_step\":" +
              std::to_string(static_cast<double>(engine.stats().accepted_drafts) /
                             static_cast<double>(std::max<int64_t>(1, engine.stats().steps))) +
              ",\"slot_bytes\":" + std::to_string(engine.memory().slots));
  }
}

int run_all(const std::string& model_directory, const std::string& draft_directory) {
  const LoadedModel model = load_model(model_directory, LoadFormat::checkpoint);
  const LoadedModel draft = load_model(draft_directory, LoadFormat::checkpoint);
  plan_and_build(1);
  plan_and_build(8);
  concurrency(*model.model);
  prefix(*model.model);
  drafts(*model.model, *draft.model);
  return 0;
}

}  // namespace
}  // namespace kdelta

int main(int argc, char** argv) {
  try {
    return kdelta::run_all(argc > 1 ? argv[1] : "models/tiny-k3", argc > 2 ? argv[2] : "models/tiny-k3-draft");
  } catch (const std::exception& e) {
    std::fprintf(stderr, "runtime_bench: %s\n", e.what());
    return 1;
  }
}
