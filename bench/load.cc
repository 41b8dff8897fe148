// load_bench [--topic=NAME [--results=FOLDER]] [--gib=4] [--repetitions=5] [--threads=N]: what composing the decay gate
// adds to the time and memory of loading. Two dummy checkpoints, shaped as Kimi-Linear and as Kimi K3 with fewer layers
// and experts, lie in a temporary folder that goes with the program. Every load is a process of its own; the two forms
// take turns, with cold pages (the files are dropped from the page cache first) and with warm ones. "read" beside them
// is the time in which the same files are read from front to back. Two CPUs beside others' work give noise: the figure
// is the median of the ratios of neighbours.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "bench/support/machine.h"
#include "kdelta/core/check.h"
#include "kdelta/io/prefault.h"
#include "kdelta/model/load.h"
#include "tests/e2e/dummy_checkpoint.h"

namespace kdelta::bench {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using OrderedJson = nlohmann::ordered_json;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// A line of /proc/self/status in bytes.
int64_t status_bytes(const char* field) {
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);)
    if (line.starts_with(field)) return 1024 * std::atoll(line.c_str() + std::strlen(field) + 1);
  return 0;
}

struct Load {
  double seconds = 0;
  int64_t anonymous = 0;  // most memory at once that is no page of a file
  int64_t composed = 0, mapped = 0;
};

// In a process of its own: what Engine::load does with a checkpoint.
int load_once(const std::string& directory, const std::string& form, int threads) {
  LoadChoices choices{.kda_gate = parse_gate_choice(form), .compose_later = true};
  choices.options.threads = threads;
  std::atomic<bool> done{false};
  std::atomic<int64_t> most{0};
  const int64_t before = status_bytes("RssAnon:");
  std::thread watch([&] {
    while (!done) {
      most = std::max(most.load(), status_bytes("RssAnon:"));
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  });
  const auto start = Clock::now();
  LoadedModel m = load_model(directory, LoadFormat::checkpoint, choices);
  m.weights.compose([&] { prefault(m.weights.mapped(), {}); });
  const double seconds = seconds_since(start);
  done = true;
  watch.join();
  std::printf("%.6f %lld %lld %lld\n", seconds,
              static_cast<long long>(std::max(most.load(), status_bytes("RssAnon:")) - before),
              static_cast<long long>(m.report.composed_bytes), static_cast<long long>(m.report.mapped_bytes));
  return 0;
}

Load load_in_process(const std::string& directory, const std::string& form, int threads) {
  const std::string command =
      str("/proc/", getpid(), "/exe --load=", directory, " --form=", form, " --threads=", threads);
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  Load l;
  long long anonymous = 0, composed = 0, mapped = 0;
  KDELTA_CHECK(
      pipe != nullptr && std::fscanf(pipe.get(), "%lf %lld %lld %lld", &l.seconds, &anonymous, &composed, &mapped) == 4,
      command);
  l.anonymous = anonymous, l.composed = composed, l.mapped = mapped;
  return l;
}

template <class F>
void each_shard(const std::string& directory, F f) {
  for (const auto& entry : fs::directory_iterator(directory)) {
    if (entry.path().extension() != ".safetensors") continue;
    const int fd = open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
    KDELTA_CHECK(fd >= 0, entry.path().string());
    f(fd);
    close(fd);
  }
}

// Only pages that are written down leave the cache.
void drop_pages(const std::string& directory) {
  each_shard(directory, [](int fd) {
    (void)fdatasync(fd);
    KDELTA_CHECK(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) == 0);
  });
}

double read_files(const std::string& directory) {
  std::vector<char> buffer(size_t{4} << 20);
  const auto start = Clock::now();
  each_shard(directory, [&](int fd) {
    while (read(fd, buffer.data(), buffer.size()) > 0) continue;
  });
  return seconds_since(start);
}

