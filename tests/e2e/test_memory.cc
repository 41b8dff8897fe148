// Every operator new and every buffer of this program is counted, and any of them can be made to fail: what the engine
// takes stays within the plan that it prints, and want of memory at any point costs nobody else a bit.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "kdelta/api/engine.h"
#include "kdelta/api/state_file.h"
#include "kdelta/core/error.h"
#include "tests/e2e/crowd.h"

namespace {

struct Ledger {
  std::atomic<int64_t> live{0}, peak{0};   // of operator new
  std::atomic<int64_t> buffers{0};         // taken by aligned_alloc, given back or not
  std::atomic<int64_t> until_failure{-1};  // -1: none fails
  bool lasting = false;                    // all that follow fail too
  std::atomic<int64_t> failures{0};
} ledger;

bool fails() {
  const int64_t left = ledger.until_failure.load(std::memory_order_relaxed);
  if (left < 0) return false;
  if (left > 0) {
    ledger.until_failure.store(left - 1, std::memory_order_relaxed);
    return false;
  }
  if (!ledger.lasting) ledger.until_failure.store(-1, std::memory_order_relaxed);
  ledger.failures.fetch_add(1, std::memory_order_relaxed);
  return true;
}

}  // namespace

// The pair below is consistent with itself; g++ 12 sees only that free() meets a pointer from operator new.
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"
void* operator new(size_t bytes) {
  if (fails()) throw std::bad_alloc();
  void* p = std::malloc(bytes == 0 ? 1 : bytes);
  if (p == nullptr) throw std::bad_alloc();
  const auto size = static_cast<int64_t>(malloc_usable_size(p));
  const int64_t now = ledger.live.fetch_add(size, std::memory_order_relaxed) + size;
  if (now > ledger.peak.load(std::memory_order_relaxed)) ledger.peak.store(now, std::memory_order_relaxed);
  return p;
}
void operator delete(void* p) noexcept {
  ledger.live.fetch_sub(static_cast<int64_t>(malloc_usable_size(p)), std::memory_order_relaxed);
  std::free(p);
}
void operator delete(void* p, size_t) noexcept {
  operator delete(p);
}

// In front of the C library's, which does the work.
extern "C" void* aligned_alloc(size_t alignment, size_t bytes) noexcept {
  if (fails()) return nullptr;
  static const auto next = reinterpret_cast<void* (*)(size_t, size_t)>(dlsym(RTLD_NEXT, "aligned_alloc"));
  ledger.buffers.fetch_add(static_cast<int64_t>(bytes), std::memory_order_relaxed);
  return next(alignment, bytes);
}

namespace kdelta::test {
namespace {

using runtime::Engine;
using runtime::EngineConfig;
using runtime::FinishReason;
using runtime::RequestId;
using runtime::StateImage;

// While it lives, the n-th allocation from now fails, alone or with all behind it.
class Want {
 public:
  Want(int64_t n, bool lasting) {
    ledger.lasting = lasting;
    ledger.failures = 0;
    ledger.until_failure = n;
  }
  ~Want() { ledger.until_failure = -1; }
  Want(const Want&) = delete;
  Want& operator=(const Want&) = delete;
};

// Within it nothing fails: the test's own allocations.
class Plenty {
 public:
  Plenty() : left_(ledger.until_failure.exchange(-1)) {}
  ~Plenty() { ledger.until_failure = left_; }
  Plenty(const Plenty&) = delete;
  Plenty& operator=(const Plenty&) = delete;

