#include "kdelta/api/engine.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <filesystem>

#include "kdelta/api/available_memory.h"
#include "kdelta/api/engine_impl.h"
#include "kdelta/api/inspect.h"
#include "kdelta/core/check.h"
#include "kdelta/core/cpu/memory.h"
#include "kdelta/io/json_reader.h"
#include "kdelta/io/prefault.h"

namespace kdelta {
namespace {

constexpr int64_t kDefaultMaxLength = 32768;

Options op_options(const LoadOptions& o) {
  Options out;
  out.threads = o.threads;
  out.exact = o.exact;
  if (!o.isa.empty()) out.isa = parse_isa(o.isa);
  out.parse_force(o.force);
  return out;
}

// Steps of 1, 2, 4, 8, 12, 16, 24, 32, 48, ... sequences, with drafts and without: a step is padded by a third at most.
std::vector<runtime::Bucket> decode_buckets(const runtime::EngineConfig& c, int64_t most) {
  std::vector<runtime::Bucket> all;
  most = std::min(most, c.max_sequences);
  for (int64_t rows = 1; most > 0;) {
    all.push_back({.rows = rows, .row_tokens = 1});
    if (c.drafts > 0) all.push_back({.rows = rows, .row_tokens = 1 + c.drafts});
    if (rows == most) break;
    const int64_t power = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(rows)));
    rows = std::min(most, rows < 8 ? 2 * rows : rows == power ? power + power / 2 : 2 * power);
  }
  return all;
}

// Steps of 64, 96, 128, 192, 256, ... tokens with prompts among them.
void add_mixed_buckets(runtime::EngineConfig& c, int64_t most) {
  most = std::min(most, c.token_budget);
  for (int64_t tokens = 64; most > 0;) {
    c.buckets.push_back({.rows = c.max_sequences, .mixed_tokens = std::min(tokens, most)});
    if (tokens >= most) break;
    const int64_t power = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(tokens)));
    tokens = tokens == power ? power + power / 2 : 2 * power;
  }
}

runtime::EngineConfig engine_config(const LoadOptions& o, const LoadedModel& loaded) {
  const ModelConfig& model = loaded.config;
  runtime::EngineConfig c;
  c.device = parse_device(o.device);
  c.activation = parse_float_type(o.dtype, "dtype");
  c.recurrent = parse_float_type(o.state_dtype, "state_dtype");
  c.options = op_options(o);
  c.max_length = o.max_length;
  if (c.max_length <= 0)
    c.max_length = model.max_positions > 0 ? std::min(model.max_positions, kDefaultMaxLength) : kDefaultMaxLength;
  c.token_budget = o.token_budget;
  c.prefill_grid = o.prefill_grid;
  c.max_sequences = o.max_sequences;
  c.cache_tokens = o.cache_tokens;
  c.drafts = o.drafts;
  c.prefix_snapshots = o.prefix_snapshots;
  c.all_logits = o.all_logits;
  const bool cuda = c.device.kind == DeviceKind::cuda;
  c.draft_states = parse_draft_states(o.draft_states).value_or(runtime::lighter_draft_states(*loaded.model, c));
  if (cuda && !o.all_logits && !o.headers_only) {
    c.buckets = decode_buckets(c, o.graph_rows);
    add_mixed_buckets(c, o.graph_tokens);
  }
  c.break_at = o.break_at;
  c.on_recorded = o.recording;
  return c;
}

// What the last bits of a state depend on beside the model: which kernels ran and how the decay gate was computed.
std::string arithmetic_of(const Options& options, const ModelConfig& model, Device device) {
  std::string text = str(device.kind == DeviceKind::cpu ? to_string(options.isa) : device_properties(device).name,
                         ", gate ", model.kda.composed_gate ? "composed" : "factored");
  if (device.kind != DeviceKind::cpu && options.exact) text += ", exact";
  for (const auto& [op, variant] : options.force) text += str(", ", op, ":", variant);
  return text;
}

