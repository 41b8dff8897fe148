#include "tests/gpu/model_bench.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "kdelta/core/moves.h"
#include "kdelta/model/load.h"
#include "kdelta/runtime/engine.h"
#include "tests/gpu/roof.h"

namespace kdelta::gpu_bench {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr int64_t kContext = 8192, kSpare = 512;  // tokens; of prompts and behind them
constexpr int64_t kAhead = 20'000'000;            // ns that the host gets to enqueue a whole step before it runs
constexpr Device kDevice{DeviceKind::cuda, 0};

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

double quantile(std::vector<double> v, double q) {
  std::sort(v.begin(), v.end());
  return v[static_cast<size_t>(q * static_cast<double>(v.size() - 1))];
}

std::vector<int32_t> prompt_of(int64_t tokens, uint64_t seed, int64_t vocabulary) {
  std::mt19937_64 rng(seed);
  std::vector<int32_t> ids(static_cast<size_t>(tokens));
  for (int32_t& id : ids) id = static_cast<int32_t>(rng() % static_cast<uint64_t>(vocabulary));
  return ids;
}

runtime::EngineConfig config_for(const ModelFlags& flags, int64_t sequences, int64_t length) {
  runtime::EngineConfig c;
  c.device = kDevice;
  c.max_sequences = sequences;
  c.token_budget = std::max<int64_t>(8192, sequences);
  c.max_length = length;
  c.options.threads = 4;
  c.options.exact = flags.exact;
  if (flags.overlap_rows >= 0) c.options.overlap_rows = flags.overlap_rows;
  return c;
}

runtime::RequestOptions greedy(int64_t tokens) {
  runtime::RequestOptions o;
  o.sampling.temperature = 0;
  o.max_tokens = tokens;
  return o;
}

class Bytes final : public OpObserver {
 public:
  void on_op(std::string_view, std::string_view, const Cost& cost) override {
    bytes += cost.bytes, flops += cost.flops;
  }
  double bytes = 0, flops = 0;
};

// Device bandwidth of reads and writes of much memory, for percents.
double copy_rate() {
  constexpr int64_t kBytes = int64_t{2} << 30;
  Buffer a(kDevice, kBytes), b(kDevice, kBytes);
  Stream stream(kDevice);
  double best = 1e9;
  for (int i = 0; i < 5; ++i) {
    Event begin(kDevice, Event::Timing::on), end(kDevice, Event::Timing::on);
    stream.record(begin);
    const Move move{b.data(), a.data(), kBytes};
    copy_async(stream, move.to, move.from, move.bytes);
    stream.record(end);
    best = std::min(best, seconds_between(begin, end));
  }
  return 2 * static_cast<double>(kBytes) / best;
}

// Distinct experts per layer of a step.
class Experts final : public TensorProbe {
 public:
  void on_tensor(std::string_view name, int layer, const AnyConstView& tensor, Stream* stream) override {
    if (name != "router_idx") return;
    std::vector<char> memory;
    const AnyConstView ids = host_copy(stream, tensor, memory);
    for (int64_t t = 0; t < ids.dim(0); ++t)
      for (int64_t i = 0; i < ids.dim(1); ++i) seen_[layer].insert(ids.at<const int32_t>(t)[i]);
  }
  double mean() const {
    double sum = 0;
    for (const auto& [layer, ids] : seen_) sum += static_cast<double>(ids.size());
    return seen_.empty() ? 0 : sum / static_cast<double>(seen_.size());
  }

