#include "kdelta/runtime/prefix_cache.h"

#include <algorithm>

#include "kdelta/core/check.h"

namespace kdelta::runtime {
namespace {

// Mixes one token into a chain (splitmix64).
uint64_t mix(uint64_t h, uint64_t value) {
  uint64_t z = h + 0x9e3779b97f4a7c15u + value;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

uint64_t chain(uint64_t parent, std::span<const int32_t> tokens) {
  for (const int32_t t : tokens) parent = mix(parent, static_cast<uint32_t>(t));
  return parent;
}

}  // namespace

const char* to_string(ReuseLimit limit) {
  switch (limit) {
    case ReuseLimit::none:
      return "everything but the prompt's end was reused";
    case ReuseLimit::off:
      return "the engine keeps no prefixes";
    case ReuseLimit::too_short:
      return "the prompt is no longer than one unit of reuse";
    case ReuseLimit::unknown:
      return "nothing is known of the prompt's beginning";
    case ReuseLimit::difference:
      return "the prompt differs behind the reused part";
    case ReuseLimit::no_snapshot:
      return "the prompt matches further, but no state was kept there";
  }
  KDELTA_UNREACHABLE("reuse limit", limit);
}

PrefixCache::PrefixCache(StatePool& pool, const PrefixConfig& config) : pool_(pool), config_(config) {
  KDELTA_CHECK(config.unit >= 1 && config.unit % config.page_tokens == 0 && config.interval >= 1);
}

int PrefixCache::child(uint64_t key, int parent, std::span<const int32_t> tokens) const {
  const auto it = by_key_.find(key);
  if (it == by_key_.end()) return -1;
  const Node& n = nodes_[static_cast<size_t>(it->second)];
  return n.parent == parent && std::equal(tokens.begin(), tokens.end(), n.tokens.begin(), n.tokens.end()) ? it->second
                                                                                                          : -1;
}

PrefixCache::Hit PrefixCache::find(std::span<const int32_t> prompt) const {
  Hit hit;
  const auto P = static_cast<size_t>(config_.page_tokens);
  const int64_t most = static_cast<int64_t>(prompt.size()) - 1;  // one token has to be computed for its logits
  uint64_t key = 0;
  int node = -1;
  for (size_t at = 0; at + P <= prompt.size(); at += P) {
    key = chain(key, prompt.subspan(at, P));
    node = child(key, node, prompt.subspan(at, P));
    if (node < 0) break;
    const auto tokens = static_cast<int64_t>(at + P);
    if (tokens <= most) hit.reuse.matched = tokens;
    if (tokens > most || nodes_[static_cast<size_t>(node)].slot < 0) continue;
    hit.node = node;
    hit.reuse.tokens = tokens;
  }
  hit.reuse.matched = hit.reuse.matched / config_.unit * config_.unit;
  const int64_t possible = most / config_.unit * config_.unit;
  hit.reuse.limit = possible == 0                          ? ReuseLimit::too_short
                    : hit.reuse.tokens == possible         ? ReuseLimit::none
                    : hit.reuse.matched > hit.reuse.tokens ? ReuseLimit::no_snapshot
                    : hit.reuse.tokens > 0                 ? ReuseLimit::difference
                                                           : ReuseLimit::unknown;
  return hit;
}

void PrefixCache::share(const Hit& hit, std::vector<int32_t>& pages) const {
  KDELTA_CHECK(pages.empty());
  for (int n = hit.node; n >= 0; n = nodes_[static_cast<size_t>(n)].parent)
    pages.push_back(nodes_[static_cast<size_t>(n)].page);
  std::reverse(pages.begin(), pages.end());
  for (const int32_t p : pages) pool_.share_page(p);
}

void PrefixCache::touch(int node) {
  ++clock_;
  for (; node >= 0; node = nodes_[static_cast<size_t>(node)].parent) nodes_[static_cast<size_t>(node)].used = clock_;
}

void PrefixCache::use(const Hit& hit, int32_t slot) {
  ++stats_.lookups;
  stats_.lost_tokens += hit.reuse.matched - hit.reuse.tokens;
  if (hit.node < 0) return;
  ++stats_.hits;
  stats_.hit_tokens += hit.reuse.tokens;
  touch(hit.node);
  pool_.copy_slot(nodes_[static_cast<size_t>(hit.node)].slot, slot);
}

template <class F>
int PrefixCache::oldest(const F& eligible) const {
  int best = -1;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const Node& n = nodes_[i];
    if (!n.live || !eligible(n)) continue;
    // Of snapshots used at the same time the one that saves least goes first.
    const auto rank = [](const Node& x) { return std::pair(x.used, x.depth); };
    if (best < 0 || rank(n) < rank(nodes_[static_cast<size_t>(best)])) best = static_cast<int>(i);
  }
  return best;
}

void PrefixCache::drop_snapshot(int node) {
  Node& n = nodes_[static_cast<size_t>(node)];
  if (n.slot < 0) return;
  pool_.give_back_slot(n.slot);
  n.slot = -1;
  --slots_;
  ++stats_.evicted;
}

// A leaf without a snapshot serves nobody.
void PrefixCache::prune(int node) {
  while (node >= 0) {
    Node& n = nodes_[static_cast<size_t>(node)];
    if (n.children > 0 || n.slot >= 0) return;
    by_key_.erase(n.key);
    pool_.drop_page(n.page);
    const int parent = n.parent;
    n = Node{};
    free_nodes_.push_back(node);
    if (parent >= 0) --nodes_[static_cast<size_t>(parent)].children;
    node = parent;
  }
}

int32_t PrefixCache::reserve() {
  if (slots_ >= config_.snapshots) {
    const int victim = oldest([](const Node& n) { return n.slot >= 0; });
    if (victim < 0) {
      ++stats_.skipped;
      return -1;
    }
    drop_snapshot(victim);
    prune(victim);
  }
  ++slots_;
  return pool_.take_slot();
}

void PrefixCache::boundaries(int64_t prompt, int64_t matched, int64_t from, int64_t to,
                             std::vector<int64_t>* out) const {
  out->clear();
  const int64_t unit = config_.unit, last = prompt / unit * unit;
  // One prompt takes at most half of the budget.
  int64_t step = std::max(unit, config_.interval / unit * unit);
  while (last / step > std::max<int64_t>(1, config_.snapshots / 2)) step *= 2;
  for (int64_t b = (from / unit + 1) * unit; b <= to; b += unit)
    if (b == last || b == matched || b % step == 0) out->push_back(b);
}

int PrefixCache::add(uint64_t key, int parent, std::span<const int32_t> tokens, int32_t page) {
  if (by_key_.contains(key)) return -1;  // another chain of the same hash
  int index = static_cast<int>(nodes_.size());
  if (free_nodes_.empty()) {
    nodes_.emplace_back();
  } else {
    index = free_nodes_.back();
    free_nodes_.pop_back();
  }
  const int64_t depth = parent < 0 ? 1 : nodes_[static_cast<size_t>(parent)].depth + 1;
  nodes_[static_cast<size_t>(index)] = {.key = key,
                                        .parent = parent,
                                        .depth = depth,
                                        .page = page,
                                        .tokens = {tokens.begin(), tokens.end()},
                                        .live = true};
  if (parent >= 0) ++nodes_[static_cast<size_t>(parent)].children;
  by_key_.emplace(key, index);
  pool_.share_page(page);
  return index;
}

void PrefixCache::publish(std::span<const int32_t> prompt, std::span<const int32_t> pages,
                          std::span<const Written> snapshots) {
  const auto P = static_cast<size_t>(config_.page_tokens);
  uint64_t key = 0;
  int node = -1, last = -1;
  size_t next = 0;
  for (size_t i = 0; next < snapshots.size() && (i + 1) * P <= prompt.size(); ++i) {
    const auto tokens = prompt.subspan(i * P, P);
    key = chain(key, tokens);
    int found = child(key, node, tokens);
    if (found < 0) found = add(key, node, tokens, pages[i]);
    if (found < 0) break;
    node = found;
    if (snapshots[next].tokens != static_cast<int64_t>((i + 1) * P)) continue;
    Node& n = nodes_[static_cast<size_t>(node)];
    if (n.slot < 0) {
      n.slot = snapshots[next].slot;
      ++stats_.published;
      last = node;
    } else {
      discard(snapshots.subspan(next, 1));
    }
    ++next;
  }
  discard(snapshots.subspan(next));
  if (last >= 0) touch(last);
  prune(node);
}

void PrefixCache::discard(std::span<const Written> snapshots) {
  for (const Written& w : snapshots) {
    pool_.give_back_slot(w.slot);
    --slots_;
  }
}

int64_t PrefixCache::evictable_pages() const {
  int64_t count = 0;
  for (const Node& n : nodes_)
    if (n.live && pool_.page_owners(n.page) == 1) ++count;
  return count;
}

bool PrefixCache::evict_page() {
  const int64_t before = pool_.free_pages();
  while (pool_.free_pages() == before) {
    // Leaves that free something first; a leaf that a running request owns too may still hide others.
    int leaf = oldest([&](const Node& n) { return n.children == 0 && pool_.page_owners(n.page) == 1; });
    if (leaf < 0 && evictable_pages() > 0) leaf = oldest([](const Node& n) { return n.children == 0; });
    if (leaf < 0) return false;
    drop_snapshot(leaf);
    prune(leaf);
  }
  return true;
}

void PrefixCache::clear() {
  for (;;) {
    const int leaf = oldest([](const Node& n) { return n.children == 0; });
    if (leaf < 0) return;
    drop_snapshot(leaf);
    prune(leaf);
  }
}

}  // namespace kdelta::runtime
