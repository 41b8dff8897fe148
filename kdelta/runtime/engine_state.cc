// A live request out of the engine and into another one.
#include <algorithm>
#include <cstring>

#include "kdelta/core/check.h"
#include "kdelta/runtime/engine.h"

namespace kdelta::runtime {
namespace {

// The parts of a settled state of `tokens` tokens, without data, in the order in which the pool saves them. How drafts
// were kept has left no trace in it.
std::vector<StatePart> empty_parts(const LayerStates& layers, int64_t columns, int64_t tokens) {
  std::vector<StatePart> parts;
  for (size_t l = 0; l < layers.size(); ++l)
    for (const StateSpec& s : layers[l]) {
      if (s.kind == StateKind::slot && s.rule == SlotRule::record) continue;
      parts.push_back({.layer = static_cast<int>(l), .spec = s});
      int64_t& first = parts.back().spec.shape.dim[0];
      if (s.kind == StateKind::page)
        first = tokens;
      else if (s.rule == SlotRule::window)
        first -= columns - 1;
      else
        parts.back().spec.rule = SlotRule::column;
    }
  return parts;
}

}  // namespace

StateImage Engine::empty_image() const {
  StateImage image;
  image.model = config_.model_id;
  image.arithmetic = config_.arithmetic;
  image.shard = model_.shard().rank;
  image.shards = model_.shard().ranks;
  image.grid = config_.prefill_grid;
  return image;
}

void Engine::add_parts(StateImage& image, std::span<const char> bytes) const {
  image.parts = empty_parts(model_.states(state_params(config_)), 1 + config_.drafts, image.computed);
  const char* at = bytes.data();
  for (StatePart& p : image.parts) {
    p.data.assign(at, at + p.spec.bytes());
    at += p.spec.bytes();
  }
  KDELTA_CHECK(at == bytes.data() + bytes.size());
}

StateImage Engine::export_state(RequestId id) {
  const auto found = std::find_if(requests_.begin(), requests_.end(), [&](const auto& r) { return r->id == id; });
  if (found == requests_.end() || (*found)->finish != FinishReason::none)
    fail(ErrorCode::invalid_argument, "request: ", id, " is not live");
  Request& r = **found;
  StateImage image = empty_image();
  image.prompt = r.prompt;
  image.output = r.output;
  image.options = r.options;
  std::vector<char> bytes = r.saved;
  if (!r.slots.empty() && r.computed > 0) {
    bytes.resize(static_cast<size_t>(pool_->saved_bytes(r.computed)));
    // Settling in place changes where the state begins, not what it is.
    pool_->settle(r.slots, r.accepted);
    r.accepted = 1;
    pool_->save(r.slots[0], r.pages, r.computed, bytes);
  }
  image.computed = bytes.empty() ? 0 : r.computed;  // nothing is kept of one that waits
  if (image.computed > 0) add_parts(image, bytes);
  return image;
}

namespace {

std::string shard_text(int shard, int shards) {
  return shards == 1 ? "the whole" : str("shard ", shard, " of ", shards);
}

[[noreturn]] void refuse(const std::string& what) {
  fail(ErrorCode::invalid_argument, "state: ", what);
}

std::string describe(const StatePart& p) {
  const char* kind = p.spec.kind == StateKind::page ? ", pages" : is_window(p.spec) ? ", window" : "";
  return str(p.spec.name, " of layer ", p.layer, ": ", dtype_name(p.spec.dtype), " ", to_string(p.spec.shape), kind);
}

// How a window lies is free.
void expect_part(const StatePart& got, const StatePart& want) {
  const StateSpec &g = got.spec, &w = want.spec;
  if (got.layer != want.layer || g.name != w.name || g.kind != w.kind || is_window(g) != is_window(w) ||
      g.dtype != w.dtype || !(g.shape == w.shape) || static_cast<int64_t>(got.data.size()) != w.bytes())
    refuse(str(describe(got), ", expected ", describe(want)));
}

}  // namespace

// Of this model, of the part of it that is here, and cut as this engine cuts.
void Engine::check_image(const StateImage& image) const {
  if (image.model != config_.model_id)
    refuse(str("of another model, number ", image.model, ", this one is ", config_.model_id));
  const Shard& own = model_.shard();
  if (image.shards != own.ranks || image.shard != own.rank)
    refuse(str(shard_text(image.shard, image.shards), ", expected ", shard_text(own.rank, own.ranks)));
  if (image.grid != config_.prefill_grid)
    refuse(str("its prompt is cut at multiples of ", image.grid, ", this engine's prefill_grid is ",
               config_.prefill_grid));
}

// The parts as the pool loads them, each checked against what this engine keeps.
std::vector<char> Engine::joined_parts(const StateImage& image) const {
  std::vector<char> bytes;
  const auto parts = empty_parts(model_.states(state_params(config_)), 1 + config_.drafts, image.computed);
  if (parts.size() != image.parts.size()) refuse(str(image.parts.size(), " parts, this model has ", parts.size()));
  for (size_t i = 0; i < parts.size(); ++i) expect_part(image.parts[i], parts[i]);
  bytes.reserve(static_cast<size_t>(pool_->saved_bytes(image.computed)));
  for (const StatePart& p : with_layout(image, WindowLayout::token_major).parts)
    bytes.insert(bytes.end(), p.data.begin(), p.data.end());
  return bytes;
}

RequestId Engine::import_state(const StateImage& image) {
  check_image(image);
  auto r = checked(image.prompt, image.options);
  const int64_t vocab = model_.config().vocab_size;
  for (const int32_t id : image.output)
    if (id < 0 || id >= vocab) refuse(str("token ", id, ", expected 0..", vocab - 1));
  if (static_cast<int64_t>(image.output.size()) >= r->options.max_tokens)
    refuse(str(image.output.size(), " tokens of output, the request ends at ", r->options.max_tokens));
  r->output.insert(r->output.end(), image.output.begin(), image.output.end());
  if (image.computed < 0 || image.computed >= r->known())
    refuse(str(image.computed, " tokens computed of ", r->known(), ", expected one left at least"));
  r->computed = image.computed;
  if (image.computed > 0) {
    r->saved = joined_parts(image);
    r->reuse.limit = ReuseLimit::own_state;
  }
  const auto kept = static_cast<int64_t>(r->saved.size());
  const RequestId id = enqueue(std::move(r));
  saved_bytes_ += kept;
  return id;
}

StateImage Engine::export_prefix(std::span<const int32_t> prompt) {
  StateImage image = empty_image();
  if (config_.prefix_snapshots == 0) return image;
  const PrefixCache::Hit hit = prefixes_->find(prompt);
  image.computed = hit.reuse.tokens;
  if (image.computed == 0) return image;
  image.prompt.assign(prompt.begin(), prompt.begin() + image.computed);
  std::vector<char> bytes(static_cast<size_t>(pool_->saved_bytes(image.computed)));
  std::vector<int32_t> pages;
  pages.reserve(static_cast<size_t>(capacity_.pages));
  prefixes_->share(hit, pages);
  pool_->save(prefixes_->slot_of(hit), pages, image.computed, bytes);
  pool_->drop_pages(pages);
  add_parts(image, bytes);
  return image;
}

void Engine::check_prefix(const StateImage& image) const {
  check_image(image);
  if (config_.prefix_snapshots == 0) refuse("a prefix, and prefix_snapshots is 0");
  const int64_t unit = prefixes_->config().unit, tokens = image.computed;
  if (tokens <= 0 || tokens % unit != 0 || tokens != std::ssize(image.prompt) || !image.output.empty())
    refuse(str(tokens, " tokens computed of ", std::ssize(image.prompt), " and ", image.output.size(),
               " of output, expected a prompt alone, all of it computed, a multiple of ", unit));
  (void)checked(image.prompt, {});  // its ids, and room for a token behind it
}

bool Engine::import_prefix(const StateImage& image) {
  check_prefix(image);
  const int64_t tokens = image.computed;
  const std::vector<char> bytes = joined_parts(image);
  std::vector<int32_t> pages;
  const int64_t need = pages_for(tokens, config_.page_tokens);
  pages.reserve(static_cast<size_t>(need));
  // Making room evicts prefixes; should that not do, those that went would have been the next to go.
  const int32_t slot = prefixes_->reserve();
  if (slot < 0) return false;
  const PrefixCache::Written written{.tokens = tokens, .slot = slot};
  while (std::ssize(pages) < need && (pool_->free_pages() > 0 || prefixes_->evict_page()))
    pages.push_back(pool_->take_page());
  const bool fits = std::ssize(pages) == need;
  if (fits) {
    pool_->load(bytes, tokens, slot, pages);
    prefixes_->publish(image.prompt, pages, {&written, 1});
  } else {
    prefixes_->discard({&written, 1});
  }
  pool_->drop_pages(pages);
  return fits;
}

}  // namespace kdelta::runtime
