#include "kdelta/runtime/engine.h"

#include <algorithm>
#include <limits>

#include "kdelta/core/check.h"

namespace kdelta::runtime {
namespace {

int64_t pages_of(int64_t tokens, int64_t page) {
  return (tokens + page - 1) / page;
}

StateParams state_params(const EngineConfig& c) {
  return {.activation = c.activation, .recurrent = c.recurrent, .columns = 1, .page_tokens = c.page_tokens};
}

int64_t cache_pages(const EngineConfig& c) {
  const int64_t per_request = pages_of(c.max_length, c.page_tokens);
  return c.cache_tokens > 0 ? pages_of(c.cache_tokens, c.page_tokens) : c.max_sequences * per_request;
}

BatchCapacity batch_capacity(const EngineConfig& c) {
  // A lone prefill may exceed a budget smaller than the grid.
  const int64_t tokens = std::max({c.token_budget, c.prefill_grid, c.max_sequences});
  return {.tokens = tokens,
          .sequences = c.max_sequences,
          .columns = 1,
          .pages = pages_of(c.max_length, c.page_tokens),
          .page_tokens = c.page_tokens,
          .logit_rows = c.all_logits ? tokens : c.max_sequences};
}

void check_config(const EngineConfig& c) {
  const auto require = [](bool ok, const char* name, int64_t value, const char* want) {
    if (!ok) fail(ErrorCode::invalid_argument, name, ": ", value, ", expected ", want);
  };
  require(c.max_sequences >= 1, "max_sequences", c.max_sequences, ">= 1");
  require(c.token_budget >= c.max_sequences, "token_budget", c.token_budget, "at least max_sequences");
  // Positions and boundaries are 32-bit on the device.
  constexpr int64_t kMost = int64_t{1} << 30;
  require(c.max_sequences <= kMost, "max_sequences", c.max_sequences, "at most 2^30");
  require(c.token_budget <= kMost, "token_budget", c.token_budget, "at most 2^30");
  require(c.max_length >= 1 && c.max_length <= kMost, "max_length", c.max_length, "1 to 2^30");
  require(c.cache_tokens >= 0 && c.cache_tokens <= kMost * 1024, "cache_tokens", c.cache_tokens, "0 to 2^40");
  require(c.page_tokens >= 1, "page_tokens", c.page_tokens, ">= 1");
  require(c.prefill_grid >= 1, "prefill_grid", c.prefill_grid, ">= 1");
  require(cache_pages(c) >= pages_of(c.max_length, c.page_tokens), "cache_tokens", c.cache_tokens,
          "at least max_length");
}

// Pools without memory, for planning.
std::vector<std::vector<AnyView>> planned_states(const std::vector<std::vector<StateSpec>>& layers, int64_t slots,
                                                 int64_t pages) {
  std::vector<std::vector<AnyView>> all;
  for (const auto& layer : layers) {
    std::vector<AnyView> row;
    for (const StateSpec& s : layer) {
      Shape shape;
      shape.rank = s.shape.rank + 1;
      shape.dim[0] = (s.kind == StateKind::slot ? slots : pages) + 1;
      for (int i = 0; i < s.shape.rank; ++i) shape.dim[static_cast<size_t>(i) + 1] = s.shape[i];
      row.push_back(AnyView(reinterpret_cast<void*>(Arena::kAlign), s.dtype, shape));
    }
    all.push_back(std::move(row));
  }
  return all;
}

}  // namespace

const char* to_string(FinishReason reason) {
  switch (reason) {
    case FinishReason::none:
      return "none";
    case FinishReason::stop:
      return "stop";
    case FinishReason::length:
      return "length";
    case FinishReason::cancelled:
      return "cancelled";
    case FinishReason::error:
      return "error";
  }
  KDELTA_UNREACHABLE("finish reason", reason);
}

int64_t walk_step(const Model& model, const EngineConfig& c, bool decode, OpObserver* observer) {
  const BatchCapacity capacity = batch_capacity(c);
  const auto states = planned_states(model.states(state_params(c)), c.max_sequences, cache_pages(c));
  ThreadPool threads(c.options.threads);
  Arena arena = Arena::measuring(Device{});
  Exec ex;
  ex.scratch = &arena;
  ex.threads = &threads;
  ex.options = &c.options;
  ex.observer = observer;
  ex.planning = true;
  const View<float> logits(reinterpret_cast<float*>(Arena::kAlign), {capacity.logit_rows, model.config().vocab_size});
  model.forward(ex, BatchBuilder::planning(capacity, decode), states, c.activation, logits);
  std::vector<SampleRow> rows(static_cast<size_t>(capacity.logit_rows));
  std::vector<SampleResult> results(rows.size());
  if (!c.all_logits) sample(ex, {.logits = logits, .rows = rows, .results = results});
  return arena.peak();
}

MemoryPlan plan_memory(const Model& model, const EngineConfig& config) {
  check_config(config);
  const auto specs = model.states(state_params(config));
  const BatchCapacity capacity = batch_capacity(config);
  MemoryPlan p;
  p.slot_bytes = StatePool::slot_bytes(specs);
  p.page_bytes = StatePool::page_bytes(specs);
  p.slots = StatePool::total_bytes(Device{}, specs, StateKind::slot, config.max_sequences);
  p.pages = StatePool::total_bytes(Device{}, specs, StateKind::page, cache_pages(config));
  p.scratch = device_bytes(Device{},
                           std::max(walk_step(model, config, false, nullptr), walk_step(model, config, true, nullptr)));
  p.logits = device_bytes(Device{}, capacity.logit_rows * model.config().vocab_size * 4);
  p.batch = device_bytes(Device{}, BatchBuilder::bytes(capacity));
  return p;
}

Engine::Engine(const Model& model, const EngineConfig& config)
    : model_(model), config_(config), plan_(plan_memory(model, config)), capacity_(batch_capacity(config)) {
  threads_ = std::make_unique<ThreadPool>(config.options.threads);
  scratch_ = std::make_unique<Arena>(Device{}, plan_.scratch);
  pool_ = std::make_unique<StatePool>(Device{}, model.states(state_params(config)), config.max_sequences,
                                      cache_pages(config));
  builder_ = std::make_unique<BatchBuilder>(Device{}, capacity_);
  logits_ = Buffer(Device{}, plan_.logits);
  exec_.scratch = scratch_.get();
  exec_.threads = threads_.get();
  exec_.options = &config_.options;
  const auto n = static_cast<size_t>(config.max_sequences);
  step_plan_.rows.reserve(n);
  rows_.reserve(n);
  sample_rows_.reserve(n);
  results_.resize(n);
  events_.reserve(n);
}

Engine::~Engine() = default;

void Engine::observe(OpObserver* ops, TensorProbe* tensors) {
  exec_.observer = ops;
  exec_.probe = tensors;
}

const Request* Engine::find(RequestId id) const {
  for (const auto& r : requests_)
    if (r->id == id) return r.get();
  return nullptr;
}

View<const float> Engine::last_logits() const {
  return logits_.view<float>({logit_rows_, model_.config().vocab_size});
}

namespace {

// What the sampler would refuse is refused here: in a step it would take the company down with it.
void check_ids(const RequestOptions& o, int64_t vocab) {
  const auto require = [&](int64_t id, const char* field) {
    if (id < 0 || id >= vocab) fail(ErrorCode::invalid_argument, field, ": token ", id, ", expected 0..", vocab - 1);
  };
  for (int32_t id : o.stop_ids) require(id, "stop_ids");
  for (const LogitBias& b : o.bias) {
    require(b.token, "logit_bias");
    if (!(b.bias < std::numeric_limits<float>::infinity()))
      fail(ErrorCode::invalid_argument, "logit_bias: ", b.bias, " for token ", b.token,
           ", expected a finite number or -infinity");
  }
  if (o.min_tokens < 0) fail(ErrorCode::invalid_argument, "min_tokens: ", o.min_tokens, ", expected >= 0");
  if (o.top_logprobs < -1) fail(ErrorCode::invalid_argument, "top_logprobs: ", o.top_logprobs, ", expected >= -1");
}

}  // namespace

RequestId Engine::submit(std::vector<int32_t> prompt, const RequestOptions& options) {
  const int64_t vocab = model_.config().vocab_size;
  const auto refuse = [](const std::string& what) { fail(ErrorCode::invalid_argument, what); };
  if (prompt.empty()) refuse("prompt: no tokens");
  for (size_t i = 0; i < prompt.size(); ++i)
    if (prompt[i] < 0 || prompt[i] >= vocab)
      refuse(str("prompt: token ", prompt[i], " at ", i, ", expected 0..", vocab - 1));
  const auto room = config_.max_length - static_cast<int64_t>(prompt.size());
  if (room < (config_.all_logits ? 0 : 1))
    refuse(str("prompt: ", prompt.size(), " tokens, the context holds ", config_.max_length));
  if (options.max_tokens < 1) refuse(str("max_tokens: ", options.max_tokens, ", expected >= 1"));
  check_sampling_params(options.sampling);
  check_ids(options, vocab);
  auto r = std::make_unique<Request>();
  r->id = next_id_++;
  r->options = options;
  r->options.max_tokens = std::min(options.max_tokens, std::max<int64_t>(room, 1));
  r->prompt = std::move(prompt);
  r->output.reserve(static_cast<size_t>(r->options.max_tokens));
  r->slots.reserve(1);
  r->pages.reserve(static_cast<size_t>(capacity_.pages));
  requests_.push_back(std::move(r));
  return requests_.back()->id;
}

void Engine::end(Request& r, FinishReason reason) {
  r.finish = reason;
  pool_->give_back_slots(r.slots);
  pool_->give_back_pages(r.pages);
}

void Engine::finish(RequestId id, FinishReason reason) {
  for (auto& r : requests_)
    if (r->id == id && r->finish == FinishReason::none) end(*r, reason);
}

void Engine::gather_candidates() {
  std::erase_if(requests_, [](const auto& r) { return r->finish != FinishReason::none; });
  candidates_.clear();
  live_.clear();
  for (const auto& r : requests_) {
    live_.push_back(r.get());
    candidates_.push_back({.prompt = static_cast<int64_t>(r->prompt.size()),
                           .known = r->known(),
                           .computed = r->computed,
                           .running = !r->slots.empty(),
                           .pages = static_cast<int64_t>(r->pages.size())});
  }
}

void Engine::hand_out_memory() {
  for (const int i : step_plan_.admitted) live_[static_cast<size_t>(i)]->slots.push_back(pool_->take_slot());
  rows_.clear();
  for (const PlanRow& row : step_plan_.rows) {
    Request& r = *live_[static_cast<size_t>(row.candidate)];
    const int64_t need = pages_of(r.computed + row.tokens, config_.page_tokens);
    while (static_cast<int64_t>(r.pages.size()) < need) r.pages.push_back(pool_->take_page());
    rows_.push_back({.request = &r, .tokens = row.tokens, .prefill = row.prefill});
  }
}

bool Engine::step(const std::function<void(const TokenEvent&)>& on_event) {
  gather_candidates();
  if (candidates_.empty()) return false;
  const SchedulerConfig sc{.max_sequences = config_.max_sequences,
                           .token_budget = config_.token_budget,
                           .prefill_grid = config_.prefill_grid,
                           .page_tokens = config_.page_tokens};
  plan_step(sc, candidates_, pool_->free_slots(), pool_->free_pages(), &step_plan_);
  events_.clear();
  if (step_plan_.rows.empty()) {
    end_youngest_holder();
  } else {
    hand_out_memory();
    run_step();
  }
  deliver(on_event);
  return true;
}

// Every request fits alone (submit and check_config see to it), so an empty plan means that running ones hold all pages
// and none of them can grow. The youngest of those that hold something ends, and the others go on.
void Engine::end_youngest_holder() {
  for (auto r = live_.rbegin(); r != live_.rend(); ++r)
    if (!(*r)->slots.empty()) return fail_request(**r, "the latent cache is full");
  KDELTA_CHECK(false, "an empty plan although nobody holds memory");
}

void Engine::run_step() {
  try {
    const Batch& b = builder_->build(rows_, config_.all_logits);
    logit_rows_ = b.logit_row.dim(0);
    model_.forward(exec_, b, pool_->views(), config_.activation,
                   logits_.view<float>({logit_rows_, model_.config().vocab_size}));
    if (!config_.all_logits) sample_rows();
  } catch (const std::exception& e) {
    for (const BatchRow& row : rows_) fail_request(*row.request, e.what());
    return;
  }
  commit();
}

void Engine::fail_request(Request& r, const char* what) {
  r.error = what;
  end(r, FinishReason::error);
  events_.push_back({.id = r.id, .finish = FinishReason::error, .error = &r.error});
}

// The whole step is committed before anybody hears of it, so a callback that throws or ends requests finds consistent
// ones. What it ended has no more to say.
void Engine::deliver(const std::function<void(const TokenEvent&)>& on_event) {
  for (const TokenEvent& e : events_) {
    const Request* r = find(e.id);
    if (r != nullptr && r->finish == e.finish) on_event(e);
  }
}

void Engine::sample_rows() {
  sample_rows_.clear();
  for (const int owner : builder_->logit_owner()) {
    const Request& r = *rows_[static_cast<size_t>(owner)].request;
    const bool may_stop = static_cast<int64_t>(r.output.size()) >= r.options.min_tokens;
    sample_rows_.push_back(
        {.params = r.options.sampling,
         .bias = r.options.bias,
         .banned = may_stop ? std::span<const int32_t>() : std::span<const int32_t>(r.options.stop_ids),
         .prompt = r.prompt,
         .output = r.output,
         .top_logprobs = r.options.top_logprobs});
  }
  sample(exec_,
         {.logits = last_logits(), .rows = sample_rows_, .results = std::span(results_).first(sample_rows_.size())});
}

void Engine::commit() {
  for (const BatchRow& row : rows_) row.request->computed += row.tokens;
  if (config_.all_logits) {
    for (const BatchRow& row : rows_) {
      Request& r = *row.request;
      if (r.computed < r.known()) continue;
      end(r, FinishReason::length);
      events_.push_back({.id = r.id, .finish = FinishReason::length});
    }
    return;
  }
  const auto owners = builder_->logit_owner();
  for (size_t m = 0; m < owners.size(); ++m) take_token(*rows_[static_cast<size_t>(owners[m])].request, results_[m]);
}

void Engine::take_token(Request& r, const SampleResult& s) {
  if (s.token < 0) return fail_request(r, "no usable logit: the model produced NaN or infinity");
  r.output.push_back(s.token);
  const auto& stops = r.options.stop_ids;
  FinishReason reason = FinishReason::none;
  if (std::find(stops.begin(), stops.end(), s.token) != stops.end())
    reason = FinishReason::stop;
  else if (static_cast<int64_t>(r.output.size()) >= r.options.max_tokens)
    reason = FinishReason::length;
  if (reason != FinishReason::none) end(r, reason);
  events_.push_back({.id = r.id, .token = s.token, .sample = &s, .finish = reason});
}

}  // namespace kdelta::runtime
