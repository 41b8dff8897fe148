#include "frontends/cli/flags.h"

namespace kdelta::cli {

CLI::App* add_bench_serve(CLI::App& bench, BenchServeOptions& o) {
  CLI::App& c = *bench.add_subcommand("serve", "Requests at once to a server: first token, between tokens, whole");
  add_load(c, o.load);
  c.get_option("--model")->required(false);
  add_serving(c, o.load);
  o.load.prefix_snapshots = 0;  // every prompt is new
  c.add_option("--url", o.url, "A server of the OpenAI API, http://HOST[:PORT][/v1], in place of a model");
  c.add_option("--api-key", o.key, "Key for that server");
  c.add_option("--served-model-name", o.model_name, "Name of the model in requests (default: none)");
  c.add_option("--concurrency", o.concurrency, "Requests at once, by commas")
      ->check(CLI::Range(int64_t{1}, int64_t{4096}))
      ->delimiter(',')
      ->allow_extra_args(false)
      ->capture_default_str();
  c.add_option("--request-rate", o.rate, "Requests that begin in a second, at random times; 0: whenever one ends")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  c.add_option("--num-prompts", o.requests, "Requests of a repetition; 0: four times the concurrency")
      ->check(CLI::Range(int64_t{0}, kMostTokens))
      ->capture_default_str();
  c.add_option("-p,--n-prompt,--random-input-len", o.prompt, "Tokens of a prompt, at random")
      ->check(CLI::Range(int64_t{1}, kMostTokens))
      ->capture_default_str();
  c.add_option("-n,--n-gen,--random-output-len", o.generate, "Tokens of an answer")
      ->check(CLI::Range(int64_t{1}, kMostTokens))
      ->capture_default_str();
  c.add_option("--length-spread", o.length_spread, "Lengths differ by that part of themselves, up and down")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  const CLI::Range times(0.0, 1e9);
  c.add_option("--good-first", o.most_first, "A good request's first token comes within so many ms; 0: any")
      ->check(times);
  c.add_option("--good-between", o.most_between, "And the others so many ms apart on average; 0: any")->check(times);
  c.add_option("--good-whole", o.most_whole, "And its last within so many ms; 0: any")->check(times);
  c.add_option("-r,--repetitions", o.repetitions, "Repetitions")->capture_default_str()->check(CLI::Range(1, 1000000));
  c.add_flag("--no-warmup{false}", o.warmup, "Skip the warm-up run");
  c.add_flag("-q,--quiet", o.quiet, "Nothing on stderr but errors");
  c.add_option("-o,--output", o.output, "md, json, jsonl")
      ->capture_default_str()
      ->check(CLI::IsMember({"md", "json", "jsonl"}));
  return &c;
}

}  // namespace kdelta::cli
