#include "frontends/cli/sampling.h"

#include <charconv>
#include <filesystem>
#include <random>

#include "frontends/cli/terminal.h"
#include "frontends/cli/usage.h"

namespace kdelta::cli {
namespace {

// The whole of [begin, end) as one number that its type holds.
template <class T>
bool parses(const char* begin, const char* end, T& value) {
  const auto r = std::from_chars(begin, end, value);
  return r.ec == std::errc() && r.ptr == end;
}

// "ID=BIAS" or "ID+BIAS" / "ID-BIAS" (llama.cpp's spelling).
void add_bias(const std::string& text, GenerateOptions& o) {
  const size_t cut = text.find_first_of("=+-");
  const size_t value = cut == std::string::npos ? cut : text[cut] == '=' || text[cut] == '+' ? cut + 1 : cut;
  int32_t id = -1;
  float bias = 0;
  const char* end = text.data() + text.size();
  const bool ok = cut != std::string::npos && cut > 0 && parses(text.data(), text.data() + cut, id) &&
                  parses(text.data() + value, end, bias) && value < text.size();
  if (!ok) throw UsageError("--logit-bias: '" + text + "', expected ID=BIAS");
  o.logit_bias[id] = bias;
}

uint64_t parse_seed(const std::string& text) {
  uint64_t seed = 0;
  if (text.empty() || text == "-1") return std::random_device{}();
  if (!parses(text.data(), text.data() + text.size(), seed))
    throw UsageError("--seed: '" + text + "', expected 0 to 2^64-1, or -1 for a random one");
  return seed;
}

std::string schema_text(const std::string& text_or_file) {
  if (text_or_file.starts_with('{')) return text_or_file;
  std::error_code no_file;
  if (!std::filesystem::is_regular_file(text_or_file, no_file))
    throw UsageError("--json-schema: '" + text_or_file + "' is no file, and no text that begins with {");
  return read_text(text_or_file);
}

std::optional<Constraint> constraint_of(const SamplingFlags& f) {
  std::vector<Constraint> given;
  using Kind = Constraint::Kind;
  if (!f.grammar.empty()) given.push_back({.kind = Kind::grammar, .text = read_text(f.grammar)});
  if (const auto& s = f.json_schema; !s.empty()) given.push_back({.kind = Kind::json_schema, .text = schema_text(s)});
  if (!f.regex.empty()) given.push_back({.kind = Kind::regex, .text = f.regex});
  if (!f.choices.empty()) given.push_back({.kind = Kind::choice, .choices = f.choices});
  if (f.json_object) given.push_back({.kind = Kind::json_object});
  if (given.size() > 1)
    throw UsageError("--grammar, --json-schema, --json-object, --regex, --choice: more than one given");
  if (given.empty()) return std::nullopt;
  return given.front();
}

GenerateOptions given_over(GenerateOptions o, const SamplingFlags& f) {
  o.temperature = f.temperature.value_or(o.temperature);
  o.top_p = f.top_p.value_or(o.top_p);
  o.top_k = f.top_k.value_or(o.top_k);
  o.min_p = f.min_p.value_or(o.min_p);
  o.repetition_penalty = f.repetition_penalty.value_or(o.repetition_penalty);
  o.presence_penalty = f.presence_penalty.value_or(o.presence_penalty);
  o.frequency_penalty = f.frequency_penalty.value_or(o.frequency_penalty);
  o.seed = parse_seed(f.seed);
  o.max_tokens = f.max_tokens.value_or(o.max_tokens);
  if (o.max_tokens == -1) o.max_tokens = kUntilFull;
  o.min_tokens = f.min_tokens;
  o.logprobs = f.logprobs.value_or(-1);
  o.ignore_eos = f.ignore_eos;
  o.show_specials = f.show_specials;
  o.stop = f.stop;
  for (const std::string& b : f.logit_bias) add_bias(b, o);
  o.constraint = constraint_of(f);
  return o;
}

}  // namespace

void check_sampling(const SamplingFlags& flags, const std::string& model) {
  if (flags.logprobs && *flags.logprobs < 0)
    throw UsageError("--logprobs: " + std::to_string(*flags.logprobs) + ", expected >= 0");
  if (flags.max_tokens && *flags.max_tokens < 1 && *flags.max_tokens != -1)
    throw UsageError("--max-tokens: " + std::to_string(*flags.max_tokens) +
                     ", expected >= 1, or -1 for until the context is full");
  const GenerateOptions given = given_over({}, flags);
  check_options(given);
  std::vector<int32_t> biased;
  for (const auto& [token, bias] : given.logit_bias) biased.push_back(token);
  if (!biased.empty()) check_ids("--logit-bias", biased, read_limits(model).vocab_size);
}

void note_seed(const SamplingFlags& flags, const GenerateOptions& options) {
  if (!flags.seed.empty() && flags.seed != "-1" && options.temperature == 0)
    say("note: --seed {}: of no effect, at temperature 0 nothing is drawn\n", flags.seed);
}

GenerateOptions generate_options(const Engine& engine, const SamplingFlags& flags) {
  return given_over(engine.default_generation(), flags);
}

}  // namespace kdelta::cli
