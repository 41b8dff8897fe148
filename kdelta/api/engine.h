// The C++ door: load a model, turn text into tokens, generate, look inside. Includes nothing but the standard library.
// Every function throws std::runtime_error (in fact kdelta::Error) with a message that names what was given and what is
// accepted. An Engine runs one request at a time for one caller; it is not for several threads at once.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kdelta/api/export.h"
#include "kdelta/api/options.h"

namespace kdelta {

struct MemoryReport {
  int64_t program = 0;  // what the process held when loading began, the tokenizer, and code still to be touched
  int64_t weights_mapped = 0, weights_converted = 0;
  int64_t slots = 0, pages = 0, scratch = 0, logits = 0, batch = 0;
  int64_t host = 0;                             // lists, prefix cache, requests at full length
  int64_t drafter = 0;                          // of the draft model, its weights included
  int64_t sequence_bytes = 0, token_bytes = 0;  // of a sequence's slots, drafts included; per token of context
  std::string draft_states = {};                // how drafts are kept: slots, records; empty: there are none
  int64_t total() const {
    return program + weights_mapped + weights_converted + slots + pages + scratch + logits + batch + host + drafter;
  }
};

struct TokenLogprobs {
  int32_t token = 0;
  float logprob = 0;
  std::vector<std::pair<int32_t, float>> top;
};

struct Generation {
  std::string text;
  std::vector<int32_t> tokens;
  std::vector<TokenLogprobs> logprobs;
  std::string finish_reason;  // "stop", "length", "cancelled"; of generate_many() also "error"
  std::string error;          // with "error"
  bool refused = false;       // with "error": the request asks for what cannot be; nothing was computed
  std::string stop;           // the stop string that ended it
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;                       // of the prompt: not computed, an earlier prompt began alike
  std::string cache_limit;                         // why no more of it: "the prompt differs behind the reused part"
  double prefill_seconds = 0, decode_seconds = 0;  // of generate_many() 0: requests share steps
};

// A request that was stopped in the middle of its answer.
struct Started {
  Generation generation;    // what was answered so far; finish_reason "" while there is a state
  std::vector<char> state;  // of the whole request; empty: it has ended
};

// What load_prefix() made of a state.
struct LoadedPrefix {
  int64_t tokens = 0;                   // that it is of
  int64_t kept = 0;                     // all of them, or none: it is foreign, or all room is in use
  bool foreign = false;                 // the prompt that was named does not begin with its tokens
  std::string computed_otherwise = {};  // in words, when other last bits would have been computed here
};

// What a request that goes on is told anew; all else lies in its state.
struct ResumeOptions {
  std::vector<std::string> stop;
  bool show_specials = false;
  const std::atomic<bool>* cancel = nullptr;
};

// New tokens and the text they complete (valid UTF-8, may be empty).
using OnDelta = std::function<void(const std::string& text, const std::vector<int32_t>& tokens)>;

struct ChatToolCall {
  std::string id, name;
  std::string arguments;  // text of a JSON object
};

struct ChatMessage {
  std::string role;  // system, user, assistant, tool
  std::string content;
  std::string name = "";       // of the speaker; of a tool result: the tool
  std::string reasoning = "";  // assistant
  std::vector<ChatToolCall> calls = {};
  std::string call_id = "";  // tool result
};

struct ChatReply {
  std::string reasoning, content;
  std::vector<ChatToolCall> calls;
  Generation generation;
};

using OnChatDelta = std::function<void(const std::string& reasoning, const std::string& content)>;

struct KDELTA_API Perplexity {
  double nll = 0;      // summed over scored tokens, natural log
  int64_t tokens = 0;  // scored
  double value() const;
};

// One of many requests.
struct GenerateTask {
  std::vector<int32_t> prompt;
  GenerateOptions options;  // without cancel and prefill_progress
};

// Work of the engine since it was loaded, all requests together.
struct WorkCounts {
  int64_t steps = 0, prefill_tokens = 0, decode_tokens = 0, drafts = 0, accepted_drafts = 0, preempted = 0,
          cached_tokens = 0;
  int64_t followed = 0;  // requests that waited for a beginning which another computed, and started behind it
};

struct BenchTimes {
  double prefill_seconds = 0, decode_seconds = 0;
};

struct ConcurrentTimes {
  double seconds = 0;       // until the last request has ended
  double roof_seconds = 0;  // the least the ops could have taken, by rates sampled just before; 0: not known
};

struct ModelInfo {
  std::string kind, architecture;
  std::vector<std::pair<std::string, std::string>> fields;  // name, value: for people
  int64_t parameters = 0, tensors = 0, files = 0, bytes = 0;
  std::vector<std::string> notes;
  struct Group {
    std::string name, dtype;  // a dtype, or MXFP8, MXFP4: codes and scales together
    std::string inputs;       // "MXFP8 floor": quantised so before they are multiplied; "": in the model's own type
    int64_t tensors = 0, bytes = 0;
  };
  std::vector<Group> groups;
  struct Tensor {
    std::string name, dtype, shape, file;
    int64_t bytes = 0;
  };
  std::vector<Tensor> tensor_list;
  std::string refused;  // why kdelta does not load it; empty: it does
};

// What a checkpoint holds whose weights are in a format that kdelta writes for other engines and does not compute with
// (int8), from its headers; none for every other. Throws as Engine::load does.
KDELTA_API std::optional<ModelInfo> describe_foreign(const std::string& directory);

// A tensor under its name in the checkpoint. `data` is used where it lies for as long as the engine uses the tensor,
// and must not change.
struct WeightTensor {
  std::string name, dtype;  // "model.layers.0.self_attn.b_proj.weight", "BF16"
  std::vector<int64_t> shape;
  std::shared_ptr<const void> data;
};

// One op of a step as choose() would run it, with the least it must move and compute.
struct StepOp {
  std::string op, variant;
  int64_t calls = 0;
  double bytes = 0, flops = 0;
};

class KDELTA_API Engine {
 public:
  struct KDELTA_HIDDEN Impl;  // for the files of this folder
  static Engine load(const LoadOptions& options);
  ~Engine();
  Engine(Engine&&) noexcept;
  Engine& operator=(Engine&&) noexcept;

