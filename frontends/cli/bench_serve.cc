// kdelta bench serve: requests to a server at once, as its users see it: time to the first token, between tokens and to
// the end, and what part of the requests meets given limits.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>

#include "frontends/cli/commands.h"
#include "frontends/cli/json_text.h"
#include "frontends/cli/terminal.h"
#include "frontends/cli/usage.h"
#include "frontends/server/api.h"
#include "frontends/server/load_client.h"
#include "frontends/server/threads.h"
#include "kdelta/api/json.h"

namespace kdelta::cli {
namespace {

using server::LoadAnswer;
using server::LoadPlan;

// A server of this process, or one that is there already.
class Target {
 public:
  explicit Target(const BenchServeOptions& o) {
    if (!o.url.empty()) {
      connect(o.url);
      if (!o.key.empty()) headers_ = "Authorization: Bearer " + o.key + "\r\n";
      return;
    }
    LoadOptions load = o.load;
    for (const int64_t c : o.concurrency) load.max_sequences = std::max(load.max_sequences, c);
    load.max_length = std::max(load.max_length, longest(o.prompt, o) + longest(o.generate, o) + 2);
    load.token_budget = std::max(load.token_budget, load.max_sequences);
    Engine engine = load_engine(load, o.quiet ? LoadReport::silent : LoadReport::bar,
                                {.max_length = "--n-prompt and --n-gen", .max_sequences = "--concurrency"});
    settings_ = engine.precision();
    model_ = engine.info().kind;
    vocabulary_ = engine.vocab_size();
    api_ = std::make_unique<server::Api>(server::ApiOptions{.names = {"bench"}});
    server::HttpOptions http;
    http.port = 0;
    http_ = std::make_unique<server::HttpServer>(http, api_->handler());
    service_ = std::make_unique<Service>(std::move(engine), ServiceOptions{.max_waiting = int64_t{1} << 20});
    api_->serve(*service_, service_->engine().default_generation());
    port_ = http_->port();
  }
  ~Target() { http_.reset(); }  // its handlers ask the service
  Target(const Target&) = delete;
  Target& operator=(const Target&) = delete;

  LoadPlan plan() const {
    LoadPlan p;
    p.host = host_;
    p.port = port_;
    p.headers = headers_;
    return p;
  }
  bool own() const { return http_ != nullptr; }
  const std::string& model() const { return model_; }
  const std::string& settings() const { return settings_; }
  int64_t vocabulary() const { return vocabulary_; }

  // Seconds of CPU of the server: of its own threads beside the engine's; of one elsewhere, all that it tells.
  double cpu() const {
    if (own()) {
      const auto threads = server::cpu_of_threads();
      const auto of = [&](const char* name) {
        const auto it = threads.find(name);
        return it == threads.end() ? 0 : it->second;
      };
      return of("kdelta-http") + of("kdelta-handler");
    }
    const std::string text = get("/metrics");
    constexpr std::string_view kName = "\nprocess_cpu_seconds_total ";
    const size_t at = text.find(kName);
    return at == std::string::npos ? NAN : std::strtod(text.c_str() + at + kName.size(), nullptr);
  }

  static int64_t longest(int64_t n, const BenchServeOptions& o) {
    return static_cast<int64_t>(std::ceil(static_cast<double>(n) * (1 + o.length_spread)));
  }

 private:
  void connect(const std::string& url) {
    constexpr std::string_view kHttp = "http://";
    const auto refuse = [&] { return UsageError(fmt::format("--url: '{}', expected http://HOST[:PORT][/v1]", url)); };
    if (!url.starts_with(kHttp)) throw refuse();
    std::string rest = url.substr(kHttp.size());
    while (rest.ends_with('/')) rest.pop_back();
    if (rest.ends_with("/v1")) rest.resize(rest.size() - 3);  // the base that clients of the API are given
    while (rest.ends_with('/')) rest.pop_back();
    const size_t colon = rest.rfind(':');
    port_ = 80;
    if (colon != std::string::npos) {
      char* end = nullptr;
      const long port = std::strtol(rest.c_str() + colon + 1, &end, 10);
      if (*end != '\0' || port < 1 || port > 65535) throw refuse();
      port_ = static_cast<int>(port);
    }
    host_ = rest.substr(0, colon);
    if (host_.empty() || host_.find('/') != std::string::npos) throw refuse();
    model_ = url;
  }

  std::string get(const std::string& path) const {
    LoadPlan p = plan();
    p.request = [&](int64_t) { return server::LoadRequest{.path = path, .body = "", .method = "GET"}; };
    return server::run_load(p).front().body;
  }

