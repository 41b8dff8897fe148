// What earlier requests computed of a prompt's beginning, kept for the next request that begins alike. A node is one
// page of tokens, found through the hash of all tokens up to its end (and compared token by token: a collision is a
// miss). Its page of latents serves as long as the chain before it does; to continue from its end takes a snapshot of
// recurrent state and window there, in a home slot of the pool. Only what a finished prefill wrote is ever published,
// so a snapshot that nobody wrote cannot be found.
//
// Pages are shared by counting owners; prompts meet pages only in whole, so nobody writes a shared page. A snapshot is
// copied into the request's own slot before its first step (copy on write, at the moment of the first write). Least
// recently used goes first. One thread; deterministic. All memory is taken at the start (bytes()): a page of the pool
// belongs to one node at most, so nodes are numbered as the pages are, and nothing that happens later can fail.
#pragma once

#include <cstdint>
#include <span>
#include <string>
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
  waiting,      // it has not started
  off,          // the engine keeps no prefixes
  own_state,    // it came with a state of its own
  withheld,     // pages were so scarce that it started without asking
  too_short,    // the prompt is no longer than one unit
  unknown,      // nothing is known of its beginning
  difference,   // the prompt differs behind what was reused
  no_snapshot,  // pages match further, but no state was kept there
};
const char* to_string(ReuseLimit limit);

struct Reuse {
  int64_t tokens = 0;   // taken from the cache
  int64_t matched = 0;  // tokens whose pages are known: a snapshot there would have been used
  ReuseLimit limit = ReuseLimit::waiting;
};

struct PrefixStats {
  int64_t lookups = 0, hits = 0, hit_tokens = 0, lost_tokens = 0;  // lost: matched, but no snapshot stood there
  int64_t published = 0, evicted = 0, skipped = 0;                 // snapshots; skipped: the budget was in use
};

class PrefixCache {
 public:
  PrefixCache(StatePool& pool, const PrefixConfig& config);
  // Of its own, beside the pool's pages and slots; 0 when no snapshots may exist.
  static int64_t bytes(const PrefixConfig& config, int64_t pages);

  const PrefixConfig& config() const { return config_; }
  const PrefixStats& stats() const { return stats_; }

  // The longest prefix of at most prompt - 1 tokens that a request may start behind. Changes nothing.
  struct Hit {
    Reuse reuse;
    int node = -1;
  };
  Hit find(std::span<const int32_t> prompt) const;
  // For one that starts without its prefix: no hit, and what it loses by that.
  Hit withhold(std::span<const int32_t> prompt) const;
  // Makes the request an owner of the hit's pages: appended to `pages`, which is empty.
  void share(const Hit& hit, std::vector<int32_t>& pages) const;
  int32_t slot_of(const Hit& hit) const { return at(hit.node).slot; }
  // The hit is used: counts it, marks it as used now, and copies its snapshot to the request's slot.
  void use(const Hit& hit, int32_t slot);

  // A slot for a snapshot to be written by the step that comes; -1 when all are in use. Evicts.
  int32_t reserve();
  // The boundaries within (from, to] at which a prefill of this prompt should leave a snapshot; `wanted`: what find()
  // matched, and where others wait for one.
  void boundaries(int64_t prompt, std::span<const int64_t> wanted, int64_t from, int64_t to,
                  std::vector<int64_t>* out) const;
  // Tokens of the longest common beginning behind which `later` may start once `earlier` has left a snapshot there.
  int64_t common(std::span<const int32_t> earlier, std::span<const int32_t> later) const;

  // A prefill hands over what it wrote: the snapshots and the pages before the last of them. Snapshots that exist
  // already are given back.
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
    uint64_t key = 0, used = 0;
    int32_t parent = -1, next = -1;   // next: in the same bucket
    int32_t children = 0, depth = 0;  // depth: pages up to its end
    int32_t slot = -1;
    bool live = false;
  };
  Node& at(int node) { return nodes_[static_cast<size_t>(node)]; }
  const Node& at(int node) const { return nodes_[static_cast<size_t>(node)]; }
  size_t bucket_of(uint64_t key) const { return static_cast<size_t>(key) & (buckets_.size() - 1); }
  int32_t* tokens_of(int node) { return &tokens_[static_cast<size_t>(node * config_.page_tokens)]; }
  int child(uint64_t key, int parent, std::span<const int32_t> tokens) const;
  void add(uint64_t key, int parent, std::span<const int32_t> tokens, int32_t page);
  void touch(int node);
  void drop_snapshot(int node);
  void prune(int node);
  bool older(int a, int b) const;
  template <class F>
  int oldest_leaf(const F& eligible) const;

  StatePool& pool_;
  PrefixConfig config_;
  PrefixStats stats_;
  std::vector<Node> nodes_;       // by page
  std::vector<int32_t> tokens_;   // page_tokens of each node
  std::vector<int32_t> buckets_;  // first node of each, -1: none; a power of two of them
  std::vector<int> with_snapshot_;
  int end_ = 0;        // behind the highest node that was ever live
  int64_t slots_ = 0;  // reserved and published
  uint64_t clock_ = 0;
};

}  // namespace kdelta::runtime