  const ModelInfo& info() const;
  const MemoryReport& memory() const;
  // Tells weights apart: the number that goes with states and answers. 0 of shapes alone.
  uint64_t model_id() const;
  int64_t vocab_size() const;
  int64_t max_length() const;
  std::string device_summary() const;  // "cpu, 2 threads, avx512_bf16"
  // What answers depend on beside model and request, but for their last bits: "bf16, state fp32, gate factored".
  std::string precision() const;
  // The ops of one step of `tokens` prompt tokens, or of one token for each of `tokens` sequences, without running it.
  std::vector<StepOp> explain_step(int64_t tokens, bool decode) const;
  // Sampling defaults of the checkpoint (generation_config.json), else the built-in ones.
  GenerateOptions default_generation() const;

  bool has_tokenizer() const;
  // Why there is none, when there is none.
  const std::string& tokenizer_problem() const;
  // Ordinary text; or with the names of special tokens in it recognised. Throws for what is no UTF-8, as chat_prompt()
  // and with it chat() do.
  std::vector<int32_t> tokenize(const std::string& text, bool specials = false) const;
  std::string detokenize(const std::vector<int32_t>& ids, bool show_specials = false) const;
  // The bytes of a token, which may be part of a character; the name of a special token.
  std::string token_bytes(int32_t id) const;

  // Throws what generate() would refuse. Looks at no state: any thread may ask while another generates.
  void check(const GenerateTask& task) const;
  // Continues `prompt`. on_delta may be empty.
  Generation generate(const std::vector<int32_t>& prompt, const GenerateOptions& options, const OnDelta& on_delta = {});

  // generate() that stops behind the first `tokens` tokens of the answer (or a few more, with drafts) and hands out the
  // request's whole state as bytes, versioned and checksummed: the prompt can be computed in one process and the answer
  // in another, on any number of threads and with other drafts. Stop strings may still cut the answer later: text that
  // could be the beginning of one is not in the generation yet.
  Started start(const std::vector<int32_t>& prompt, const GenerateOptions& options, int64_t tokens = 1,
                const OnDelta& on_delta = {});
  // Goes on where start() stopped: the next token comes from a decode row, nothing is computed twice, and both
  // generations joined are that of generate(), to the bit if both engines use one instruction set, form of the decay
  // gate and forced variants. Throws naming `source` for bytes that are torn, damaged, foreign, of
  // another version, of another model, or of other dtypes than this engine's.
  Generation resume(std::span<const char> state, const ResumeOptions& options, const OnDelta& on_delta = {},
                    const std::string& source = "state");

