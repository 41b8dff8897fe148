#include "frontends/cli/flags.h"

namespace kdelta::cli {
namespace {

std::string list_of(const std::vector<std::string>& names) {
  std::string out;
  for (const std::string& n : names) out += (out.empty() ? "" : ", ") + n;
  return out;
}

}  // namespace

void add_load(CLI::App& c, LoadOptions& o) {
  c.add_option("model,-m,--model,--model-path", o.model, "Checkpoint directory")
      ->required()
      ->check(CLI::ExistingDirectory);
  c.add_option("--device", o.device,
               "Where the model runs: cpu, cuda, cuda:N, auto (the first CUDA device with room for it, else the CPU)")
      ->capture_default_str();
  c.add_flag(
      "--exact", o.exact,
      "On a CUDA device: an answer is the same to the bit whatever else runs beside it, at some cost in time (the "
      "CPU is always exact)");
  c.add_option("--dtype", o.dtype, "Activations: bf16, fp32 (the plain parity path)")
      ->capture_default_str()
      ->check(CLI::IsMember({"bf16", "bfloat16", "fp32", "float32"}));
  c.add_option("--state-dtype", o.state_dtype, "Recurrent state: fp32, bf16")
      ->capture_default_str()
      ->check(CLI::IsMember({"bf16", "bfloat16", "fp32", "float32"}));
  c.add_option("--kda-gate", o.kda_gate,
               "Decay gate of KDA layers: factored, composed (one matrix made at loading: more memory, one projection "
               "less: answers change by rounding), auto (factored, unless a stored measurement with this instruction "
               "set, near these sizes, has composed "
               "faster by more than its spread; the row that decided is shown)")
      ->capture_default_str()
      ->check(CLI::IsMember({"factored", "composed", "auto"}));
  c.add_option("-t,--threads", o.threads, "Threads; 0: every CPU this process may use")->capture_default_str();
  c.add_option(
       "-c,--max-model-len,--ctx-size", o.max_length,
       "Most tokens of a prompt and its answer together; memory is planned for it. 0: the model's limit, at most 32768")
      ->capture_default_str();
  c.add_option(
       "-b,--max-num-batched-tokens", o.token_budget,
       "Most tokens that one step computes, of all requests together: long prompts run in pieces of this size. More: "
       "faster prompts and more scratch memory; fewer: running answers wait less for a prompt beside them")
      ->capture_default_str();
  c.add_option("--isa", o.isa,
               "Best instruction set to use, of: portable, avx2, avx512, avx512_bf16, amx; this machine has: " +
                   list_of(machine_isa()));
  c.add_option("--force", o.force,
               "Kernels to use in place of the best: OP:VARIANT[,OP:VARIANT...], as in linear:avx2,kda:portable; "
               "'inspect MODEL --ops' lists every op with its variants");
  c.add_option_function<std::string>(
       "--load-format", [&o](const std::string& f) { o.dummy_weights = f == "dummy"; },
       "auto, or dummy: random weights for any config.json")
      ->check(CLI::IsMember({"auto", "dummy"}));
}

void add_drafts(CLI::App& c, LoadOptions& o) {
  c.add_option("--drafts", o.drafts, "Tokens guessed ahead per step and verified, 0 to 16; no answer changes by them")
      ->capture_default_str()
      ->check(CLI::Range(0, 16));
  c.add_option(
       "--draft-states", o.draft_states,
       "What is kept of drafts: slots (a state each), records (what leads there), auto (what takes less memory)")
      ->capture_default_str()
      ->check(CLI::IsMember({"slots", "records", "auto"}));
  c.add_option("--draft-model", o.draft_model, "Smaller model that guesses; without it the text itself is looked up")
      ->check(CLI::ExistingDirectory);
}

void add_serving(CLI::App& c, LoadOptions& o) {
  add_drafts(c, o);
  o.max_sequences = 16;
  o.prefix_snapshots = 16;
  c.add_option("-N,--max-num-seqs", o.max_sequences,
               "Most requests that run at once, each with memory for its state; the others wait in a queue")
      ->capture_default_str();
  c.add_option("--cache-tokens", o.cache_tokens, "Tokens of context of all together; 0: enough for all at full length")
      ->capture_default_str();
  c.add_option("--prefix-snapshots", o.prefix_snapshots, "States kept for prompts that begin alike; 0: none")
      ->capture_default_str();
}

}  // namespace kdelta::cli
