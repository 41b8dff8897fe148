#include "kdelta/runtime/engine_config.h"

#include <algorithm>
#include <numeric>

#include "kdelta/core/buffer.h"
#include "kdelta/core/check.h"
#include "kdelta/runtime/engine.h"

namespace kdelta::runtime {
namespace {

int64_t cache_pages(const EngineConfig& c) {
  const int64_t per_request = pages_for(c.max_length, c.page_tokens);
  return c.cache_tokens > 0 ? pages_for(c.cache_tokens, c.page_tokens) : c.max_sequences * per_request;
}

// Pools without memory, for planning.
std::vector<std::vector<AnyView>> planned_states(const LayerStates& layers, const PoolSize& size) {
  std::vector<std::vector<AnyView>> all;
  for (const auto& layer : layers) {
    std::vector<AnyView> row;
    for (const StateSpec& s : layer) {
      Shape shape;
      shape.rank = s.shape.rank + 1;
      shape.dim[0] = pool_count(s, size);
      for (int i = 0; i < s.shape.rank; ++i) shape.dim[static_cast<size_t>(i) + 1] = s.shape[i];
      row.push_back(AnyView(reinterpret_cast<void*>(Arena::kAlign), s.dtype, shape));
    }
    all.push_back(std::move(row));
  }
  return all;
}

// Bytes of scratch, and of that on a second queue of the device.
struct Scratch {
  int64_t main = 0, aux = 0;
  void widen(const Scratch& o) { main = std::max(main, o.main), aux = std::max(aux, o.aux); }
};

// Those of one step, walked without touching memory by a team of the size that will run it.
Scratch walk(const Model& model, const EngineConfig& c, bool decode, OpObserver* observer, ThreadPool& threads) {
  const BatchCapacity capacity = batch_capacity(c);
  const auto states = planned_states(model.states(state_params(c)), pool_size(c));
  const bool cpu = c.device.kind == DeviceKind::cpu;
  Arena arena = Arena::measuring(c.device), side = Arena::measuring(c.device);
  AuxQueue aux{.scratch = &side};
  Exec ex;
  ex.device = c.device;
  ex.aux = cpu ? nullptr : &aux;
  ex.scratch = &arena;
  ex.threads = &threads;
  ex.options = &c.options;
  ex.observer = observer;
  ex.planning = true;
  const View<float> logits(reinterpret_cast<float*>(Arena::kAlign), {capacity.logit_rows, model.config().vocab_size});
  model.forward(ex, BatchBuilder::planning(capacity, decode), states, c.activation, logits);
  std::vector<SampleRow> rows(static_cast<size_t>(capacity.logit_rows));
  std::vector<SampleResult> results(rows.size());
  if (c.all_logits) return {arena.peak(), side.peak()};
  if (cpu)
    sample(ex, {.logits = logits, .rows = rows, .results = results});
  else
    DeviceSampler::plan(ex, capacity.logit_rows, model.config().vocab_size);
  return {arena.peak(), side.peak()};
}

// Views and buffers of the state pools, and what has one size: a bound, not a count.
int64_t object_bytes(const LayerStates& layers) {
  constexpr int64_t kEngine = 16384, kPerState = 512;
  int64_t states = 0;
  for (const auto& layer : layers) states += std::ssize(layer);
  return kEngine + kPerState * (states + std::ssize(layers));
}

}  // namespace

int64_t request_bytes(const EngineConfig& c) {
  const int64_t pages = pages_for(c.max_length, c.page_tokens),
                snapshots = std::min(c.prefix_snapshots, c.max_length / prefix_config(c).unit + 1);
  return static_cast<int64_t>(sizeof(Request)) + 4 * (c.max_length + pages + 1 + c.drafts) +
         snapshots * static_cast<int64_t>(sizeof(PrefixCache::Written));
}

StateParams state_params(const EngineConfig& c) {
  return {.activation = c.activation,
          .recurrent = c.recurrent,
          .columns = 1 + c.drafts,
          .draft_states = c.draft_states,
          .page_tokens = c.page_tokens};
}

PoolSize pool_size(const EngineConfig& c) {
  return {.slots = c.max_sequences + c.prefix_snapshots,
          .draft_slots = c.draft_states == DraftStates::slots ? c.max_sequences * c.drafts : 0,
          .pages = cache_pages(c),
          .columns = 1 + c.drafts};
}

PrefixConfig prefix_config(const EngineConfig& c) {
  return {.page_tokens = c.page_tokens,
          .unit = std::lcm(c.page_tokens, c.prefill_grid),
          .snapshots = c.prefix_snapshots,
          .interval = c.prefix_interval};
}

int64_t replay_numbers(const EngineConfig& c) {
  if (c.device.kind == DeviceKind::cpu || c.drafts == 0 || c.draft_states == DraftStates::slots) return 0;
  return 1 + std::max(pool_size(c).slots, 1 + c.drafts);
}

BatchCapacity batch_capacity(const EngineConfig& c) {
  // A lone prefill may exceed a budget smaller than the grid.
  int64_t tokens = std::max({c.token_budget, c.prefill_grid, c.max_sequences});
  int64_t logits = c.all_logits ? tokens : std::min(tokens, c.max_sequences * (1 + c.drafts));
  for (const Bucket& b : c.buckets) {
    tokens = std::max(tokens, b.tokens());
    if (!b.mixed()) logits = std::max(logits, b.tokens());
  }
  return {.tokens = tokens,
          .sequences = c.max_sequences,
          .columns = 1 + c.drafts,
          .pages = pages_for(c.max_length, c.page_tokens),
          .page_tokens = c.page_tokens,
          .logit_rows = logits,
          .snapshots = c.prefix_snapshots == 0 ? 0 : tokens / prefix_config(c).unit + c.max_sequences};
}

DraftStates lighter_draft_states(const Model& model, const EngineConfig& config) {
  const auto bytes = [&](DraftStates states) {
    StateParams params = state_params(config);
    params.draft_states = states;
    return sequence_bytes(model.states(params), params.columns);
  };
  return bytes(DraftStates::slots) < bytes(DraftStates::records) ? DraftStates::slots : DraftStates::records;
}

void check_config(const EngineConfig& c) {
  // Words are put together for a refusal alone.
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
  if (cache_pages(c) < pages_for(c.max_length, c.page_tokens))
    fail(ErrorCode::invalid_argument, "cache_tokens: ", c.cache_tokens, ", expected at least max_length, ",
         c.max_length);
  if (c.drafts < 0 || c.drafts > kMostDrafts)
    fail(ErrorCode::invalid_argument, "drafts: ", c.drafts, ", expected 0 to ", kMostDrafts);
  require(!c.all_logits || (c.drafts == 0 && c.prefix_snapshots == 0), "all_logits", 1,
          "neither drafts nor prefix_snapshots with it");
  require(c.prefix_snapshots >= 0 && c.prefix_snapshots <= kMost, "prefix_snapshots", c.prefix_snapshots, "0 to 2^30");
  require(c.prefix_interval >= 1, "prefix_interval", c.prefix_interval, ">= 1");
  require(c.save_bytes >= 0, "save_bytes", c.save_bytes, ">= 0");
  for (const Bucket& b : c.buckets) {
    require(b.rows >= 1 && b.rows <= c.max_sequences, "buckets: rows", b.rows, "1 to max_sequences");
    if (b.mixed()) {
      require(b.mixed_tokens <= c.token_budget, "buckets: mixed_tokens", b.mixed_tokens, "at most token_budget");
      require(!c.all_logits, "all_logits", 1, "no mixed buckets with it");
      continue;
    }
    require(b.row_tokens >= 1 && b.row_tokens <= 1 + c.drafts, "buckets: row_tokens", b.row_tokens, "1 to 1 + drafts");
  }
}

int64_t walk_step(const Model& model, const EngineConfig& c, bool decode, OpObserver* observer) {
  ThreadPool threads(c.options.threads);
  const Scratch s = walk(model, c, decode, observer, threads);
  return s.main + s.aux;
}

MemoryPlan plan_memory(const Model& model, const EngineConfig& config, int64_t drafter_bytes) {
  check_config(config);
  (void)break_list(model.sublayers(), config.break_at);
  const auto specs = model.states(state_params(config));
  const BatchCapacity capacity = batch_capacity(config);
  MemoryPlan p;
  p.sequence_bytes = sequence_bytes(specs, 1 + config.drafts);
  p.page_bytes = page_bytes(specs);
  const Device device = config.device;
  p.slots = pool_bytes(device, specs, StateKind::slot, pool_size(config));
  p.pages = pool_bytes(device, specs, StateKind::page, pool_size(config));
  ThreadPool threads(config.options.threads);
  Scratch scratch;
  for (const bool decode : {false, true}) scratch.widen(walk(model, config, decode, nullptr, threads));
  if (device.kind != DeviceKind::cpu) {  // small steps use two queues
    EngineConfig small = config;
    small.token_budget = std::min(config.token_budget, config.options.overlap_rows);
    small.max_sequences = std::min(config.max_sequences, small.token_budget);
    small.prefill_grid = 1;
    small.buckets.clear();
    for (const bool decode : {false, true})
      if (small.token_budget > 0) scratch.widen(walk(model, small, decode, nullptr, threads));
  }
  p.aux_scratch = device.kind == DeviceKind::cpu ? 0 : device_bytes(device, scratch.aux);
  p.scratch = device_bytes(device, scratch.main) + p.aux_scratch;
  p.logits = device_bytes(device, capacity.logit_rows * model.config().vocab_size * 4);
  const bool cpu = device.kind == DeviceKind::cpu;
  const int64_t batch = BatchBuilder::bytes(capacity), draws = cpu ? 0 : DeviceSampler::bytes(capacity.logit_rows);
  p.batch = device_bytes(device, batch) + device_bytes(device, replay_numbers(config) * 4) + draws;
  p.host = Engine::host_bytes(config) + object_bytes(specs);
  if (!cpu) p.host += batch + draws;  // what is copied from and to the device
  p.drafter = drafter_bytes;
  p.saved = config.save_bytes;
  return p;
}

}  // namespace kdelta::runtime