 private:
  int64_t left_;
};

// Runs f with the n-th allocation failing; whether it threw, and then for want of memory alone.
template <class F>
bool throws_when(int64_t n, bool lasting, bool* failed, const F& f) {
  bool threw = true;
  try {
    const Want want(n, lasting);
    f();
    threw = false;
  } catch (const std::bad_alloc&) {
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::out_of_memory) << e.what();
  }
  *failed = ledger.failures > 0;
  return threw;
}

class Memory : public testing::Test {
 protected:
  Memory() : loaded_(load_model("tests/golden/k3_a", LoadFormat::checkpoint)) {}
  const Model& model() const { return *loaded_.model; }
  EngineConfig config() const {
    EngineConfig c = engine_config(DType::bf16);
    c.options.threads = 1;
    c.max_sequences = 3;
    c.token_budget = 192;
    c.max_length = 256;
    c.drafts = 2;
    c.prefix_snapshots = 4;
    c.prefix_interval = 64;
    c.save_bytes = 1 << 20;
    return c;
  }
  std::unique_ptr<runtime::Drafter> drafter(const EngineConfig& c) const {
    return runtime::make_model_drafter(model(), draft_config(c), model().config().vocab_size);
  }
  static runtime::DraftModelConfig draft_config(const EngineConfig& c) {
    return {.max_sequences = c.max_sequences, .max_length = c.max_length, .drafts = c.drafts};
  }
  LoadedModel loaded_;
};

TEST_F(Memory, AStartThatFailsAtAnyAllocationThrowsAndLeavesNothing) {
  for (const int threads : {1, 2}) {
    EngineConfig c = config();
    c.options.threads = threads;
    const auto start = [&] { const Engine engine(model(), c, drafter(c)); };
    start();  // what is kept for good (tables made once) is there before the count
    bool failed = true;
    int64_t n = 0;
    for (; failed; n += 1 + n / 40) {
      const int64_t before = ledger.live;
      const bool threw = throws_when(n, n % 2 == 1, &failed, start);
      EXPECT_EQ(ledger.live - before, 0) << "allocation " << n;
      EXPECT_EQ(threw, failed) << "allocation " << n;
    }
    EXPECT_GT(n, 50);
  }
}

TEST_F(Memory, CheckingAConfigurationThatIsRightTakesNone) {
  const EngineConfig c = config();
  bool failed = true;
  EXPECT_FALSE(throws_when(0, true, &failed, [&] { runtime::check_config(c); }));
  EXPECT_FALSE(failed) << "an allocation";
}

TEST_F(Memory, ALoadThatFailsAtAnyAllocationThrows) {
  LoadOptions load{.model = "models/tiny-k3"};
  load.threads = 1;
  load.max_length = 128;
  bool failed = true;
  int64_t n = 1;
  for (; failed; n += 1 + n / 4) {
    EXPECT_EQ(throws_when(n, true, &failed, [&] { (void)kdelta::Engine::load(load); }), failed) << "allocation " << n;
  }
  EXPECT_GT(n, 1000);
}

// Two requests run; then, with memory failing, one arrives with a prompt that others know, all move on for some steps,
// one of them leaves as an image and comes back, and so does a prefix. Whoever is not told of an error gets every bit.
class Scenario {
 public:
  Scenario(const Model& model, const EngineConfig& config, std::unique_ptr<runtime::Drafter> drafter,
           const std::vector<std::vector<int32_t>>& prompts, const std::vector<Answer>& want)
      : engine_(model, config, std::move(drafter)), prompts_(prompts), want_(want) {}

  void run(int64_t n, bool lasting) {
    const int64_t draft_slots = engine_.pool().free_draft_slots();
    for (size_t i = 0; i < 2; ++i) submit(i);
    for (int i = 0; i < 3; ++i) step();
    const int64_t pages = engine_.config().max_sequences * 4, slots = 3 + 4;
    bool failed = false;
    const auto guarded = [&](auto f) {
      try {
        f();
      } catch (const std::bad_alloc&) {
        ++refused;
      }
    };
    {
      const Want want(n, lasting);
      guarded([&] { submit(2); });
      for (int i = 0; i < 4; ++i) guarded([&] { step(); });
      StateImage image;
      guarded([&] { image = engine_.export_state(1); });
      guarded([&] {
        if (image.computed > 0) copies.emplace_back(engine_.import_state(image), image.output.size());
      });
      StateImage prefix;
      guarded([&] { prefix = engine_.export_prefix(prompts_[0]); });
      if (prefix.computed > 0) guarded([&] { (void)engine_.import_prefix(prefix); });
      guarded([&] { step(); });
      failed = ledger.failures > 0;
    }
    any = failed;
    for (int64_t i = 0; step(); ++i) ASSERT_LT(i, 1000);
    check();
    engine_.prefixes().clear();
    EXPECT_EQ(engine_.pool().free_pages(), pages);
    EXPECT_EQ(engine_.pool().free_slots(), slots);
    EXPECT_EQ(engine_.pool().free_draft_slots(), draft_slots);
  }