// Ids that end an answer: those of config.json and generation_config.json, and the end markers that the tokenizer
// names.
std::vector<int32_t> find_end_ids(const std::string& directory, const ModelConfig& config,
                                  const std::optional<Tokenizer>& tokenizer) {
  std::vector<int32_t> ids = config.eos_tokens;
  const std::string path = directory + "/generation_config.json";
  if (std::filesystem::exists(path)) {
    const auto r = JsonReader::open(path);
    if (r.kind("eos_token_id") == Json::Kind::array) {
      for (int64_t id : r.get<std::vector<int64_t>>("eos_token_id")) {
        if (id < 0 || id >= config.vocab_size) r.refuse("eos_token_id", str("ids within 0..", config.vocab_size - 1));
        ids.push_back(static_cast<int32_t>(id));
      }
    } else if (const auto id = r.find_in("eos_token_id", 0, config.vocab_size - 1)) {
      ids.push_back(static_cast<int32_t>(*id));
    }
  }
  if (tokenizer)
    for (const char* name : {"<|end_of_msg|>", "<|im_end|>", "[EOS]"})
      if (const int id = tokenizer->special_id(name); id >= 0) ids.push_back(id);
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

MemoryReport memory_report(const LoadedModel& model, const runtime::MemoryPlan& p, const runtime::EngineConfig& c,
                           int64_t program) {
  return {.program = program,
          .weights_mapped = model.report.mapped_bytes,
          .weights_converted = model.report.converted_bytes,
          .slots = p.slots,
          .pages = p.pages,
          .scratch = p.scratch,
          .logits = p.logits,
          .batch = p.batch,
          .host = p.host,
          .drafter = p.drafter,
          .sequence_bytes = p.sequence_bytes,
          .token_bytes = p.page_bytes / c.page_tokens,
          .draft_states = c.drafts == 0                          ? ""
                          : c.draft_states == DraftStates::slots ? "slots"
                                                                 : "records"};
}

}  // namespace

runtime::Engine& Engine::Impl::running(bool all_logits) const {
  if (!engine) fail(ErrorCode::invalid_argument, "this engine was loaded with headers_only: nothing can be computed");
  if (config.all_logits != all_logits)
    fail(ErrorCode::invalid_argument,
         all_logits ? "needs an engine loaded with all_logits" : "an engine loaded with all_logits does not generate");
  return *engine;
}

const Tokenizer& Engine::Impl::text() const {
  if (!tokenizer) fail(ErrorCode::unsupported, "no tokenizer: ", tokenizer_problem);
  return *tokenizer;
}

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::~Engine() = default;
Engine::Engine(Engine&&) noexcept = default;
Engine& Engine::operator=(Engine&&) noexcept = default;