  std::string host_ = "127.0.0.1", headers_, model_, settings_;
  int port_ = 0;
  int64_t vocabulary_ = 256;  // of a server elsewhere: ids that every vocabulary has
  std::unique_ptr<server::Api> api_;
  std::unique_ptr<Service> service_;
  std::unique_ptr<server::HttpServer> http_;
};

struct Percentiles {
  double p50 = 0, p90 = 0, p99 = 0, most = 0;
};

// Of no values all are 0.
Percentiles percentiles(std::vector<double> v) {
  if (v.empty()) return {};
  std::sort(v.begin(), v.end());
  const auto at = [&](double part) {  // the nearest rank
    const auto rank = static_cast<size_t>(std::ceil(part * static_cast<double>(v.size())));
    return v[std::clamp<size_t>(rank, 1, v.size()) - 1];
  };
  return {at(.5), at(.9), at(.99), v.back()};
}

// Milliseconds, but for `seconds`.
struct Run {
  double seconds = 0, cpu = 0;
  int64_t tokens = 0, failed = 0, good = 0;
  std::vector<double> first, between, whole, behind;
  std::string error;  // of one that failed
};

Run measure(const BenchServeOptions& o, const Target& target, int64_t concurrency, uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto length = [&](int64_t n) {
    std::uniform_real_distribution<double> part(1 - o.length_spread, 1 + o.length_spread);
    return std::max<int64_t>(1, std::llround(static_cast<double>(n) * part(random)));
  };
  LoadPlan plan = target.plan();
  plan.concurrency = concurrency;
  plan.requests = o.requests > 0 ? o.requests : 4 * concurrency;
  plan.rate = o.rate;
  plan.seed = seed;
  plan.request = [&](int64_t) {
    std::string ids;
    for (int64_t i = length(o.prompt); i > 0; --i)
      ids += fmt::format("{}{}", ids.empty() ? "" : ",", random() % static_cast<uint64_t>(target.vocabulary()));
    return server::LoadRequest{
        .path = "/v1/completions",
        .body = fmt::format(R"({{"prompt":[{}],"max_tokens":{},"ignore_eos":true,"temperature":0,"stream":true,)"
                            R"("stream_options":{{"include_usage":true}}{}}})",
                            ids, length(o.generate),
                            o.model_name.empty() ? "" : fmt::format(",\"model\":{}", quoted(o.model_name)))};
  };
  Run out;
  const double cpu = target.cpu();
  for (const LoadAnswer& a : server::run_load(plan)) {
    out.seconds = std::max(out.seconds, a.ended);
    if (!a.error.empty() || a.pieces.empty()) {
      ++out.failed;
      out.error = a.error.empty() ? "no text came" : a.error;
      continue;
    }
    out.tokens += a.tokens;
    const double first = 1e3 * a.first(), whole = 1e3 * (a.pieces.back() - a.began);
    double mean = 0;
    if (a.tokens > 1) mean = (whole - first) / static_cast<double>(a.tokens - 1);
    out.first.push_back(first);
    out.whole.push_back(whole);
    for (size_t i = 1; i < a.pieces.size(); ++i) out.between.push_back(1e3 * (a.pieces[i] - a.pieces[i - 1]));
    if (a.server_first >= 0) out.behind.push_back(first - 1e3 * a.server_first);
    const auto within = [](double limit, double value) { return limit <= 0 || value <= limit; };
    out.good += within(o.most_first, first) && within(o.most_between, mean) && within(o.most_whole, whole);
  }
  out.cpu = target.cpu() - cpu;
  return out;
}

// Of a server that answers nothing there is nothing to measure.
void check_answered(const Run& run, const Target& target) {
  if (run.failed > 0 && run.first.empty() && !interrupted)
    throw std::runtime_error(
        fmt::format("{}{}: no request was answered: {}", target.own() ? "" : "--url: ", target.model(), run.error));
}

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  const size_t n = v.size();
  return n % 2 == 1 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

double spread_percent(const std::vector<double>& v) {
  const auto [least, most] = std::minmax_element(v.begin(), v.end());
  return median(v) > 0 ? 100 * (*most - *least) / median(v) : 0;
}

// All repetitions of one concurrency: rates one by one, times of all requests together.
struct Row {
  int64_t concurrency = 0, requests = 0, failed = 0;
  std::vector<double> token_rates, request_rates, good_rates, cpu_us;
  Percentiles first, between, whole, behind;
  bool tells_behind = false;
};

Row row_of(int64_t concurrency, const std::vector<Run>& runs) {
  Row row{.concurrency = concurrency};
  std::vector<double> first, between, whole, behind;
  for (const Run& r : runs) {
    const auto per_second = [&](int64_t n) { return r.seconds > 0 ? static_cast<double>(n) / r.seconds : 0; };
    row.requests += std::ssize(r.first) + r.failed;
    row.failed += r.failed;
    row.token_rates.push_back(per_second(r.tokens));
    row.request_rates.push_back(per_second(std::ssize(r.first)));
    row.good_rates.push_back(per_second(r.good));
    if (r.tokens > 0 && std::isfinite(r.cpu)) row.cpu_us.push_back(1e6 * r.cpu / static_cast<double>(r.tokens));
    for (const auto& [to, from] :
         {std::pair(&first, &r.first), {&between, &r.between}, {&whole, &r.whole}, {&behind, &r.behind}})
      to->insert(to->end(), from->begin(), from->end());
  }
  row.tells_behind = !behind.empty();
  row.first = percentiles(std::move(first));
  row.between = percentiles(std::move(between));
  row.whole = percentiles(std::move(whole));
  row.behind = percentiles(std::move(behind));
  return row;
}

std::string name_of(const Row& r, const BenchServeOptions& o) {
  return fmt::format("c{} pp{}+tg{}{}", r.concurrency, o.prompt, o.generate,
                     o.rate > 0 ? fmt::format(" @ {}/s", o.rate) : "");
}

void print_begin(const BenchServeOptions& o) {
  if (o.output == "md")
    fmt::print(
        "Times in ms: 50th, 90th, 99th percentile.\n\n"
        "| model | test | requests | failed | t/s | first token | between tokens | whole | good/s | CPU/token |\n"
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n");
  if (o.output == "json") fmt::print("[");
}

void print_row(const BenchServeOptions& o, const Target& target, const Row& r, bool is_first) {
  const auto three = [](const Percentiles& p) { return fmt::format("{:.2f} / {:.2f} / {:.2f}", p.p50, p.p90, p.p99); };
  if (o.output == "md") {
    fmt::print("| {} | {} | {} | {} | {:.1f} | {} | {} | {} | {:.2f} | {} |\n", target.model(), name_of(r, o),
               r.requests, r.failed, median(r.token_rates), three(r.first), three(r.between), three(r.whole),
               median(r.good_rates), r.cpu_us.empty() ? "" : fmt::format("{:.1f} us", median(r.cpu_us)));
    return;
  }
  const auto object = [](const Percentiles& p) {
    return fmt::format("{{\"p50\":{:.3f},\"p90\":{:.3f},\"p99\":{:.3f},\"max\":{:.3f}}}", p.p50, p.p90, p.p99, p.most);
  };
  const auto list = [](const std::vector<double>& v) {
    std::string out;
    for (const double x : v) out += fmt::format("{}{:.4f}", out.empty() ? "" : ",", x);
    return fmt::format("[{}]", out);
  };
  if (o.output == "json" && !is_first) fmt::print(",\n ");
  fmt::print(
      "{{\"build\":{},\"model\":{},\"settings\":{},\"test\":{},\"concurrency\":{},\"rate\":{},\"requests\":{},"
      "\"failed\":{},\"samples_ts\":{},\"median_ts\":{:.4f},\"spread_percent\":{:.1f},\"requests_per_s\":{:.4f},"
      "\"goodput_per_s\":{:.4f},\"first_token_ms\":{},\"between_tokens_ms\":{},\"whole_ms\":{}",
      quoted(version()), quoted(target.model()), quoted(target.settings()), quoted(name_of(r, o)), r.concurrency,
      o.rate, r.requests, r.failed, list(r.token_rates), median(r.token_rates), spread_percent(r.token_rates),
      median(r.request_rates), median(r.good_rates), object(r.first), object(r.between), object(r.whole));
  if (r.tells_behind) fmt::print(",\"first_byte_behind_first_token_ms\":{}", object(r.behind));
  if (!r.cpu_us.empty())
    fmt::print(",\"cpu_of\":\"{}\",\"cpu_us_per_token\":{},\"median_cpu_us_per_token\":{:.3f}",
               target.own() ? "sockets and handlers" : "the whole server", list(r.cpu_us), median(r.cpu_us));
  fmt::print("}}{}", o.output == "jsonl" ? "\n" : "");
}

}  // namespace

int bench_serve(const BenchServeOptions& o) {
  if (o.url.empty() == o.load.model.empty())
    throw UsageError("bench serve: a model, to be served in this process, or --url; one of both");
  if (o.url.empty()) check_load(o.load);
  const Target target(o);
  uint64_t seed = 1;
  if (o.warmup) check_answered(measure(o, target, 1, seed++), target);
  int64_t failed = 0;
  bool first = true;
  const auto row = [&](int64_t concurrency) {
    std::vector<Run> runs;
    for (int i = 0; i < o.repetitions && !interrupted; ++i) {
      runs.push_back(measure(o, target, concurrency, seed++));
      check_answered(runs.back(), target);
      failed += runs.back().failed;
      if (runs.back().failed > 0)
        say("{} of {} requests failed: {}\n", runs.back().failed, runs.back().failed + std::ssize(runs.back().first),
            runs.back().error);
    }
    if (runs.empty()) return;
    if (first) print_begin(o);
    print_row(o, target, row_of(concurrency, runs), first);
    std::fflush(stdout);
    first = false;
  };
  const auto end = [&] {
    if (o.output == "json") fmt::print("]\n");
  };
  try {
    for (const int64_t concurrency : o.concurrency) row(concurrency);
  } catch (...) {
    if (!first) end();  // the rows before it stand
    throw;
  }
  if (first) print_begin(o);  // interrupted before any row
  end();
  return interrupted ? kExitInterrupted : failed > 0 ? kExitFailed : 0;
}

}  // namespace kdelta::cli