  bool any = false;  // an allocation failed
  int refused = 0, ended = 0;
  std::vector<std::pair<RequestId, size_t>> copies;  // of the first request: id, tokens that it had said

 private:
  void submit(size_t i) {
    const RequestId id = engine_.submit(prompts_[i], i % 2 == 0 ? greedy(20) : sampled(i, 20));
    const Plenty plenty;
    asked_[id] = i;
  }
  bool step() {
    return engine_.step([&](const runtime::TokenEvent& e) {
      const Plenty plenty;
      Answer& a = answers_[e.id];
      if (e.token >= 0) a.tokens.push_back(e.token), a.logprobs.push_back(e.sample->logprob);
      a.finish = e.finish;
      if (e.error != nullptr) a.error = *e.error;
    });
  }
  void check() {
    for (const auto& [id, i] : asked_) {
      const Answer& a = answers_[id];
      if (a.finish == FinishReason::error) {
        ++ended;
        EXPECT_TRUE(a.error == runtime::kNoMemory || a.error.starts_with("cannot allocate")) << a.error;
      } else {
        EXPECT_TRUE(a == want_[i]) << "request " << i << a.error;
      }
    }
    for (const auto& [id, said] : copies) {
      const Answer& a = answers_[id];
      if (a.finish == FinishReason::error) continue;
      EXPECT_TRUE(std::equal(a.tokens.begin(), a.tokens.end(), want_[0].tokens.begin() + static_cast<int64_t>(said),
                             want_[0].tokens.end()));
    }
  }