 private:
  std::map<int, std::set<int32_t>> seen_;
};

// Time of every op of a step that runs op by op, by marks between them.
class Timeline final : public OpObserver {
 public:
  explicit Timeline(Stream& stream) : stream_(stream) {}
  void on_op(std::string_view op, std::string_view variant, const Cost& cost) override {
    mark(std::string(op) + ":" + std::string(variant), cost.bytes);
  }
  void mark(const std::string& name, double bytes) {
    marks_.push_back(std::make_unique<Event>(kDevice, Event::Timing::on));
    stream_.record(*marks_.back());
    names_.emplace_back(name, bytes);
  }
  Json table() {
    mark("end", 0);
    struct Sum {
      double seconds = 0, bytes = 0;
      int calls = 0;
    };
    std::map<std::string, Sum> sums;
    for (size_t i = 0; i + 1 < marks_.size(); ++i) {
      Sum& s = sums[names_[i].first];
      s.seconds += seconds_between(*marks_[i], *marks_[i + 1]), s.bytes += names_[i].second, ++s.calls;
    }
    std::vector<std::pair<std::string, Sum>> order(sums.begin(), sums.end());
    std::sort(order.begin(), order.end(),
              [](const auto& a, const auto& b) { return a.second.seconds > b.second.seconds; });
    Json rows = Json::array();
    for (const auto& [name, s] : order) {
      rows.push_back(
          {{"op", name}, {"calls", s.calls}, {"us", s.seconds * 1e6}, {"gb_per_s", s.bytes / s.seconds * 1e-9}});
      std::printf("    %-36s %4d calls %10.1f us %8.0f GB/s\n", name.c_str(), s.calls, s.seconds * 1e6,
                  s.bytes / s.seconds * 1e-9);
    }
    return rows;
  }

 private:
  Stream& stream_;
  std::vector<std::unique_ptr<Event>> marks_;
  std::vector<std::pair<std::string, double>> names_;
};

class ModelBench {
 public:
  explicit ModelBench(const ModelFlags& flags) : flags_(flags) {
    const auto begin = Clock::now();
    model_ = load_model(flags.config, LoadFormat::config_only);
    place_weights(model_, kDevice, {}, {});
    out_["config"] = flags.config;
    out_["exact"] = flags.exact;
    out_["weight_bytes"] = DeviceWeights::bytes(model_.model->weights());
    out_["fill_seconds"] = seconds_since(begin);
    rate_ = copy_rate();
    out_["copy_gb_per_s"] = rate_ * 1e-9;
    std::printf("%s: %.1f GB of weights in %.1f s, copies at %.0f GB/s\n", flags.config.c_str(),
                static_cast<double>(out_["weight_bytes"].get<int64_t>()) * 1e-9, out_["fill_seconds"].get<double>(),
                rate_ * 1e-9);
  }

  // Device time of the recorded step alone. The states it works on mean nothing afterwards.
  static double replay_seconds(runtime::Engine& engine) {
    Event begin(kDevice, Event::Timing::on), end(kDevice, Event::Timing::on);
    engine.stream()->record(begin);
    engine.recorded(0).graphs()[0].launch(*engine.stream());
    engine.stream()->record(end);
    return seconds_between(begin, end);
  }

