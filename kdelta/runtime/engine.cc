#include "kdelta/runtime/engine.h"

#include <algorithm>
#include <limits>

#include "kdelta/core/check.h"
#include "kdelta/core/moves.h"

namespace kdelta::runtime {

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

namespace {

// A step of a prompt on a device costs so many tokens' time before its first one: the weights are read once.
constexpr int64_t kDeviceStepTokens = 512;

}  // namespace

Engine::Engine(const Model& model, const EngineConfig& config, std::unique_ptr<Drafter> drafter)
    : model_(model),
      config_(config),
      drafter_(std::move(drafter)),
      plan_(plan_memory(model, config, drafter_ ? drafter_->bytes() : 0)),
      capacity_(batch_capacity(config)),
      scheduler_{.max_sequences = config.max_sequences,
                 .token_budget = config.token_budget,
                 .prefill_grid = config.prefill_grid,
                 .page_tokens = config.page_tokens,
                 .columns = 1 + config.drafts,
                 .wait_from = config.device.kind == DeviceKind::cpu ? config.prefill_grid : kDeviceStepTokens} {
  threads_ = std::make_unique<ThreadPool>(config.options.threads);
  const Device device = config.device;
  if (device.kind != DeviceKind::cpu) {
    queue_ = std::make_unique<DeviceQueue>(device, plan_.aux_scratch, replay_numbers(config));
    queue_->attach(exec_);
  }
  Stream* stream = exec_.stream;
  scratch_ = std::make_unique<Arena>(device, plan_.scratch - plan_.aux_scratch);
  pool_ = std::make_unique<StatePool>(
      device, model.states(state_params(config)), pool_size(config),
      [this](int32_t slot, int32_t accepted) {
        if (queue_)
          model_.replay(exec_, queue_->number(slot), queue_->number(accepted), pool_->views());
        else
          model_.replay(exec_, {&slot, {1}}, {&accepted, {1}}, pool_->views());
      },
      stream);
  prefixes_ = std::make_unique<PrefixCache>(*pool_, prefix_config(config));
  builder_ = std::make_unique<BatchBuilder>(device, capacity_, stream);
  logits_ = Buffer(device, plan_.logits);
  exec_.scratch = scratch_.get();
  exec_.threads = threads_.get();
  exec_.options = &config_.options;
  exec_.comm = config_.comm;
  if (queue_) sampler_ = std::make_unique<DeviceSampler>(exec_, capacity_.logit_rows, model.config().vocab_size);
  if (config.drafts > 0 && !drafter_) drafter_ = make_lookup_drafter();
  if (drafter_) drafter_->attach(exec_);
  const auto n = static_cast<size_t>(config.max_sequences), m = static_cast<size_t>(capacity_.logit_rows);
  step_plan_.rows.reserve(n);
  step_plan_.admitted.reserve(n);
  step_plan_.preempted.reserve(n);
  step_plan_.waiting.reserve(n);
  wanted_.reserve(n + 1);
  rows_.reserve(n);
  row_snapshots_.reserve(static_cast<size_t>(capacity_.snapshots));
  boundaries_.reserve(static_cast<size_t>(capacity_.snapshots));
  reserve_queue(n);
  sample_rows_.reserve(m);
  results_.resize(m);
  next_.resize(m);
  events_.reserve(m);
  queries_.resize(config.drafts > 0 ? n : 0);
  for (DraftQuery& q : queries_) q.tokens.reserve(static_cast<size_t>(config.drafts));
  if (trace_sink() == nullptr) trace_to(profiler_sink());
  observe(nullptr, nullptr);
  broken_ = break_list(model.sublayers(), config.break_at);
  if (queue_) capture_buckets();
  config_.on_recorded = {};  // the caller's business is over
}

Engine::~Engine() = default;

// Every bucket runs once as it is, so that its kernels are loaded, and is recorded then. What a graph does is fixed by
// the bucket alone; what it works on lies in arrays whose addresses never change.
void Engine::capture_buckets() {
  recordings_.reserve(config_.buckets.size());
  for (const Bucket& bucket : config_.buckets) {
    idle(bucket);
    Recording recording;
    run_recorded(builder_->build({}, false, &bucket), bucket, recording);
    queue_->finish();
    recordings_.push_back(std::move(recording));
    if (config_.on_recorded) config_.on_recorded(std::ssize(recordings_), std::ssize(config_.buckets));
  }
}

int64_t Engine::host_bytes(const EngineConfig& c) {
  const BatchCapacity b = batch_capacity(c);
  const auto size = [](auto... types) { return static_cast<int64_t>((sizeof(types) + ...)); };
  const int64_t per_sequence = size(PlanRow{}, 0, 0, 0, int64_t{}, BatchRow{}) +
                               (c.drafts > 0 ? size(DraftQuery{}) + 4 * c.drafts : 0) + request_bytes(c);
  // generate_many() queues twice as many as run, and the lists grow by doubling.
  const int64_t per_queued =
      4 * size(Candidate{}, static_cast<Request*>(nullptr), PrefixCache::Hit{}, uint8_t{}, std::unique_ptr<Request>());
  return StatePool::list_bytes(pool_size(c)) + PrefixCache::bytes(prefix_config(c), pool_size(c).pages) +
         c.max_sequences * (per_sequence + per_queued) + b.snapshots * size(RowSnapshot{}, int64_t{}) +
         b.logit_rows * size(SampleRow{}, SampleResult{}, Heard{}, 0, TokenConstraint::Next{});
}

void Engine::observe(OpObserver* ops, TensorProbe* tensors) {
  watched_ = ops != nullptr || tensors != nullptr;
  exec_.observer = ops == nullptr && trace_sink() != nullptr ? &op_ranges_ : ops;
  exec_.probe = tensors;
}

const Request* Engine::find(RequestId id) const {
  for (const auto& r : requests_)
    if (r->id == id) return r.get();
  return nullptr;
}

int64_t Engine::pending() const {
  return std::ranges::count_if(requests_, [](const auto& r) { return r->finish == FinishReason::none; });
}

void Engine::weights_changed(uint64_t model_id) {
  if (const int64_t n = pending(); n > 0)
    fail(ErrorCode::invalid_argument, "new weights: ", n, " requests wait or run, expected none");
  prefixes_->clear();
  config_.model_id = model_id;
}

View<const float> Engine::last_logits() {
  const Shape shape{logit_rows_, model_.config().vocab_size};
  if (!queue_) return logits_.view<float>(shape);
  if (!host_logits_) host_logits_ = std::make_unique<HostBuffer>(config_.device, logits_.bytes());
  copy_now(exec_.stream, host_logits_->data(), logits_.data(), shape.numel() * 4);
  return {host_logits_->as<float>(), shape};
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
  auto request = checked(std::move(prompt), options);
  if (options.constraint)
    masks_.resize(static_cast<size_t>(capacity_.logit_rows * mask_words(model_.config().vocab_size)));
  return enqueue(std::move(request));
}

// What a step needs per request is there before the request is: a step allocates nothing, so want of memory cannot
// stop it half way.
void Engine::reserve_queue(size_t requests) {
  if (requests <= requests_.capacity()) return;
  requests = std::max(requests, 2 * requests_.capacity());
  candidates_.reserve(requests);
  live_.reserve(requests);
  hits_.reserve(requests);
  step_plan_.taken.reserve(requests);
  requests_.reserve(requests);
}

RequestId Engine::enqueue(std::unique_ptr<Request> request) {
  reserve_queue(requests_.size() + 1);
  request->id = next_id_++;
  requests_.push_back(std::move(request));
  return requests_.back()->id;
}

void Engine::check(std::span<const int32_t> prompt, const RequestOptions& options) const {
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
}

std::unique_ptr<Request> Engine::checked(std::vector<int32_t> prompt, const RequestOptions& options) const {
  check(prompt, options);
  const auto room = config_.max_length - std::ssize(prompt);
  auto r = std::make_unique<Request>();
  r->options = options;
  r->options.max_tokens = std::min(options.max_tokens, std::max<int64_t>(room, 1));
  r->prompt = std::move(prompt);
  r->output.reserve(static_cast<size_t>(r->options.max_tokens));
  r->slots.reserve(static_cast<size_t>(capacity_.columns));
  r->pages.reserve(static_cast<size_t>(capacity_.pages));
  if (config_.prefix_snapshots > 0)
    r->snapshots.reserve(
        static_cast<size_t>(std::min(config_.prefix_snapshots, std::ssize(r->prompt) / prefixes_->config().unit + 1)));
  r->reuse.limit = config_.prefix_snapshots > 0 ? ReuseLimit::waiting : ReuseLimit::off;
  return r;
}

// Slots, pages and snapshots that it has not published go back.
void Engine::give_back(Request& r) {
  prefixes_->discard(r.snapshots);
  r.snapshots.clear();
  pool_->give_back_slots(r.slots);
  pool_->drop_pages(r.pages);
  r.shared_pages = 0;
}

void Engine::drop_saved(Request& r) {
  saved_bytes_ -= std::ssize(r.saved);
  std::vector<char>().swap(r.saved);  // its memory too
}

void Engine::end(Request& r, FinishReason reason) {
  r.finish = reason;
  r.output.resize(r.output.size() - static_cast<size_t>(r.drafts));
  r.drafts = 0;
  give_back(r);
  drop_saved(r);
  if (drafter_) drafter_->forget(r.id);
}

void Engine::finish(RequestId id, FinishReason reason) {
  for (auto& r : requests_)
    if (r->id == id && r->finish == FinishReason::none) end(*r, reason);
}

void Engine::set_error(Request& r, const char* what) {
  try {
    r.error = what;
  } catch (const std::bad_alloc&) {
    r.error = kNoMemory;  // short enough to need none
  }
}

void Engine::fail_request(Request& r, const char* what) {
  set_error(r, what);
  end(r, FinishReason::error);
  events_.push_back({{.id = r.id, .finish = FinishReason::error, .error = &r.error}, &r});
}

// The whole step is committed before anybody hears of it, so a callback that throws or ends requests finds consistent
// ones. What a callback ended has no more to say; a request that ended in this step is heard to its end.
void Engine::deliver(const std::function<void(const TokenEvent&)>& on_event) {
  for (size_t i = 0; i < events_.size(); ++i) {
    const Heard& h = events_[i];
    const bool last = i + 1 == events_.size() || events_[i + 1].request != h.request;
    const FinishReason reason = h.request->finish;
    // The last event of a request says how it stands; one that says otherwise was overtaken by a callback.
    size_t end = i;
    while (!last && end + 1 < events_.size() && events_[end + 1].request == h.request) ++end;
    if (reason == events_[end].event.finish) on_event(h.event);
  }
}

}  // namespace kdelta::runtime
