#include "kdelta/runtime/prefix_cache.h"

#include <algorithm>
#include <bit>
#include <cstring>

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
    case ReuseLimit::waiting:
      return "the request has not started";
    case ReuseLimit::off:
      return "the engine keeps no prefixes";
    case ReuseLimit::own_state:
      return "the request came with a state of its own";
    case ReuseLimit::withheld:
      return "pages were so scarce that the request started without a prefix";
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
  if (config.snapshots == 0) return;
  const auto n = static_cast<size_t>(pool.size().pages + 1);
  nodes_.resize(n);
  tokens_.resize(n * static_cast<size_t>(config.page_tokens));
  buckets_.assign(std::bit_ceil(n), -1);
  with_snapshot_.reserve(static_cast<size_t>(config.snapshots));
}

int64_t PrefixCache::bytes(const PrefixConfig& config, int64_t pages) {
  if (config.snapshots == 0) return 0;
  const auto n = static_cast<uint64_t>(pages + 1);
  return static_cast<int64_t>(n * sizeof(Node) + std::bit_ceil(n) * 4) + (pages + 1) * config.page_tokens * 4 +
         config.snapshots * 4;
}

int PrefixCache::child(uint64_t key, int parent, std::span<const int32_t> tokens) const {
  if (buckets_.empty()) return -1;
  for (int n = buckets_[bucket_of(key)]; n >= 0; n = at(n).next)
    if (at(n).key == key && at(n).parent == parent &&
        std::equal(tokens.begin(), tokens.end(), tokens_.begin() + n * config_.page_tokens))
      return n;
  return -1;
}

