// What earlier requests computed of a prompt's beginning, kept for the next request that begins alike. A node is one
// page of tokens, found through the hash of all tokens up to its end (and compared token by token: a collision is a
// miss). Its page of latents serves as long as the chain before it does; to continue from its end takes a snapshot of
// recurrent state and window there, in a home slot of the pool. Only what a finished prefill wrote is ever published,
// so a snapshot that nobody wrote cannot be found.
//
// Pages are shared by counting owners; prompts meet pages only in whole, so nobody writes a shared page. A snapshot is
// copied into the request's own slot before its first step (copy on write, at the moment of the first write). Least
// recently used goes first. One thread; deterministic.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "kdelta/runtime/state_pool.h"

namespace kdelta::runtime {

struct PrefixConfig {
  int64_t page_tokens = 64;
  int64_t unit = 64;       // snapshots stand at multiples of this many tokens: of the page and the prefill grid
  int64_t snapshots = 0;   // most that may exist, pending ones included
  int64_t interval = 256;  // a prefill leaves one at every multiple of this
};

// Why a request got no more of its prompt from the cache.
enum class ReuseLimit : uint8_t {
  none,         // everything but the prompt's end was reused
  off,          // the engine keeps no prefixes
  too_short,    // the prompt is no longer than one unit
  unknown,      // nothing is known of its beginning
  difference,   // the prompt differs behind what was reused
  no_snapshot,  // pages match further, but no state was kept there
};
const char* to_string(ReuseLimit limit);

struct Reuse {
  int64_t tokens = 0;   // taken from the cache
  int64_t matched = 0;  // tokens whose pages are known: a snapshot there would have been used
  ReuseLimit limit = ReuseLimit::off;
};

struct PrefixStats {
  int64_t lookups = 0, hits = 0, hit_tokens = 0, lost_tokens = 0;  // lost: matched, but no snapshot stood there
  int64_t published = 0, evicted = 0, skipped = 0;                 // snapshots; skipped: the budget was in use
};

class PrefixCache {
 public:
  PrefixCache(StatePool& pool, const PrefixConfig& config);

  const PrefixConfig& config() const { return config_; }
  const PrefixStats& stats() const { return stats_; }

  // The longest prefix of at most prompt - 1 tokens that a request may start behind. Changes nothing.
  struct Hit {
    Reuse reuse;
    int node = -1;
  };
  Hit find(std::span<const int32_t> prompt) const;
  // Makes the request an owner of the hit's pages: appended to `pages`, which is empty.
  void share(const Hit& hit, std::vector<int32_t>& pages) const;
  // The hit is used: counts it, marks it as used now, and copies its snapshot to the request's slot.
  void use(const Hit& hit, int32_t slot);

  // A slot for a snapshot to be written by the step that comes; -1 when all are in use. Evicts.
  int32_t reserve();
  // The boundaries within (from, to] at which a prefill of this prompt should leave a snapshot; `matched` as find()
  // said.
  void boundaries(int64_t prompt, int64_t matched, int64_t from, int64_t to, std::vector<int64_t>* out) const;

  // A finished prefill hands over what it wrote: the snapshots and the pages before the last of them. Snapshots that
  // exist already are given back.
  struct Written {
    int64_t tokens = 0;
    int32_t slot = 0;
  };
  void publish(std::span<const int32_t> prompt, std::span<const int32_t> pages, std::span<const Written> snapshots);
  // Reserved, but never written or not to be trusted.
  void discard(std::span<const Written> snapshots);

  // Pages that the cache alone owns: free for whoever needs them.
  int64_t evictable_pages() const;
  // Makes one page free that the cache alone owns. False: there is none.
  bool evict_page();
  // Forgets everything.
  void clear();

 private:
  struct Node {
    uint64_t key = 0;
    int parent = -1, children = 0;
    int64_t depth = 0;  // pages up to its end
    int32_t page = 0, slot = -1;
    uint64_t used = 0;
    std::vector<int32_t> tokens;
    bool live = false;
  };
  int child(uint64_t key, int parent, std::span<const int32_t> tokens) const;
  int add(uint64_t key, int parent, std::span<const int32_t> tokens, int32_t page);
  void touch(int node);
  void drop_snapshot(int node);
  void prune(int node);
  template <class F>
  int oldest(const F& eligible) const;

  StatePool& pool_;
  PrefixConfig config_;
  PrefixStats stats_;
  std::vector<Node> nodes_;
  std::vector<int> free_nodes_;
  std::unordered_map<uint64_t, int> by_key_;
  int64_t slots_ = 0;  // reserved and published
  uint64_t clock_ = 0;
};

}  // namespace kdelta::runtime