  void decode() {
    out_["decode"] = Json::array();
    for (const int64_t batch : flags_.batches) {
      for (const bool recorded : {true, false}) {
        if (flags_.exact && !recorded) continue;
        const std::unique_ptr<runtime::Engine> decoding = decoding_engine(batch);
        runtime::Engine& engine = *decoding;
        Bytes nobody;
        if (!recorded) engine.observe(&nobody, nullptr);
        for (int i = 0; i < 5; ++i) engine.step([](const runtime::TokenEvent&) {});
        std::vector<double> times;
        for (int i = 0; i < 40; ++i) {
          const auto begin = Clock::now();
          engine.step([](const runtime::TokenEvent& e) {
            if (e.error != nullptr) std::printf("error: %s\n", e.error->c_str());
          });
          times.push_back(seconds_since(begin));
        }
        // What a step takes longer than its recording, replayed right behind it.
        std::vector<double> replays, gaps;
        for (int i = 0; recorded && i < 40; ++i) {
          const auto begin = Clock::now();
          engine.step([](const runtime::TokenEvent&) {});
          const double step = seconds_since(begin);
          replays.push_back(replay_seconds(engine));
          gaps.push_back(step - replays.back());
        }
        const double median = quantile(times, 0.5);
        const double replay = recorded ? quantile(replays, 0.5) : 0, beside = recorded ? quantile(gaps, 0.5) : 0;
        runtime::EngineConfig walked = config_for(flags_, batch, kContext + kSpare);
        Bytes bytes;
        (void)runtime::walk_step(*model_.model, walked, true, &bytes);
        Experts experts;
        engine.observe(nullptr, &experts);
        engine.step([](const runtime::TokenEvent&) {});
        Json row = {{"batch", batch},
                    {"context", kContext},
                    {"recorded", recorded},
                    {"step_us", median * 1e6},
                    {"p10_us", quantile(times, 0.1) * 1e6},
                    {"p90_us", quantile(times, 0.9) * 1e6},
                    {"replay_us", replay * 1e6},
                    {"beside_replay_us", beside * 1e6},
                    {"tokens_per_s", static_cast<double>(batch) / median},
                    {"percent_of_copy_rate", 100 * bytes.bytes / rate_ / median},
                    {"distinct_experts", experts.mean()}};
        std::printf(
            "  decode batch %3lld %-9s %9.1f us (%.1f to %.1f)  %8.1f tok/s  %4.1f %% of copy  %.1f experts  replay "
            "%.1f + %.1f us\n",
            static_cast<long long>(batch), recorded ? "recorded" : "op by op", median * 1e6,
            row["p10_us"].get<double>(), row["p90_us"].get<double>(), row["tokens_per_s"].get<double>(),
            row["percent_of_copy_rate"].get<double>(), experts.mean(), replay * 1e6, beside * 1e6);
        if (!recorded && flags_.parts.find("profile") != std::string::npos) {
          Timeline timeline(*engine.stream());
          engine.observe(&timeline, nullptr);
          enqueue_delay(*engine.stream(), kAhead);
          engine.step([](const runtime::TokenEvent&) {});
          row["profile"] = timeline.table();
        }
        out_["decode"].push_back(row);
        std::fflush(stdout);
      }
    }
  }

  // Sixteen sequences decode while prompts of `tokens` tokens come, one a step: in pieces that are recorded, padded to
  // the same size and op by op, and in its own size.
  void mixed() {
    out_["mixed"] = Json::array();
    constexpr int64_t kDecodes = 16;
    for (const int64_t tokens : {32, 96, 224, 480}) {
      for (const char* how : {"pieces", "padded", "as it is"}) {
        runtime::EngineConfig c = config_for(flags_, kDecodes + 1, 2048);
        c.token_budget = 512;
        if (std::string(how) != "as it is") c.buckets = {{.rows = kDecodes + 1, .mixed_tokens = tokens + 32}};
        runtime::Engine engine(*model_.model, c);
        for (int64_t i = 0; i < kDecodes; ++i)
          (void)engine.submit(prompt_of(64, static_cast<uint64_t>(i + 1), vocabulary()), greedy(1024));
        while (engine.stats().decode_tokens < kDecodes) engine.step([](const runtime::TokenEvent&) {});
        Bytes nobody;
        if (std::string(how) == "padded") engine.observe(&nobody, nullptr);
        std::vector<double> times;
        for (int i = 0; i < 25; ++i) {
          (void)engine.submit(prompt_of(tokens, static_cast<uint64_t>(100 + i), vocabulary()), greedy(1));
          const auto begin = Clock::now();
          engine.step([](const runtime::TokenEvent& e) {
            if (e.error != nullptr) std::printf("error: %s\n", e.error->c_str());
          });
          if (i >= 5) times.push_back(seconds_since(begin));
        }
        out_["mixed"].push_back({{"decode_rows", kDecodes},
                                 {"prompt_tokens", tokens},
                                 {"how", how},
                                 {"step_us", quantile(times, 0.5) * 1e6},
                                 {"p10_us", quantile(times, 0.1) * 1e6},
                                 {"p90_us", quantile(times, 0.9) * 1e6}});
        std::printf("  mixed %3lld + %2lld %-8s %9.1f us (%.1f to %.1f)\n", static_cast<long long>(tokens),
                    static_cast<long long>(kDecodes), how, quantile(times, 0.5) * 1e6, quantile(times, 0.1) * 1e6,
                    quantile(times, 0.9) * 1e6);
        std::fflush(stdout);
      }
    }
  }

