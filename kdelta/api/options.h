// What a caller sets, what can be checked without a model, and the names that options take. Includes nothing but the
// standard library.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "kdelta/api/export.h"

namespace kdelta {

inline constexpr int64_t kUntilFull = std::numeric_limits<int64_t>::max();  // GenerateOptions::max_tokens

struct LoadOptions {
  std::string model = {};  // directory with config.json and, unless dummy, safetensors files
  // Where the model runs: "cpu", "cuda" (the first), "cuda:N", or "auto": the first CUDA device with room for weights
  // and state, else the CPU; ModelInfo::notes says why that.
  std::string device = "cpu";
  bool exact = false;                 // on a CUDA device: answers to the bit whatever the company, as on the CPU always
  std::string dtype = "bf16";         // activations: "bf16" or "fp32" (the plain parity path)
  std::string state_dtype = "fp32";   // recurrent state: "fp32" or "bf16"
  std::string kda_gate = "factored";  // f_b(f_a(x)), or "composed": f_b f_a made one matrix at loading, or "auto"
  bool dummy_weights = false;         // random weights for any config.json
  bool headers_only = false;  // nothing can be computed: inspect and memory plans; with dummy_weights config.json
                              // alone is read and no weight gets memory
  int ranks = 1;              // of which each holds a part: for headers_only, what one of them takes
  std::string expert_split = "experts";  // how ranks part routed experts: "experts" (whole ones), "width" (of each)
  int threads = 0;                       // 0: every CPU this process may use
  std::string isa = {};                  // "": best of the machine; else the most to use, one of machine_isa()
  std::string force = {};                // "op:variant,op:variant", names as op_variants() lists them
  int64_t max_length = 0;                // tokens of prompt and answer; 0: the model's own limit, at most 32768
  int64_t token_budget = 512;            // tokens per step
  int64_t prefill_grid = 64;             // prompts are cut at multiples of this only; 1: anywhere
  int64_t max_sequences = 1;
  int64_t cache_tokens = 0;  // of all requests together; 0: enough for max_sequences of max_length
  int64_t drafts = 0;        // tokens guessed ahead per step and verified, 0 to 16; no answer changes by them
  // Sizes of decode steps that a CUDA device records at start and then launches as one; 0: none are.
  int64_t graph_rows = 64;
  // The same for steps with prompts in them, of up to so many tokens, in pieces between the attention layers; 0: none
  // are.
  int64_t graph_tokens = 0;
  // Layers that such a step runs op by op too: names as tensors begin, "model.layers.3.block_sparse_moe".
  std::vector<std::string> break_at = {};
  // What is kept of drafts until they are verified: "slots" (a state each), "records" (what leads to that state), or
  // "auto": what takes less memory. No answer changes by it. Without drafts: "auto".
  std::string draft_states = "auto";
  std::string draft_model = {};  // directory of a smaller model of the same vocabulary; empty: looked up in the text
  int64_t prefix_snapshots = 0;  // states kept for prompts that begin alike; 0: none
  bool all_logits = false;       // for logits() and perplexity(); such an engine does not generate
  std::function<void(int64_t done, int64_t total)> progress = {};   // bytes of the checkpoint brought into memory
  std::function<void(int64_t done, int64_t total)> recording = {};  // sizes of steps that a CUDA device has recorded
};

// What the text of an answer must be. Of each step's tokens only those may be chosen that can still lead there, and an
// end exactly where the text is whole; special tokens are no text. An answer that max_tokens cuts is a beginning of
// such a text. Where no token of the vocabulary can follow, the request ends with an error that says so.
struct Constraint {
  enum class Kind : uint8_t {
    json_object,  // any JSON object
    json_schema,  // `text` is a JSON Schema, heeded strictly: a keyword that is not supported is refused by its name
    choice,       // one of `choices`
    regex,        // `text` is a pattern of the whole answer, in the syntax that JavaScript, Python and Rust share
    grammar,      // `text` is GBNF, the grammar syntax of llama.cpp
    text          // any text: what is constrained are a chat's calls
  };
  // A function that may be called.
  struct Tool {
    std::string name;
    std::string parameters = {};  // text of a JSON Schema of its arguments, heeded as json_schema is; empty: any object
  };
  Kind kind = Kind::json_object;
  std::string text = {};
  std::vector<std::string> choices = {};
  // The answer is a message of the model's chat format, and the constraint one of its content: what is thought before
  // is free, and the format's marks come where they must. chat() and a Service set the first two themselves.
  bool chat = false;
  bool thinking = true;  // chat: it begins with a thinking part
  bool calls = false;    // chat: tool calls may follow the content, or come in its place
  // chat: and then there is at least one, and no content; or at most one. Functions that may be called; none: any.
  bool must_call = false, one_call = false;
  std::vector<Tool> tools = {};
};

struct GenerateOptions {
  float temperature = 1, top_p = 1, min_p = 0;
  int32_t top_k = 0;  // 0 or -1: off
  float repetition_penalty = 1, presence_penalty = 0, frequency_penalty = 0;
  std::map<int32_t, float> logit_bias = {};
  uint64_t seed = 0;
  int64_t max_tokens = 256;            // kUntilFull: until the context is full
  int64_t min_tokens = 0;              // at most max_tokens
  std::vector<int32_t> stop_ids = {};  // beside the model's own ends
  bool ignore_eos = false;
  std::vector<std::string> stop = {};         // strings: the text ends before the first of them
  int32_t logprobs = -1;                      // n >= 0: of the chosen and the n best tokens
  bool show_specials = false;                 // names of special tokens appear in the text
  std::optional<Constraint> constraint = {};  // needs a tokenizer; such a request cannot be handed out by start()
  const std::atomic<bool>* cancel = nullptr;  // looked at after every step
  std::function<void(int64_t done, int64_t total)> prefill_progress = {};
};

struct ChatSettings {
  bool thinking = true;
  std::string effort = {};      // K3: low, medium, high, max; empty: nothing is said
  std::string tools_json = {};  // text of a JSON array of tools as in the OpenAI API; empty: none
  // What the prompt says of the answer's form, where the chat format has words for that: "json_object", "json_schema",
  // or nothing. A constraint sees to it.
  std::string answer_format = {}, schema_json = {};
  bool must_call = false;  // the prompt says that tools must be called, where the chat format has words for that
};

struct LogitsOptions {
  std::string out = {};                       // safetensors file
  int64_t chunk = 0;                          // tokens per piece, off the grid of exact mode; 0: the engine's own cuts
  std::set<std::string> dump = {};            // "layers", "router", "state"
  const std::atomic<bool>* cancel = nullptr;  // looked at after every step; throws
};

// Each throws what the Engine would for the same options, before anything is opened. What depends on the model (ids
// within its vocabulary, a prompt within its context, an effort that its chat format knows) the Engine checks.
KDELTA_API void check_options(const LoadOptions& options);
KDELTA_API void check_options(const GenerateOptions& options);
KDELTA_API void check_options(const ChatSettings& settings);
KDELTA_API void check_options(const LogitsOptions& options);
// And that `out` is no file of the model's directory, by whatever name.
KDELTA_API void check_options(const LogitsOptions& options, const std::string& model);

// Text of users must be UTF-8: a tokenizer would take any bytes, but what was said could not be written down again.
// Throws naming `name`, the first byte that belongs to no character and its place.
void check_text(const std::string& text, const std::string& name);

// True for the errors of this library that refuse a value of the caller's. Their message begins with the option's name:
// "threads: -1, expected 0 to 1024".
KDELTA_API bool refuses_value(const std::exception& error);

// What config.json says about the ids and lengths that options may take. Throws like Engine::load.
struct ModelLimits {
  int64_t vocab_size = 0;
  int64_t max_positions = 0;  // 0: not stated
};
KDELTA_API ModelLimits read_limits(const std::string& model);

// The instruction sets of this machine, from "portable" to the best; each includes the ones before it.
KDELTA_API std::vector<std::string> machine_isa();

// The kernels of every op, best first, and the instruction set that each needs: the names of LoadOptions::force.
struct OpVariants {
  struct Variant {
    std::string name, needs;  // an instruction set, or a CUDA device's level
  };
  std::string op;
  std::vector<Variant> variants;
};
KDELTA_API std::vector<OpVariants> op_variants();

}  // namespace kdelta