namespace {

bool on_cuda(const LoadOptions& o) {
  return parse_device(o.device).kind == DeviceKind::cuda;
}

// Random weights of a CUDA device are made there.
LoadFormat format_of(const LoadOptions& o) {
  if (o.dummy_weights && on_cuda(o)) return LoadFormat::config_only;
  if (o.headers_only) return o.dummy_weights ? LoadFormat::config_only : LoadFormat::headers;
  return o.dummy_weights ? LoadFormat::dummy : LoadFormat::checkpoint;
}

LoadChoices load_choices(const LoadOptions& o) {
  return {.kda_gate = parse_gate_choice(o.kda_gate),
          .shard = {.rank = 0, .ranks = o.ranks, .split = parse_expert_split(o.expert_split)},
          .decode_rows = o.max_sequences,
          .options = op_options(o),
          .compose_later = !on_cuda(o)};  // a device's copy is made of what is there
}

// What ranks cannot have equal parts of is a wrong number of ranks.
LoadedModel load_part(const LoadOptions& o) {
  try {
    return load_model(o.model, format_of(o), load_choices(o));
  } catch (const Error& e) {
    if (e.code() != ErrorCode::unsupported || o.ranks == 1) throw;
    fail(ErrorCode::invalid_argument, "ranks: ", o.ranks, ": ", e.what());
  }
}

// A forced kernel that refuses this model's shapes is a wrong --force, found while a step is planned.
template <class F>
auto naming_force(const LoadOptions& o, F f) {
  try {
    return f();
  } catch (const Error& e) {
    if (e.code() != ErrorCode::unsupported || o.force.empty()) throw;
    fail(ErrorCode::invalid_argument, "force: ", e.what());
  }
}

runtime::DraftModelConfig draft_config(const LoadOptions& o, const runtime::EngineConfig& target) {
  return {.device = target.device,
          .activation = target.activation,
          .recurrent = target.recurrent,
          .max_sequences = target.max_sequences,
          .max_length = target.max_length,
          .drafts = o.drafts,
          .token_budget = o.token_budget};
}

// Of a CUDA device: what is to lie there must fit beside what others hold.
void check_device(const LoadOptions& o, const LoadedModel& model, Model* draft) {
  const runtime::EngineConfig config = engine_config(o, model);
  int64_t weights = DeviceWeights::bytes(model.model->weights());
  if (draft != nullptr)
    weights += DeviceWeights::bytes(draft->weights()) + runtime::plan_model_drafter(*draft, draft_config(o, config));
  const runtime::MemoryPlan plan = naming_force(o, [&] { return runtime::plan_memory(*model.model, config); });
  check_device_memory(config, weights, plan, device_free_bytes(config.device));
}

// `draft`: null without one.
void check_plan(const LoadOptions& o, const LoadedModel& model, const Model* draft, int64_t weights) {
  const runtime::EngineConfig config = engine_config(o, model);
  naming_force(o, [&] {
    const int64_t drafter = draft == nullptr ? 0 : runtime::plan_model_drafter(*draft, draft_config(o, config));
    check_memory(*model.model, config, weights, available_memory(), drafter);
  });
}

// Random weights are allocated when they are bound: shapes alone say before what they and the state will take.
void check_dummy(const LoadOptions& o) {
  const LoadedModel shapes = load_model(o.model, LoadFormat::config_only, load_choices(o));
  check_plan(o, shapes, nullptr, shapes.report.mapped_bytes + shapes.report.converted_bytes);
}

// Of vocabularies of one size too, an id may be another text here and there: every guess would be wrong. A draft model
// without a tokenizer says nothing.
void check_draft_tokenizer(const Tokenizer& ours, const std::string& directory) {
  std::optional<Tokenizer> theirs;
  try {
    theirs.emplace(Tokenizer::load(directory));
  } catch (const Error&) {
    return;
  }
  if (theirs->vocab_size() != ours.vocab_size())
    fail(ErrorCode::invalid_argument, "draft model: ", directory, ": a tokenizer of ", theirs->vocab_size(),
         " tokens, expected the ", ours.vocab_size(), " of the model's");
  for (int id = 0; id < ours.vocab_size() && !ours.is_special(id); ++id)
    if (theirs->token_bytes(id) != ours.token_bytes(id))
      fail(ErrorCode::invalid_argument, "draft model: ", directory, ": another tokenizer: token ", id, " is ",
           printable(theirs->token_bytes(id)), ", the model's is ", printable(ours.token_bytes(id)));
}

// What "auto" means for this model. `note`: why no CUDA device, if none.
std::string choose_device(const LoadOptions& o, std::string& note) {
  if (o.device != "auto") return o.device;
  const int devices = cuda_device_count();
  if (devices == 0) note = cuda_device_summary();
  for (int i = 0; i < devices; ++i) {
    LoadOptions there = o;
    there.device = str("cuda:", i);
    if (const std::string why = device_refusal({DeviceKind::cuda, i}); !why.empty()) {
      note += str(note.empty() ? "" : "; ", there.device, ": ", why);
      continue;
    }
    const LoadedModel shapes =
        load_model(o.model, o.dummy_weights ? LoadFormat::config_only : LoadFormat::headers, load_choices(there));
    const LoadedModel draft = o.draft_model.empty() ? LoadedModel{} : load_model(o.draft_model, LoadFormat::headers);
    try {
      check_device(there, shapes, draft.model.get());
      return there.device;
    } catch (const Error& e) {
      if (e.code() != ErrorCode::out_of_memory) throw;
      note += str(note.empty() ? "" : "; ", e.what());
    }
  }
  return "cpu";
}

}  // namespace