  void prefill() {
    out_["prefill"] = Json::array();
    for (const int64_t tokens : {1024, 8192, 32768, 131072}) {
      if (tokens > flags_.most_prompt) break;
      runtime::Engine engine(*model_.model, config_for(flags_, 1, tokens + 64));
      double best = 1e9, worst = 0;
      for (int i = 0; i < (tokens <= 8192 ? 4 : 2); ++i) {
        (void)engine.submit(prompt_of(tokens, static_cast<uint64_t>(i), vocabulary()), greedy(1));
        const auto begin = Clock::now();
        while (engine.step([](const runtime::TokenEvent& e) {
          if (e.error != nullptr) std::printf("error: %s\n", e.error->c_str());
        })) {
        }
        const double t = seconds_since(begin);
        if (i > 0 || tokens > 8192) best = std::min(best, t), worst = std::max(worst, t);
      }
      Json row = {{"tokens", tokens},
                  {"seconds", best},
                  {"worst", worst},
                  {"tokens_per_s", static_cast<double>(tokens) / best}};
      std::printf("  prefill %6lld  %9.2f ms (worst %.2f)  %9.0f tok/s\n", static_cast<long long>(tokens), best * 1e3,
                  worst * 1e3, static_cast<double>(tokens) / best);
      if (tokens == 8192 && flags_.parts.find("profile") != std::string::npos) {
        Timeline timeline(*engine.stream());
        engine.observe(&timeline, nullptr);
        (void)engine.submit(prompt_of(tokens, 9, vocabulary()), greedy(1));
        enqueue_delay(*engine.stream(), kAhead);
        engine.step([](const runtime::TokenEvent&) {});
        row["profile"] = timeline.table();
      }
      out_["prefill"].push_back(row);
      std::fflush(stdout);
      if (best > 20) break;  // four times as many would take minutes
    }
  }

  void trace() {
    for (const int64_t batch : flags_.batches) {
      const std::unique_ptr<runtime::Engine> engine = decoding_engine(batch);
      const auto step = [&] { engine->step([](const runtime::TokenEvent&) {}); };
      for (int i = 0; i < 5; ++i) step();
      begin_profile();
      for (int i = 0; i < 2; ++i) step();
      end_profile();
    }
  }

  const Json& result() const { return out_; }

 private:
  // An engine whose rows all decode behind contexts of their own, so that rows go to experts of their own.
  std::unique_ptr<runtime::Engine> decoding_engine(int64_t batch) {
    runtime::EngineConfig c = config_for(flags_, batch, kContext + kSpare);
    c.buckets = {{batch, 1}};
    auto engine = std::make_unique<runtime::Engine>(*model_.model, c);
    int64_t ready = 0;  // who is ready first decodes beside the others' prompts
    std::set<runtime::RequestId> heard;
    for (int64_t i = 0; i < batch; ++i)
      (void)engine->submit(prompt_of(kContext, static_cast<uint64_t>(i + 1), vocabulary()), greedy(kSpare));
    while (ready < batch)
      engine->step([&](const runtime::TokenEvent& e) { ready += heard.insert(e.id).second ? 1 : 0; });
    return engine;
  }
  int64_t vocabulary() const { return model_.config.vocab_size; }
  const ModelFlags& flags_;
  LoadedModel model_;
  double rate_ = 0;
  Json out_;
};

}  // namespace

int run_model(const ModelFlags& flags) {
  ModelBench bench(flags);
  const auto wanted = [&](const char* part) { return flags.parts.find(part) != std::string::npos; };
  if (wanted("decode")) bench.decode();
  if (wanted("mixed")) bench.mixed();
  if (wanted("prefill")) bench.prefill();
  if (wanted("trace")) bench.trace();
  if (flags.results.empty()) return 0;
  const DeviceProperties& p = device_properties(kDevice);
  const Json file = {{"machine", {{"gpu", p.name}, {"multiprocessors", p.multiprocessors}}},
                     {"commit", flags.commit},
                     {"command", "kdelta_gpu_engine_tests --model=" + flags.config},
                     {"model", bench.result()}};
  std::ofstream(flags.results) << file.dump(1) << "\n";
  return 0;
}

}  // namespace kdelta::gpu_bench