  // What is kept of the beginning of `prompt` (LoadOptions::prefix_snapshots), for another process to start behind;
  // empty when nothing is.
  std::vector<char> save_prefix(const std::vector<int32_t>& prompt) const;
  // Keeps it: requests whose prompts begin with its tokens start behind them, and are answered to the bit as if this
  // engine had computed them unless it says that they were computed otherwise. A state that `prompt`, if any, does not
  // begin with is of no use and not kept. Throws as resume() does.
  LoadedPrefix load_prefix(std::span<const char> state, const std::string& source = "state",
                           const std::vector<int32_t>* prompt = nullptr);

  // Answers as many requests at once as max_sequences allows. next() gives them one by one until it returns false;
  // done() hears of each, by its number, in the order in which they end. A request that cannot be served ends with
  // "error"; the others go on. After cancel the rest ends as "cancelled".
  void generate_many(const std::function<bool(GenerateTask*)>& next,
                     const std::function<void(int64_t number, Generation generation)>& done,
                     const std::atomic<bool>* cancel = nullptr);

  // New weights in place of the old ones, all or nothing: when one throws, every answer is as before. From a directory:
  // a whole checkpoint of the same model, tensors in the same formats; config, tokenizer and memory stay. Or single
  // tensors: what is made of several (a composed gate, packed convolution taps) is made again of new and old ones, and
  // taps that come as they are kept ("conv1d.weight", [taps, q|k|v channels]) count before the three they are made of.
  // Prefixes of earlier prompts are forgotten. Throws Error(invalid_argument) while a request runs (from a callback)
  // and for dummy weights, Error(bad_file) naming the tensor or field that is missing, misshapen, of another format, or
  // asked for by nobody. The draft model keeps its weights: it guesses, and no answer depends on it.
  void reload(const std::string& directory);
  void reload(const std::vector<WeightTensor>& tensors);

  WorkCounts work() const;
  // Receives from now on, after each step, which tokens of which request it ran and why; empty: nobody.
  void explain_steps(std::function<void(const std::string&)> log);

  // The ids of a conversation in the model's own chat format, ending where the assistant's answer begins. Text of
  // messages can never become a control token.
  std::vector<int32_t> chat_prompt(const std::vector<ChatMessage>& messages, const ChatSettings& settings) const;
  // Generates the assistant's next message and takes it apart. Stop strings are refused: an answer has structure.
  ChatReply chat(const std::vector<ChatMessage>& messages, const ChatSettings& settings, const GenerateOptions& options,
                 const OnChatDelta& on_delta = {});
  // Messages as JSON lines in the form of the OpenAI API (tool calls and "reasoning" included). Throws naming `source`
  // and the line.
  static std::vector<ChatMessage> read_messages(const std::string& lines, const std::string& source);
  // Throws Error(unsupported) when the model's vocabulary has no chat format.
  void check_chat() const;
  // An answer to chat_prompt() taken apart; its generation is left empty.
  ChatReply read_answer(const Generation& answer, bool thinking = true) const;

  // Logits of every position [T, vocabulary] and what `dump` names, written as safetensors with the tensor names of the
  // goldens. Needs all_logits.
  void logits(const std::vector<int32_t>& ids, const LogitsOptions& options);
  // Windows of `window` tokens, each from an empty state; every position but a window's first is scored. Needs
  // all_logits. Throws Error(failed) naming the token behind which a logit is not finite.
  Perplexity perplexity(const std::vector<int32_t>& ids, int64_t window,
                        const std::function<void(int64_t done, int64_t total)>& progress = {},
                        const std::atomic<bool>* cancel = nullptr);
  // One prefill of `prompt` random tokens behind `depth` others, then `generate` single steps.
  BenchTimes bench(int64_t prompt, int64_t generate, int64_t depth);
  // `concurrency` requests of `prompt` random tokens at once, `generate` tokens each. At most max_sequences run at the
  // same time.
  ConcurrentTimes bench_concurrent(int64_t concurrency, int64_t prompt, int64_t generate);

 private:
  friend class ServiceImpl;
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// "0.1.0 (commit abc, g++ 12.2.0)"
KDELTA_API std::string version();

}  // namespace kdelta
