// kdelta_bench [--threads=N] [--isa=NAME] [--topic=NAME [--results=FOLDER]] [--roofs] [Google Benchmark flags]
// --roofs measures the machine alone; --topic also writes the results file. Filter with --benchmark_filter=REGEX.
#include <benchmark/benchmark.h>

#include <cstdio>
#include <exception>
#include <string>

#include "bench/support/machine.h"
#include "bench/support/report.h"

namespace {

using namespace kdelta::bench;

struct Flags {
  int threads = 0;
  kdelta::IsaLevel isa = kdelta::detect_isa();
  std::string topic, results = "bench/results", command = "kdelta_bench";
  bool roofs = false;
};

// Removes our own flags from argv; the rest belongs to Google Benchmark.
Flags take_flags(int& argc, char** argv) {
  Flags f;
  int kept = 1;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    f.command += " " + arg;
    const size_t eq = arg.find('=');
    const std::string key = arg.substr(0, eq), value = eq == std::string::npos ? "" : arg.substr(eq + 1);
    if (key == "--threads")
      f.threads = std::stoi(value);
    else if (key == "--isa")
      f.isa = kdelta::parse_isa(value);
    else if (key == "--topic")
      f.topic = value;
    else if (key == "--results")
      f.results = value;
    else if (key == "--roofs")
      f.roofs = true;
    else
      argv[kept++] = argv[i];
  }
  argc = kept;
  return f;
}

void print_roofs(RoofMeter& meter) {
  for (RoofKind kind : {RoofKind::read, RoofKind::update, RoofKind::fma_f32, RoofKind::dot_bf16, RoofKind::tile_bf16}) {
    const Roof roof{.kind = kind};
    for (int i = 0; i < 5; ++i) meter.sample(roof);
    std::printf("%-10s %9.1f G%s  %s\n", to_string(kind), meter.best(roof) * 1e-9,
                roof.is_bandwidth() ? "B/s" : "FLOP/s", meter.how(roof).c_str());
  }
}

int run(int argc, char** argv) {
  const Flags flags = take_flags(argc, argv);
  // Three repetitions are the least that has a spread; a flag on the command line comes later and wins.
  std::vector<char*> args = {argv[0]};
  char repetitions[] = "--benchmark_repetitions=5", time[] = "--benchmark_min_time=0.2";
  args.push_back(repetitions);
  args.push_back(time);
  for (int i = 1; i < argc; ++i) args.push_back(argv[i]);
  int count = static_cast<int>(args.size());
  benchmark::Initialize(&count, args.data());
  if (benchmark::ReportUnrecognizedArguments(count, args.data())) return 2;

  Session session_here(flags.threads, flags.isa);
  session() = &session_here;
  const Machine m = this_machine();
  std::printf("%s, %s, %d threads, commit %s, %s\n", m.cpu.c_str(), m.isa.c_str(), session_here.exec().threads->size(),
              m.commit.c_str(), m.date.c_str());
  Report report(session_here);
  if (flags.roofs) {
    print_roofs(session_here.roofs());
  } else {
    session_here.register_cases();
    benchmark::RunSpecifiedBenchmarks(&report);
  }
  if (!flags.topic.empty())
    std::printf("written: %s\n",
                write_results(session_here, report, flags.results, flags.topic, flags.command).c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "kdelta_bench: %s\n", e.what());
    return 1;
  }
}