  Engine engine_;
  const std::vector<std::vector<int32_t>>& prompts_;
  const std::vector<Answer>& want_;
  std::map<RequestId, size_t> asked_;
  std::map<RequestId, Answer> answers_;
};

TEST_F(Memory, WantOfMemoryWhileServingCostsOnlyWhoIsTold) {
  const EngineConfig c = config();
  std::vector<std::vector<int32_t>> prompts;
  std::vector<Answer> want;
  for (uint64_t i = 0; i < 3; ++i) {
    prompts.push_back(random_prompt(static_cast<int64_t>(130 + i), i / 2));  // the first two begin alike
    want.push_back(alone(model(), c, prompts[i], i % 2 == 0 ? greedy(20) : sampled(i, 20)));
  }
  for (const bool with_model : {false, true}) {
    Scenario(model(), c, with_model ? drafter(c) : nullptr, prompts, want).run(1 << 30, false);  // tables made once
    int refused = 0;
    int64_t n = 0;
    for (bool any = true; any; n += 1 + n / 16) {
      for (const bool lasting : {false, true}) {
        const int64_t before = ledger.live;
        {
          Scenario s(model(), c, with_model ? drafter(c) : nullptr, prompts, want);
          s.run(n, lasting);
          any = s.any;
          refused += s.refused;
          EXPECT_EQ(s.ended, 0) << "a step allocates nothing, so no request need end; allocation " << n;
        }
        EXPECT_EQ(ledger.live - before, 0) << "allocation " << n;
        if (testing::Test::HasFailure()) FAIL() << "allocation " << n << " lasting " << lasting;
      }
    }
    EXPECT_GT(refused, 10);
    EXPECT_GT(n, 10);
  }
}

// Through the C++ door: texts, log-probabilities and lists are made on the way.
TEST_F(Memory, WantOfMemoryAmongManyEndsOnlyWhoIsTold) {
  LoadOptions load{.model = "models/tiny-k3"};
  load.threads = 1;
  load.max_length = 128;
  load.max_sequences = 2;
  kdelta::Engine engine = kdelta::Engine::load(load);
  std::vector<GenerateTask> tasks;
  std::vector<Generation> want;
  for (int32_t i = 0; i < 4; ++i) {
    tasks.push_back({.prompt = {5 + i, 7, 9}, .options = {}});
    tasks.back().options.temperature = 0;
    tasks.back().options.max_tokens = 12;
    tasks.back().options.logprobs = 2;
    want.push_back(engine.generate(tasks.back().prompt, tasks.back().options));
  }
  bool failed = true;
  int64_t told = 0;
  for (int64_t n = 0; failed; n += 1 + n / 8) {
    std::vector<Generation> got(tasks.size());
    size_t next = 0;
    const std::function<bool(GenerateTask*)> give = [&](GenerateTask* task) {
      const Plenty plenty;
      if (next == tasks.size()) return false;
      *task = tasks[next++];
      return true;
    };
    const std::function<void(int64_t, Generation)> take = [&](int64_t number, Generation g) {
      const Plenty plenty;
      got[static_cast<size_t>(number)] = std::move(g);
    };
    {
      const Want memory(n, n % 2 == 1);
      engine.generate_many(give, take);
    }
    failed = ledger.failures > 0;
    for (size_t i = 0; i < got.size(); ++i) {
      if (got[i].finish_reason == "error") {
        ++told;
        EXPECT_EQ(got[i].error, runtime::kNoMemory) << "allocation " << n;
      } else {
        EXPECT_EQ(got[i].tokens, want[i].tokens) << "allocation " << n;
        EXPECT_EQ(got[i].text, want[i].text) << "allocation " << n;
        EXPECT_EQ(got[i].logprobs.size(), want[i].logprobs.size()) << "allocation " << n;
      }
    }
  }
  EXPECT_GT(told, 10);
  EXPECT_EQ(engine.generate(tasks[0].prompt, tasks[0].options).text, want[0].text);
}

// Thousands of steps of requests that come and go, are preempted, saved, cancelled, drafted and remembered.
TEST_F(Memory, ALongHistoryNeverTakesMoreThanThePlan) {
  for (const bool with_model : {false, true}) {
    EngineConfig c = config();
    c.max_sequences = 4;
    c.token_budget = 256;
    c.cache_tokens = 512;
    c.prefix_snapshots = 6;
    c.buckets = {{4, 1}, {4, 3}};
    std::mt19937_64 rng(5);
    std::vector<RequestId> ids(4, 0);
    const int64_t live = ledger.live, buffers = ledger.buffers;
    auto own = with_model ? drafter(c) : nullptr;
    const int64_t of_drafter = own ? own->bytes() : 0;
    const int64_t thrown_away = ledger.buffers;
    EXPECT_EQ(of_drafter, with_model ? runtime::plan_model_drafter(model(), draft_config(c)) : 0);
    EXPECT_EQ(ledger.buffers, thrown_away) << "a plan takes no buffer";
    Engine engine(model(), c, std::move(own));
    ledger.peak = ledger.live.load();
    const std::function<void(const runtime::TokenEvent&)> ignore = [](const runtime::TokenEvent&) {};
    for (int step = 0; step < 700; ++step) {
      for (RequestId& id : ids) {
        const runtime::Request* r = engine.find(id);
        if (r != nullptr && r->finish == FinishReason::none) {
          if (rng() % 40 == 0) engine.finish(id, FinishReason::cancelled);
          continue;
        }
        if (rng() % 2 == 0 || r != nullptr) continue;
        std::vector<int32_t> prompt(1 + rng() % 180);
        const uint64_t family = rng() % 3;
        for (size_t i = 0; i < prompt.size(); ++i)
          prompt[i] = static_cast<int32_t>(i < 100 ? (i * (family + 1)) % 500 : rng() % 500);
        id = engine.submit(std::move(prompt), sampled(rng(), static_cast<int64_t>(1 + rng() % 60)));
      }
      engine.step(ignore);
    }
    const runtime::MemoryPlan& plan = engine.memory();
    const int64_t taken = ledger.buffers - buffers, objects = ledger.peak - live;
    RecordProperty(with_model ? "objects_model" : "objects", std::to_string(objects));
    EXPECT_LE(taken + objects, plan.total()) << "buffers " << taken << ", objects " << objects << ", host " << plan.host
                                             << ", saved " << plan.saved << ", drafter " << of_drafter;
    if (!with_model) {
      EXPECT_EQ(taken, plan.total() - plan.host - plan.saved) << "buffers are planned to the byte";
      EXPECT_GT(2 * (objects + plan.saved), plan.host) << "the bound says something";
    }
    EXPECT_GT(engine.prefix_stats().evicted, 30);
    EXPECT_GT(engine.stats().preempted, 5);
    EXPECT_GT(engine.stats().saved, 0);
  }
}

}  // namespace
}  // namespace kdelta::test