Engine Engine::load(const LoadOptions& given) {
  check_options(given);
  std::string device_note;
  LoadOptions options = given;
  options.device = choose_device(given, device_note);
  auto e = std::make_unique<Impl>();
  e->options = options;
  try {
    e->tokenizer = Tokenizer::load(options.model);
  } catch (const Error& problem) {
    e->tokenizer_problem = problem.what();
  }
  const bool cuda = on_cuda(options);
  if (options.dummy_weights && !options.headers_only && !cuda) check_dummy(options);
  // What is resident differs by some hundred kilobytes from one start to the next; the same plan says the same figure.
  constexpr int64_t kRound = int64_t{4} << 20;
  const int64_t program = (resident_bytes() + program_file_bytes() + kRound - 1) / kRound * kRound;
  e->model = load_part(options);
  e->info = describe_model(e->model);
  if (!device_note.empty()) e->info.notes.push_back("device auto: the CPU; " + device_note);
  e->config = engine_config(options, e->model);
  e->config.model_id = e->model.identity;
  e->config.arithmetic = arithmetic_of(e->config.options, e->model.config, e->config.device);
  if (e->tokenizer && e->tokenizer->vocab_size() > e->model.config.vocab_size) {
    e->tokenizer_problem = str(options.model, ": the tokenizer has ", e->tokenizer->vocab_size(), " tokens, the model ",
                               e->model.config.vocab_size);
    e->tokenizer.reset();
  }
  e->end_ids = find_end_ids(options.model, e->model.config, e->tokenizer);
  if (e->tokenizer) e->constraints = std::make_unique<Constraints>(*e->tokenizer);
  const Model& model = *e->model.model;
  const auto report = [&](const runtime::MemoryPlan& plan) {
    e->memory = memory_report(e->model, plan, e->config, program);
    e->memory.drafter += e->draft.report.mapped_bytes + e->draft.report.converted_bytes;
  };
  if (options.headers_only) {
    report(naming_force(options, [&] { return runtime::plan_memory(model, e->config); }));
    return Engine(std::move(e));
  }
  if (!options.draft_model.empty()) {
    if (e->tokenizer) check_draft_tokenizer(*e->tokenizer, options.draft_model);
    e->draft = load_model(options.draft_model, LoadFormat::checkpoint);
  }
  // Mapped weights may exceed memory, and what was copied is no longer available.
  if (cuda) {
    check_device(options, e->model, e->draft.model.get());
    place_weights(e->model, e->config.device, load_choices(options), options.progress);
    if (e->draft.model) place_weights(e->draft, e->config.device, {}, {});
    e->config.model_id = e->model.identity;
  } else if (!options.dummy_weights || e->draft.model) {
    check_plan(options, e->model, e->draft.model.get(), e->model.report.composed_bytes);  // reserved, not touched yet
  }
  std::unique_ptr<runtime::Drafter> drafter;
  if (e->draft.model)
    drafter =
        runtime::make_model_drafter(*e->draft.model, draft_config(options, e->config), e->model.config.vocab_size);
  // The engine plans, and refuses, before the checkpoint is read.
  e->engine =
      naming_force(options, [&] { return std::make_unique<runtime::Engine>(model, e->config, std::move(drafter)); });
  e->config.on_recorded = {};
  report(e->engine->memory());
  if (!cuda)
    e->model.weights.compose([&] {
      if (e->model.checkpoint) prefault(e->model.weights.mapped(), options.progress);
    });
  return Engine(std::move(e));
}

bool Engine::Impl::step(const std::function<void(const runtime::TokenEvent&)>& on_event) {
  const bool more = engine->step(on_event);
  if (step_log && more) step_log(engine->explanation());
  return more;
}

void Engine::explain_steps(std::function<void(const std::string&)> log) {
  impl_->step_log = std::move(log);
  if (impl_->engine) impl_->engine->explain(static_cast<bool>(impl_->step_log));
}

