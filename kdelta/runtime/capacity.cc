#include "kdelta/runtime/capacity.h"

#include <algorithm>

#include "kdelta/core/buffer.h"
#include "kdelta/core/check.h"

namespace kdelta::runtime {
namespace {

template <class Wanted>
int64_t sum_bytes(const LayerStates& layers, const Wanted& wanted) {
  int64_t bytes = 0;
  for (const auto& layer : layers)
    for (const StateSpec& s : layer)
      if (wanted(s)) bytes += s.bytes();
  return bytes;
}

}  // namespace

int64_t slot_bytes(const LayerStates& layers) {
  return sum_bytes(layers, [](const StateSpec& s) { return s.kind == StateKind::slot; });
}

int64_t draft_slot_bytes(const LayerStates& layers) {
  return sum_bytes(layers, [](const StateSpec& s) { return s.kind == StateKind::slot && s.rule == SlotRule::column; });
}

int64_t page_bytes(const LayerStates& layers) {
  return sum_bytes(layers, [](const StateSpec& s) { return s.kind == StateKind::page; });
}

int64_t sequence_bytes(const LayerStates& layers, int64_t columns) {
  return slot_bytes(layers) + (columns - 1) * draft_slot_bytes(layers);
}

int64_t pool_count(const StateSpec& spec, const PoolSize& size) {
  if (spec.kind == StateKind::page) return size.pages + 1;
  return size.slots + 1 + (spec.rule == SlotRule::column ? size.draft_slots : 0);
}

int64_t pool_bytes(Device device, const LayerStates& layers, StateKind kind, const PoolSize& size) {
  int64_t bytes = 0;
  for (const auto& layer : layers)
    for (const StateSpec& s : layer)
      if (s.kind == kind) bytes += device_bytes(device, pool_count(s, size) * s.bytes());
  return bytes;
}

int64_t tokens_of_shared_page(int64_t one_slot_bytes, int64_t token_bytes, int64_t step) {
  KDELTA_CHECK(one_slot_bytes > 0 && token_bytes > 0 && step > 0);
  const int64_t tokens = (one_slot_bytes + token_bytes - 1) / token_bytes;
  return (tokens + step - 1) / step * step;
}

int64_t table_columns(int64_t max_length, int64_t page_tokens, int64_t drafts) {
  return pages_for(max_length, page_tokens) + drafts;
}

std::vector<int64_t> group_layers(int64_t attention, int64_t draft_attention, int64_t recurrent, double* padding) {
  KDELTA_CHECK(attention > 0 && draft_attention >= 0 && recurrent > 0);
  const int64_t groups = (recurrent + attention - 1) / attention;
  if (padding != nullptr)
    *padding = static_cast<double>(groups * attention - recurrent) / static_cast<double>(recurrent);
  std::vector<int64_t> layers{attention + draft_attention};
  for (int64_t g = 0; g < groups; ++g) layers.push_back(recurrent / groups + (g < recurrent % groups ? 1 : 0));
  return layers;
}

}  // namespace kdelta::runtime
