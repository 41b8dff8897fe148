// A live request out of the engine and into another one.
#include <algorithm>
#include <cstring>

#include "kdelta/core/check.h"
#include "kdelta/runtime/engine.h"

namespace kdelta::runtime {
namespace {

// The parts of a settled state of `tokens` tokens, without data, in the order in which the pool saves them.
std::vector<StatePart> empty_parts(const LayerStates& layers, int64_t columns, int64_t tokens) {
  std::vector<StatePart> parts;
  for (size_t l = 0; l < layers.size(); ++l)
    for (const StateSpec& s : layers[l]) {
      parts.push_back({.layer = static_cast<int>(l), .spec = s});
      int64_t& first = parts.back().spec.shape.dim[0];
      if (s.kind == StateKind::page)
        first = tokens;
      else if (s.rule == SlotRule::window)
        first -= columns - 1;
    }
  return parts;
}

}  // namespace

StateImage Engine::export_state(RequestId id) {
  const auto found = std::find_if(requests_.begin(), requests_.end(), [&](const auto& r) { return r->id == id; });
  if (found == requests_.end() || (*found)->finish != FinishReason::none)
    fail(ErrorCode::invalid_argument, "request: ", id, " is not live");
  Request& r = **found;
  StateImage image{.model = config_.model_id, .prompt = r.prompt, .output = r.output, .options = r.options};
  std::vector<char> bytes = r.saved;
  if (!r.slots.empty() && r.computed > 0) {
    // Settling in place changes where the state begins, not what it is.
    pool_->settle(r.slots, r.accepted);
    r.accepted = 1;
    bytes.resize(static_cast<size_t>(pool_->saved_bytes(r.computed)));
    pool_->save(r.slots[0], r.pages, r.computed, bytes);
  }
  image.computed = bytes.empty() ? 0 : r.computed;  // nothing is kept of one that waits
  if (image.computed == 0) return image;
  image.parts = empty_parts(model_.states(state_params(config_)), 1 + config_.drafts, image.computed);
  const char* at = bytes.data();
  for (StatePart& p : image.parts) {
    p.data.assign(at, at + p.spec.bytes());
    at += p.spec.bytes();
  }
  KDELTA_CHECK(at == bytes.data() + bytes.size());
  return image;
}

RequestId Engine::import_state(const StateImage& given) {
  const auto refuse = [](const std::string& what) { fail(ErrorCode::invalid_argument, "state: ", what); };
  if (given.model != config_.model_id) refuse("of another model");
  if (given.shards != 1) refuse(str("shard ", given.shard, " of ", given.shards, ", expected the whole"));
  const StateImage image = with_layout(given, WindowLayout::token_major);
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
    const auto parts = empty_parts(model_.states(state_params(config_)), 1 + config_.drafts, image.computed);
    if (parts.size() != image.parts.size()) refuse(str(image.parts.size(), " parts, this model has ", parts.size()));
    r->saved.reserve(static_cast<size_t>(pool_->saved_bytes(image.computed)));
    for (size_t i = 0; i < parts.size(); ++i) {
      const StatePart &want = parts[i], &got = image.parts[i];
      if (got.layer != want.layer || got.spec.name != want.spec.name || got.spec.dtype != want.spec.dtype ||
          !(got.spec.shape == want.spec.shape) || static_cast<int64_t>(got.data.size()) != want.spec.bytes())
        refuse(str(got.spec.name, " of layer ", got.layer, ": ", dtype_name(got.spec.dtype), " ",
                   to_string(got.spec.shape), ", expected ", want.spec.name, " of layer ", want.layer, ": ",
                   dtype_name(want.spec.dtype), " ", to_string(want.spec.shape)));
      r->saved.insert(r->saved.end(), got.data.begin(), got.data.end());
    }
    saved_bytes_ += static_cast<int64_t>(r->saved.size());
  }
  return enqueue(std::move(r));
}

}  // namespace kdelta::runtime