std::string config(bool k3, int64_t experts) {
  const int64_t heads = k3 ? 96 : 32, layers = k3 ? 2 : 4;
  std::string text = str(
      R"("vocab_size": )", k3 ? 16384 : 163840, R"(, "hidden_size": )", k3 ? 7168 : 2304, R"(, "intermediate_size": )",
      k3 ? 33792 : 9216, R"(, "rms_norm_eps": 1e-5, "num_hidden_layers": )", layers,
      R"(, "linear_attn_config": {"num_heads": )", heads, R"(, "head_dim": 128, "short_conv_kernel_size": 4, )",
      k3 ? R"("use_full_rank_gate": true, "gate_lower_bound": -5.0, "kda_layers": [1], "full_attn_layers": [2]})"
         : R"("kda_layers": [1, 2, 3], "full_attn_layers": [4]})",
      R"(, "num_attention_heads": )", heads, R"(, "num_key_value_heads": )", heads,
      R"(, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "kv_lora_rank": 512, "mla_use_nope": true)",
      R"(, "num_experts": )", experts,
      R"(, "first_k_dense_replace": 1, "moe_layer_freq": 1, "num_experts_per_token": 8)",
      R"(, "moe_intermediate_size": )", k3 ? 3072 : 1024, R"(, "num_shared_experts": )", k3 ? 2 : 1,
      R"(, "moe_renormalize": true, "routed_scaling_factor": 2.5, "moe_router_activation_func": "sigmoid")");
  if (!k3) return R"({"architectures": ["KimiLinearForCausalLM"], "hidden_act": "silu", )" + text + "}";
  return R"({"architectures": ["KimiK3ForConditionalGeneration"], "text_config": {"hidden_act": "situ",
"activation_situ_beta": 4.0, "activation_situ_linear_beta": 25.0, "attn_res_block_size": 12, "q_lora_rank": 1536,
"mla_use_output_gate": true, "routed_expert_hidden_size": 3584, "latent_moe_use_norm": true, "quantization_config":
{"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "float",
"strategy": "group", "group_size": 32, "symmetric": true}, "input_activations": null, "targets": ["Linear"]}}}, )" +
         text + "}}";
}

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return (v[v.size() / 2] + v[(v.size() - 1) / 2]) / 2;
}
double spread_percent(const std::vector<double>& v) {
  return 100 * (*std::max_element(v.begin(), v.end()) - *std::min_element(v.begin(), v.end())) / median(v);
}
double rounded(double x, double unit) {
  return std::round(x / unit) * unit;
}

struct Flags {
  std::string topic, results = "bench/results", load, form = "factored", command = "load_bench";
  double gib = 4;
  int repetitions = 5, threads = 0;
};

// One checkpoint, cold or warm.
void measure(const std::string& directory, const std::string& shape, bool cold, const Flags& flags, int64_t bytes,
             int64_t largest_shard, OrderedJson& results) {
  constexpr const char* kForms[] = {"factored", "composed"};
  std::vector<double> read, seconds[2], ratios;
  int64_t anonymous[2] = {}, composed = 0;
  const auto prepare = [&] { cold ? drop_pages(directory) : (void)read_files(directory); };
  for (int i = 0; i < flags.repetitions; ++i) {
    prepare();
    read.push_back(read_files(directory));
    for (const int form : {i % 2, 1 - i % 2}) {  // neither is always the first
      prepare();
      const Load l = load_in_process(directory, kForms[form], flags.threads);
      seconds[form].push_back(l.seconds);
      anonymous[form] = std::max(anonymous[form], l.anonymous);
      composed = std::max(composed, l.composed);
    }
    ratios.push_back(seconds[1].back() / seconds[0].back());
  }
  const std::string name = shape + (cold ? ", cold" : ", warm");
  std::printf("%-44s read %6.3f s  factored %6.3f s  composed %6.3f s  ratio %.3f (%.3f to %.3f)\n", name.c_str(),
              median(read), median(seconds[0]), median(seconds[1]), median(ratios),
              *std::min_element(ratios.begin(), ratios.end()), *std::max_element(ratios.begin(), ratios.end()));
  std::printf(
      "%-44s memory of its own: factored %.0f MB, composed %.0f MB, of them products %.0f MB; largest shard %.0f MB\n",
      "", static_cast<double>(anonymous[0]) * 1e-6, static_cast<double>(anonymous[1]) * 1e-6,
      static_cast<double>(composed) * 1e-6, static_cast<double>(largest_shard) * 1e-6);
  std::fflush(stdout);
  const double roof = static_cast<double>(bytes) / *std::min_element(read.begin(), read.end());
  const auto add = [&](const char* variant, const std::vector<double>& s, int64_t own, int64_t products) {
    std::vector<double> paired;
    for (size_t i = 0; i < s.size(); ++i) paired.push_back(100 * read[i] / s[i]);
    const double mid = median(s), best = *std::min_element(s.begin(), s.end());
    OrderedJson row = {{"op", "load"},
                       {"variant", variant},
                       {"shape", name},
                       {"repetitions", s.size()},
                       {"median_us", rounded(mid * 1e6, 1)},
                       {"best_us", rounded(best * 1e6, 1)},
                       {"spread_percent", rounded(spread_percent(s), 0.1)},
                       {"bytes", static_cast<double>(bytes)},
                       {"flops", 0.0},
                       {"roof", "file"},
                       {"roof_per_s", rounded(roof, 1e6)},
                       {"percent_of_roof", rounded(100 * static_cast<double>(bytes) / mid / roof, 0.1)},
                       {"best_percent_of_roof", rounded(100 * static_cast<double>(bytes) / best / roof, 0.1)},
                       {"paired_percent_of_roof", rounded(median(paired), 0.1)}};
    if (own >= 0)
      row["own_memory_bytes"] = own, row["product_bytes"] = products, row["largest_shard_bytes"] = largest_shard;
    if (products > 0) row["times_factored"] = rounded(median(ratios), 0.001);
    results.push_back(std::move(row));
  };
  add("composed", seconds[1], anonymous[1], composed);
  add("factored", seconds[0], anonymous[0], 0);
  add("read", read, -1, 0);
}

