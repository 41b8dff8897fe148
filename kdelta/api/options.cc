#include "kdelta/api/options.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "kdelta/api/constraints.h"
#include "kdelta/api/engine_impl.h"
#include "kdelta/core/check.h"
#include "kdelta/io/chat_prompt.h"
#include "kdelta/io/grammar/program.h"
#include "kdelta/io/json.h"
#include "kdelta/io/replaceable.h"
#include "kdelta/io/unicode.h"

namespace kdelta {
namespace {

constexpr int kMostThreads = 1024, kMostRanks = 1024;
constexpr int64_t kMost = int64_t{1} << 30;  // positions and boundaries are 32-bit on the device

void require(bool ok, const char* option, int64_t value, const std::string& want) {
  if (!ok) fail(ErrorCode::invalid_argument, option, ": ", value, ", expected ", want);
}

std::string joined(const std::vector<std::string>& names) {
  std::string out;
  for (const std::string& n : names) out += (out.empty() ? "" : ", ") + n;
  return out;
}

void check_isa(const std::string& isa) {
  if (isa.empty() || parse_isa(isa) <= detect_isa()) return;
  fail(ErrorCode::invalid_argument, "isa: '", isa, "', this machine has: ", joined(machine_isa()));
}

// A mistyped name must not run the default quietly, and a kernel that cannot run here is refused by its name.
void check_force(const LoadOptions& o) {
  Options parsed;
  parsed.parse_force(o.force);
  const IsaLevel most = o.isa.empty() ? detect_isa() : parse_isa(o.isa);
  const Device device = parse_device(o.device);
  const CudaLevel cuda = device.kind == DeviceKind::cuda ? device_properties(device).level : CudaLevel::none;
  const std::vector<OpVariants> ops = op_variants();
  for (const auto& [op, variant] : parsed.force) {
    std::vector<std::string> names;
    const auto known = std::find_if(ops.begin(), ops.end(), [&, &op = op](const OpVariants& v) { return v.op == op; });
    if (known == ops.end()) {
      for (const OpVariants& v : ops) names.push_back(v.op);
      fail(ErrorCode::invalid_argument, "force: no op '", op, "', known: ", joined(names));
    }
    const OpVariants::Variant* found = nullptr;
    for (const OpVariants::Variant& v : known->variants) {
      names.push_back(v.name);
      if (v.name == variant) found = &v;
    }
    if (found == nullptr)
      fail(ErrorCode::invalid_argument, "force: op ", op, " has no variant '", variant, "', known: ", joined(names));
    const std::string least = found->needs;  // of the processor, or of another device
    bool here = false;
    for (int level = 0; level <= static_cast<int>(most); ++level)
      here = here || least == to_string(static_cast<IsaLevel>(level));
    for (int level = 1; level <= static_cast<int>(cuda); ++level)
      here = here || least == to_string(static_cast<CudaLevel>(level));
    if (!here)
      fail(ErrorCode::invalid_argument, "force: ", op, ":", variant, " needs ", least, ", the most to use here is ",
           to_string(most));
  }
}

}  // namespace

DType parse_float_type(const std::string& name, const char* option) {
  if (name == "bf16" || name == "bfloat16") return DType::bf16;
  if (name == "fp32" || name == "float32") return DType::f32;
  fail(ErrorCode::invalid_argument, option, ": '", name, "', accepted: bf16, fp32");
}

Device parse_device(const std::string& name) {
  if (name == "cpu") return {};
  if (name == "auto") return cuda_device_count() > 0 ? Device{DeviceKind::cuda, 0} : Device{};
  const auto refuse = [&](const std::string& why) { fail(ErrorCode::invalid_argument, "device: '", name, "', ", why); };
  constexpr std::string_view kCuda = "cuda";
  const std::string index = name.starts_with("cuda:") ? name.substr(kCuda.size() + 1) : name == kCuda ? "0" : "";
  if (index.empty() || index.size() > 3 || index.find_first_not_of("0123456789") != std::string::npos)
    refuse("expected cpu, cuda, cuda:N or auto");
  const Device device{DeviceKind::cuda, std::stoi(index)};
  if (device.index >= cuda_device_count()) refuse(cuda_device_summary());
  if (const std::string why = device_refusal(device); !why.empty()) refuse(why);  // before anything is read
  return device;
}

std::optional<DraftStates> parse_draft_states(const std::string& name) {
  if (name == "auto") return std::nullopt;
  if (name == "slots") return DraftStates::slots;
  if (name == "records") return DraftStates::records;
  fail(ErrorCode::invalid_argument, "draft_states: '", name, "', accepted: slots, records, auto");
}

ExpertSplit parse_expert_split(const std::string& name) {
  if (name == "experts") return ExpertSplit::experts;
  if (name == "width") return ExpertSplit::width;
  fail(ErrorCode::invalid_argument, "expert_split: '", name, "', accepted: experts, width");
}

void check_options(const LoadOptions& o) {
  (void)parse_float_type(o.dtype, "dtype");
  (void)parse_float_type(o.state_dtype, "state_dtype");
  (void)parse_gate_choice(o.kda_gate);
  (void)parse_draft_states(o.draft_states);
  (void)parse_device(o.device);
  (void)parse_expert_split(o.expert_split);
  require(o.ranks >= 1 && o.ranks <= kMostRanks, "ranks", o.ranks, str("1 to ", kMostRanks));
  require(o.ranks == 1 || o.headers_only, "ranks", o.ranks, "1, except with headers_only");
  check_isa(o.isa);
  check_force(o);
  require(o.threads >= 0 && o.threads <= kMostThreads, "threads", o.threads, str("0 to ", kMostThreads));
  require(o.max_length >= 0 && o.max_length <= kMost, "max_length", o.max_length, str("0 to ", kMost));
  require(o.max_sequences >= 1 && o.max_sequences <= kMost, "max_sequences", o.max_sequences, str("1 to ", kMost));
  require(o.cache_tokens >= 0 && o.cache_tokens <= kMost, "cache_tokens", o.cache_tokens, str("0 to ", kMost));
  require(o.graph_rows >= 0 && o.graph_rows <= kMost, "graph_rows", o.graph_rows, str("0 to ", kMost));
  require(o.graph_tokens >= 0 && o.graph_tokens <= kMost, "graph_tokens", o.graph_tokens, str("0 to ", kMost));
  require(o.drafts >= 0 && o.drafts <= 16, "drafts", o.drafts, "0 to 16");
  if (o.draft_states != "auto" && o.drafts == 0)
    fail(ErrorCode::invalid_argument, "draft_states: given, but drafts is 0");
  if (!o.draft_model.empty() && o.drafts == 0) fail(ErrorCode::invalid_argument, "draft_model: given, but drafts is 0");
  require(o.prefix_snapshots >= 0 && o.prefix_snapshots <= kMost, "prefix_snapshots", o.prefix_snapshots,
          str("0 to ", kMost));
  // Of two that do not go together the one that somebody chose is wrong.
  if (o.token_budget == LoadOptions{}.token_budget)
    require(o.max_sequences <= o.token_budget, "max_sequences", o.max_sequences,
            str("1 to ", o.token_budget, " (token_budget)"));
  require(o.token_budget >= o.max_sequences && o.token_budget <= kMost, "token_budget", o.token_budget,
          str(o.max_sequences, o.max_sequences > 1 ? " (max_sequences)" : "", " to ", kMost));
  require(o.prefill_grid >= 1 && o.prefill_grid <= kMost, "prefill_grid", o.prefill_grid, str("1 to ", kMost));
}

void check_options(const GenerateOptions& o) {
  check_sampling_params({.temperature = o.temperature,
                         .top_p = o.top_p,
                         .min_p = o.min_p,
                         .repetition_penalty = o.repetition_penalty,
                         .presence_penalty = o.presence_penalty,
                         .frequency_penalty = o.frequency_penalty});
  require(o.top_k >= -1, "top_k", o.top_k, ">= 1, or 0 or -1 for off");
  require(o.max_tokens >= 1, "max_tokens", o.max_tokens, ">= 1");
  require(o.min_tokens >= 0, "min_tokens", o.min_tokens, ">= 0");
  require(o.min_tokens <= o.max_tokens, "min_tokens", o.min_tokens, str("at most max_tokens, ", o.max_tokens));
  require(o.logprobs >= -1, "logprobs", o.logprobs, ">= 0, or -1 for none");
  for (const auto& [token, bias] : o.logit_bias) {
    require(token >= 0, "logit_bias: token", token, ">= 0");
    if (!(bias < INFINITY))
      fail(ErrorCode::invalid_argument, "logit_bias: ", bias, " for token ", token,
           ", expected a finite number or -infinity");
  }
  if (o.constraint) (void)grammar::Program(grammar_of(*o.constraint, nullptr));
  for (const std::string& s : o.stop)
    if (s.empty()) fail(ErrorCode::invalid_argument, "stop: an empty string, which ends every answer");
}

void check_options(const ChatSettings& s) {
  const char* accepted[] = {"", "low", "medium", "high", "max"};
  if (std::find(std::begin(accepted), std::end(accepted), s.effort) == std::end(accepted))
    fail(ErrorCode::invalid_argument, "effort: '", printable(s.effort), "', accepted: low, medium, high, max");
  if (!s.tools_json.empty())
    (void)has_tools(parse_json(s.tools_json, {.name = "tools", .code = ErrorCode::invalid_argument}), "tools");
}

void check_options(const LogitsOptions& o) {
  namespace fs = std::filesystem;
  require(o.chunk >= 0 && o.chunk <= kMost, "chunk", o.chunk, str("0 for the engine's own cuts, to ", kMost));
  for (const std::string& what : o.dump)
    if (what != "layers" && what != "router" && what != "state")
      fail(ErrorCode::invalid_argument, "dump: '", what, "', accepted: layers, router, state");
  if (o.out.empty()) fail(ErrorCode::invalid_argument, "out: empty name");
  std::error_code unknown;
  const fs::file_status status = fs::symlink_status(o.out, unknown);
  if (fs::is_symlink(status))
    fail(ErrorCode::invalid_argument, "out: '", o.out, "' is a symbolic link to '",
         fs::read_symlink(o.out, unknown).string(), "', expected a file or a new name");
  if (fs::exists(status) && !fs::is_regular_file(status))
    fail(ErrorCode::invalid_argument, "out: '", o.out, "' exists and is no regular file");
  try {
    check_not_protected(o.out);
  } catch (const Error& e) {
    fail(e.code(), "out: ", e.what());
  }
  const fs::path folder = fs::path(o.out).parent_path();
  if (!folder.empty() && !fs::is_directory(folder, unknown))
    fail(ErrorCode::invalid_argument, "out: '", o.out, "': there is no folder ", folder.string());
}

void check_options(const LogitsOptions& o, const std::string& model) {
  namespace fs = std::filesystem;
  check_options(o);
  std::error_code unknown;
  // Whatever the directory calls its own: weights, config, tokenizer, under any name and behind any link.
  for (const fs::directory_entry& entry : fs::directory_iterator(model, unknown))
    if (fs::equivalent(o.out, entry.path(), unknown))
      fail(ErrorCode::invalid_argument, "out: '", o.out, "' is ", entry.path().string(), ", a file of the model");
}

void check_text(const std::string& text, const std::string& name) {
  if (is_utf8(text)) return;
  size_t at = 0;
  for (Char c; (c = decode_char(text, at)).state == Utf8::valid;) at += static_cast<size_t>(c.bytes);
  fail(ErrorCode::invalid_argument, name, ": ", printable(text.substr(at, 1)), " at byte ", at,
       " is no UTF-8, expected UTF-8 text (iconv converts from other encodings)");
}

bool refuses_value(const std::exception& error) {
  const auto* e = dynamic_cast<const Error*>(&error);
  return e != nullptr && e->code() == ErrorCode::invalid_argument;
}

ModelLimits read_limits(const std::string& model) {
  const ModelConfig c = read_config(model);
  return {.vocab_size = c.vocab_size, .max_positions = c.max_positions};
}

std::vector<std::string> machine_isa() {
  std::vector<std::string> names;
  for (int level = 0; level <= static_cast<int>(detect_isa()); ++level)
    names.emplace_back(to_string(static_cast<IsaLevel>(level)));
  return names;
}

}  // namespace kdelta
