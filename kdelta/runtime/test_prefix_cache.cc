// The prefix cache against a ledger of everything that was ever published.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "kdelta/runtime/prefix_cache.h"

namespace kdelta::runtime {
namespace {

using Ids = std::vector<int32_t>;

// One number of state a slot: what stands in it tells whose it is.
LayerStates states() {
  return {{{.name = "mark", .dtype = DType::f32, .shape = {1}},
           {.name = "page", .kind = StateKind::page, .dtype = DType::f32, .shape = {4, 1}}}};
}

struct World {
  explicit World(const PrefixConfig& config)
      : pool(Device{}, states(), {.slots = config.snapshots + 1, .pages = 40}),
        cache(pool, config),
        own(pool.take_slot()) {}
  float& mark(int32_t slot) { return *pool.views()[0][0].at<float>(slot); }
  StatePool pool;
  PrefixCache cache;
  int32_t own;                   // a request's slot
  std::map<Ids, float> written;  // prefix -> the mark of its latest snapshot
  std::map<int32_t, int> held;   // pages that running requests own
};

// A prefill of the prompt from behind `hit`, which publishes or fails.
void prefill(World& w, const Ids& prompt, const PrefixCache::Hit& hit, bool fails, std::mt19937_64& rng,
             float* next_mark) {
  std::vector<int32_t> pages;
  w.cache.share(hit, pages);
  const auto need = static_cast<size_t>((static_cast<int64_t>(prompt.size()) + 3) / 4);
  w.cache.use(hit, w.own);
  while (pages.size() < need) {
    ASSERT_TRUE(w.pool.free_pages() > 0 || w.cache.evict_page());
    pages.push_back(w.pool.take_page());
  }
  std::vector<int64_t> at;
  const auto length = static_cast<int64_t>(prompt.size());
  const int64_t awaited = static_cast<int64_t>(rng() % 10) * w.cache.config().unit;
  const int64_t wanted[] = {hit.reuse.matched, awaited};
  w.cache.boundaries(length, wanted, hit.reuse.tokens, length, &at);
  ASSERT_EQ(std::ranges::count(at, awaited), awaited > hit.reuse.tokens && awaited <= length ? 1 : 0);
  std::vector<PrefixCache::Written> snapshots;
  for (const int64_t b : at) {
    ASSERT_EQ(b % w.cache.config().unit, 0);
    ASSERT_TRUE(b > hit.reuse.tokens && b <= static_cast<int64_t>(prompt.size()));
    const int32_t slot = w.cache.reserve();
    if (slot < 0) break;
    w.mark(slot) = ++*next_mark;
    snapshots.push_back({b, slot});
  }
  if (fails) {
    w.cache.discard(snapshots);
  } else {
    for (const auto& s : snapshots) {
      const Ids prefix(prompt.begin(), prompt.begin() + s.tokens);
      w.written[prefix] = w.mark(s.slot);
    }
    w.cache.publish(prompt, pages, snapshots);
  }
  if (rng() % 2 == 0) return w.pool.drop_pages(pages);
  for (const int32_t p : pages) ++w.held[p];  // it runs on for a while
}

TEST(PrefixCache, AHitIsTheStateThatWasWrittenBehindExactlyThoseTokens) {
  int64_t hits = 0, evicted = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    std::mt19937_64 rng(seed);
    const PrefixConfig config{.page_tokens = 4,
                              .unit = rng() % 2 == 0 ? 4 : 8,
                              .snapshots = static_cast<int64_t>(1 + rng() % 6),
                              .interval = static_cast<int64_t>(1 + rng() % 20)};
    World w(config);
    float next_mark = 0;
    for (int step = 0; step < 80; ++step) {
      // Two letters and short lengths: prompts begin alike all the time.
      Ids prompt(1 + rng() % 24);
      for (int32_t& t : prompt) t = static_cast<int32_t>(rng() % 8 == 0);
      const auto hit = w.cache.find(prompt);
      ASSERT_LT(hit.reuse.tokens, static_cast<int64_t>(prompt.size()));
      ASSERT_LE(hit.reuse.tokens, hit.reuse.matched);
      w.mark(w.own) = -1;
      prefill(w, prompt, hit, rng() % 5 == 0, rng, &next_mark);
      if (testing::Test::HasFatalFailure()) FAIL() << "seed " << seed << " step " << step;
      if (hit.reuse.tokens > 0) {
        ++hits;
        const Ids prefix(prompt.begin(), prompt.begin() + hit.reuse.tokens);
        ASSERT_TRUE(w.written.contains(prefix)) << "a snapshot that nobody published";
        ASSERT_LE(w.mark(w.own), w.written[prefix]);
        ASSERT_GE(w.mark(w.own), 1) << "nothing was copied";
      } else {
        ASSERT_EQ(w.mark(w.own), -1);
      }
      while (!w.held.empty() && (rng() % 3 == 0 || w.pool.free_pages() < 8)) {
        w.pool.drop_page(w.held.begin()->first);
        if (--w.held.begin()->second == 0) w.held.erase(w.held.begin());
      }
    }
    evicted += w.cache.stats().evicted;
    // What the cache alone owns can be had back, page by page, all of it.
    const int64_t promised = w.pool.free_pages() + w.cache.evictable_pages();
    while (w.cache.evict_page()) {
    }
    ASSERT_EQ(w.pool.free_pages(), promised);
    for (const auto& [page, owners] : w.held)
      for (int i = 0; i < owners; ++i) w.pool.drop_page(page);
    w.cache.clear();
    ASSERT_EQ(w.pool.free_pages(), 40);
    ASSERT_EQ(w.pool.free_slots(), config.snapshots);
  }
  EXPECT_GT(hits, 1000);
  EXPECT_GT(evicted, 1000);
}

}  // namespace
}  // namespace kdelta::runtime