// A folder that goes with this.
struct Scratch {
  fs::path path;
  Scratch() : path(fs::temp_directory_path() / str("kdelta_load_bench_", getpid())) { fs::create_directories(path); }
  ~Scratch() { fs::remove_all(path); }
};

void run(const Flags& flags) {
  OrderedJson results = OrderedJson::array();
  for (const bool k3 : {false, true}) {
    const Scratch scratch;
    // 42.5 MB a layer of bf16 experts of Kimi-Linear for each, 17.5 MB of Kimi K3's in MXFP4; beside 1.97 and 3.63 GB.
    const double rest = k3 ? 3.63e9 : 1.97e9, expert = k3 ? 17.5e6 : 42.5e6;
    const auto experts = std::max<int64_t>(8, static_cast<int64_t>((flags.gib * 0x1p30 - rest) / expert));
    std::ofstream(scratch.path / "config.json") << config(k3, experts);
    const test::DummyCheckpoint d = test::write_dummy_checkpoint(scratch.path, int64_t{1} << 30, k3);
    const std::string shape = str(k3 ? "Kimi K3" : "Kimi-Linear", " of ", flags.gib, " GiB");
    std::printf("%s: %.2f GiB in %d shards\n", shape.c_str(), static_cast<double>(d.bytes) * 0x1p-30, d.shards);
    for (const bool cold : {true, false}) measure(scratch.path, shape, cold, flags, d.bytes, d.largest_shard, results);
  }
  if (flags.topic.empty()) return;
  const Machine m = this_machine();
  const OrderedJson all = {{"machine", {{"cpu", m.cpu}, {"isa", m.isa}, {"cpus", m.cpus}}},
                           {"commit", m.commit},
                           {"date", m.date},
                           {"threads", flags.threads > 0 ? flags.threads : m.cpus},
                           {"command", flags.command},
                           {"roofs", OrderedJson::array()},
                           {"results", results}};
  const fs::path folder = fs::path(flags.results) / m.folder;
  fs::create_directories(folder);
  std::ofstream(folder / (m.date + "-" + flags.topic + ".json")) << all.dump(1) << "\n";
}

Flags parse(int argc, char** argv) {
  Flags f;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    f.command += " " + arg;
    const size_t eq = arg.find('=');
    const std::string key = arg.substr(0, eq), value = eq == std::string::npos ? "" : arg.substr(eq + 1);
    if (key == "--topic")
      f.topic = value;
    else if (key == "--results")
      f.results = value;
    else if (key == "--gib")
      f.gib = std::stod(value);
    else if (key == "--repetitions")
      f.repetitions = std::stoi(value);
    else if (key == "--threads")
      f.threads = std::stoi(value);
    else if (key == "--load")
      f.load = value;
    else if (key == "--form")
      f.form = value;
    else
      fail(ErrorCode::invalid_argument, arg, ": accepted: --topic, --results, --gib, --repetitions, --threads");
  }
  return f;
}

}  // namespace
}  // namespace kdelta::bench

int main(int argc, char** argv) {
  try {
    const auto flags = kdelta::bench::parse(argc, argv);
    if (!flags.load.empty()) return kdelta::bench::load_once(flags.load, flags.form, flags.threads);
    kdelta::bench::run(flags);
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "load_bench: %s\n", e.what());
    return 1;
  }
}