PrefixCache::Hit PrefixCache::find(std::span<const int32_t> prompt) const {
  Hit hit;
  const auto P = static_cast<size_t>(config_.page_tokens);
  const int64_t most = static_cast<int64_t>(prompt.size()) - 1;  // one token has to be computed for its logits
  uint64_t key = 0;
  int node = -1;
  for (size_t from = 0; from + P <= prompt.size(); from += P) {
    key = chain(key, prompt.subspan(from, P));
    node = child(key, node, prompt.subspan(from, P));
    if (node < 0) break;
    const auto tokens = static_cast<int64_t>(from + P);
    if (tokens <= most) hit.reuse.matched = tokens;
    if (tokens > most || at(node).slot < 0) continue;
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

PrefixCache::Hit PrefixCache::withhold(std::span<const int32_t> prompt) const {
  Hit hit = find(prompt);
  if (hit.node >= 0) hit.reuse.limit = ReuseLimit::withheld;
  hit.reuse.tokens = 0;
  hit.node = -1;
  return hit;
}

void PrefixCache::share(const Hit& hit, std::vector<int32_t>& pages) const {
  KDELTA_CHECK(pages.empty());
  for (int n = hit.node; n >= 0; n = at(n).parent) pages.push_back(n);
  std::reverse(pages.begin(), pages.end());
  for (const int32_t p : pages) pool_.share_page(p);
}

void PrefixCache::touch(int node) {
  ++clock_;
  for (; node >= 0; node = at(node).parent) at(node).used = clock_;
}

void PrefixCache::use(const Hit& hit, int32_t slot) {
  ++stats_.lookups;
  stats_.lost_tokens += hit.reuse.matched - hit.reuse.tokens;
  if (hit.node < 0) return;
  ++stats_.hits;
  stats_.hit_tokens += hit.reuse.tokens;
  touch(hit.node);
  pool_.copy_slot(at(hit.node).slot, slot);
}

// Of those used at the same time, the one that saves least.
bool PrefixCache::older(int a, int b) const {
  return std::pair(at(a).used, at(a).depth) < std::pair(at(b).used, at(b).depth);
}

template <class F>
int PrefixCache::oldest_leaf(const F& eligible) const {
  int best = -1;
  for (int n = 0; n < end_; ++n)
    if (at(n).live && at(n).children == 0 && eligible(n) && (best < 0 || older(n, best))) best = n;
  return best;
}

void PrefixCache::drop_snapshot(int node) {
  Node& n = at(node);
  if (n.slot < 0) return;
  pool_.give_back_slot(n.slot);
  n.slot = -1;
  std::erase(with_snapshot_, node);
  --slots_;
  ++stats_.evicted;
}

// A leaf without a snapshot serves nobody.
void PrefixCache::prune(int node) {
  while (node >= 0) {
    if (at(node).children > 0 || at(node).slot >= 0) return;
    int32_t* link = &buckets_[bucket_of(at(node).key)];
    while (*link != node) link = &at(*link).next;
    *link = at(node).next;
    const int parent = at(node).parent;
    at(node) = Node{};
    pool_.set_cached(node, false);
    pool_.drop_page(node);
    if (parent >= 0) --at(parent).children;
    node = parent;
  }
}

int32_t PrefixCache::reserve() {
  if (slots_ >= config_.snapshots) {
    const auto victim =
        std::min_element(with_snapshot_.begin(), with_snapshot_.end(), [this](int a, int b) { return older(a, b); });
    if (victim == with_snapshot_.end()) {
      ++stats_.skipped;
      return -1;
    }
    const int node = *victim;
    drop_snapshot(node);
    prune(node);
  }
  ++slots_;
  return pool_.take_slot();
}

int64_t PrefixCache::common(std::span<const int32_t> earlier, std::span<const int32_t> later) const {
  const int64_t most = std::min(std::ssize(earlier), std::ssize(later) - 1) / config_.unit * config_.unit;
  const auto bytes = static_cast<size_t>(config_.unit) * sizeof(int32_t);
  int64_t tokens = 0;
  while (tokens < most && std::memcmp(earlier.data() + tokens, later.data() + tokens, bytes) == 0)
    tokens += config_.unit;
  return tokens;
}

void PrefixCache::boundaries(int64_t prompt, std::span<const int64_t> wanted, int64_t from, int64_t to,
                             std::vector<int64_t>* out) const {
  out->clear();
  const int64_t unit = config_.unit, last = prompt / unit * unit;
  // One prompt takes at most half of the budget.
  int64_t step = std::max(unit, config_.interval / unit * unit);
  while (last / step > std::max<int64_t>(1, config_.snapshots / 2)) step *= 2;
  for (int64_t b = (from / unit + 1) * unit; b <= to; b += unit)
    if (b == last || b % step == 0 || std::ranges::find(wanted, b) != wanted.end()) out->push_back(b);
}

// The number of a node is that of its page.
void PrefixCache::add(uint64_t key, int parent, std::span<const int32_t> tokens, int32_t page) {
  KDELTA_CHECK(!at(page).live, "page ", page, " is a prefix already");
  int32_t& first = buckets_[bucket_of(key)];
  at(page) = {
      .key = key, .parent = parent, .next = first, .depth = parent < 0 ? 1 : at(parent).depth + 1, .live = true};
  first = page;
  std::copy(tokens.begin(), tokens.end(), tokens_of(page));
  end_ = std::max(end_, page + 1);
  if (parent >= 0) ++at(parent).children;
  pool_.share_page(page);
  pool_.set_cached(page, true);
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
    const int parent = node;
    node = child(key, parent, tokens);
    if (node < 0) add(key, parent, tokens, node = pages[i]);
    if (snapshots[next].tokens != static_cast<int64_t>((i + 1) * P)) continue;
    if (at(node).slot < 0) {
      at(node).slot = snapshots[next].slot;
      with_snapshot_.push_back(node);
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
  return pool_.cached_pages();
}

bool PrefixCache::evict_page() {
  const int64_t before = pool_.free_pages();
  while (pool_.free_pages() == before) {
    // Leaves that free something first; a leaf that a running request owns too may still hide others.
    int leaf = oldest_leaf([this](int n) { return pool_.page_owners(n) == 1; });
    if (leaf < 0 && evictable_pages() > 0) leaf = oldest_leaf([](int) { return true; });
    if (leaf < 0) return false;
    drop_snapshot(leaf);
    prune(leaf);
  }
  return true;
}

void PrefixCache::clear() {
  for (;;) {
    const int leaf = oldest_leaf([](int) { return true; });
    if (leaf < 0) return;
    drop_snapshot(leaf);
    prune(leaf);
  }
}

}  // namespace kdelta::runtime