WorkCounts Engine::work() const {
  if (!impl_->engine) return {};
  const runtime::EngineStats& s = impl_->engine->stats();
  return {.steps = s.steps,
          .prefill_tokens = s.prefill_tokens,
          .decode_tokens = s.decode_tokens,
          .drafts = s.drafts,
          .accepted_drafts = s.accepted_drafts,
          .preempted = s.preempted,
          .cached_tokens = impl_->engine->prefix_stats().hit_tokens,
          .followed = s.followed};
}

const ModelInfo& Engine::info() const {
  return impl_->info;
}
const MemoryReport& Engine::memory() const {
  return impl_->memory;
}
uint64_t Engine::model_id() const {
  return impl_->engine ? impl_->engine->config().model_id : impl_->config.model_id;
}
int64_t Engine::vocab_size() const {
  return impl_->model.config.vocab_size;
}
int64_t Engine::max_length() const {
  return impl_->config.max_length;
}

std::string Engine::device_summary() const {
  if (const Device device = impl_->config.device; device.kind == DeviceKind::cuda) {
    const DeviceProperties& p = device_properties(device);
    return str(to_string(device), ", ", p.name, ", ", p.multiprocessors, " multiprocessors, ", to_string(p.level));
  }
  const int threads = impl_->options.threads > 0 ? impl_->options.threads : available_cpus();
  return str("cpu, ", threads, threads == 1 ? " thread, " : " threads, ", to_string(impl_->config.options.isa));
}

bool Engine::has_tokenizer() const {
  return impl_->tokenizer.has_value();
}
std::string Engine::precision() const {
  const auto name = [](DType d) { return d == DType::f32 ? "fp32" : "bf16"; };
  return str(name(impl_->config.activation), ", state ", name(impl_->config.recurrent), ", gate ",
             impl_->model.config.kda.composed_gate ? "composed" : "factored");
}

const std::string& Engine::tokenizer_problem() const {
  return impl_->tokenizer_problem;
}

std::vector<int32_t> Engine::tokenize(const std::string& text, bool specials) const {
  check_text(text, "text");
  return specials ? impl_->text().encode_with_specials(text) : impl_->text().encode(text);
}

std::string Engine::detokenize(const std::vector<int32_t>& ids, bool show_specials) const {
  return impl_->text().decode(ids, show_specials ? Specials::show : Specials::skip);
}

std::string Engine::token_bytes(int32_t id) const {
  return std::string(impl_->text().token_bytes(id));
}

GenerateOptions Engine::default_generation() const {
  GenerateOptions o;
  const std::string path = impl_->options.model + "/generation_config.json";
  if (!std::filesystem::exists(path)) return o;
  const auto r = JsonReader::open(path);
  o.temperature = static_cast<float>(r.find<double>("temperature").value_or(o.temperature));
  o.top_p = static_cast<float>(r.find<double>("top_p").value_or(o.top_p));
  o.top_k = static_cast<int32_t>(r.find_in("top_k", -1, 1 << 30).value_or(o.top_k));
  if (const auto sample = r.find<bool>("do_sample"); sample && !*sample) o.temperature = 0;
  try {
    check_options(o);
  } catch (const Error& problem) {
    fail(ErrorCode::bad_file, path, ": ", problem.what());
  }
  return o;
}

std::vector<StepOp> Engine::explain_step(int64_t tokens, bool decode) const {
  class Ledger final : public OpObserver {
   public:
    void on_op(std::string_view op, std::string_view variant, const Cost& cost) override {
      for (StepOp& s : ops) {
        if (s.op != op || s.variant != variant) continue;
        ++s.calls, s.bytes += cost.bytes, s.flops += cost.flops;
        return;
      }
      ops.push_back({std::string(op), std::string(variant), 1, cost.bytes, cost.flops});
    }
    std::vector<StepOp> ops;
  } ledger;
  runtime::EngineConfig config = impl_->config;
  config.max_sequences = decode ? tokens : 1;
  config.token_budget = tokens;
  config.prefill_grid = 1;
  runtime::walk_step(*impl_->model.model, config, decode, &ledger);
  return ledger.ops;
}

}  // namespace kdelta
