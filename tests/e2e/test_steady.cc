// A steady state allocates nothing and a load starts few threads: every operator new and every thread of this program
// is counted.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <new>

#include "kdelta/api/engine.h"
#include "kdelta/api/quantize.h"
#include "kdelta/api/service.h"
#include "tests/e2e/support.h"

namespace {
std::atomic<int64_t> allocations{0}, largest{0}, threads_started{0};
}

// The pair below is consistent with itself; g++ 12 sees only that free() meets a pointer from operator new.
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"
void* operator new(size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (static_cast<int64_t>(bytes) > largest.load(std::memory_order_relaxed)) largest = static_cast<int64_t>(bytes);
  if (void* p = std::malloc(bytes == 0 ? 1 : bytes)) return p;
  throw std::bad_alloc();
}
void operator delete(void* p) noexcept {
  std::free(p);
}
void operator delete(void* p, size_t) noexcept {
  std::free(p);
}

// In front of the C library's, which does the work.
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*body)(void*),
                              void* argument) {
  threads_started.fetch_add(1, std::memory_order_relaxed);
  static const auto next = reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
  return next(thread, attributes, body, argument);
}

namespace kdelta::test {
namespace {

const std::function<void(const runtime::TokenEvent&)> ignore = [](const runtime::TokenEvent&) {};

// Three requests decode over a page border (pages of 64 tokens, prompts of 4); what the first steps need once is there
// before the count begins.
TEST(SteadyState, DecodingAllocatesNothingPerToken) {
  // W8A8 too: inputs are quantised in every step.
  const std::string mixed =
      (std::filesystem::temp_directory_path() / ("kdelta_steady_" + std::to_string(getpid()))).string();
  quantize({.model = "tests/golden/linear_a", .out = mixed, .experts = "mxfp8", .threads = 1});
  for (const std::string& directory : {std::string("tests/golden/k3_a"), std::string("tests/golden/linear_a"), mixed}) {
    const LoadedModel loaded = load_model(directory, LoadFormat::checkpoint);
    runtime::EngineConfig c = engine_config(DType::bf16);
    c.max_sequences = 3;
    runtime::Engine engine(*loaded.model, c);
    runtime::RequestOptions plain;
    plain.max_tokens = 200;
    plain.sampling.temperature = 0.7f;
    runtime::RequestOptions full = plain;
    full.sampling = {.temperature = 0.9f,
                     .top_k = 40,
                     .top_p = 0.95f,
                     .min_p = 0.01f,
                     .repetition_penalty = 1.1f,
                     .presence_penalty = 0.2f,
                     .frequency_penalty = 0.1f,
                     .seed = 3};
    full.bias = {{7, -1.0f}, {9, 2.0f}};
    full.top_logprobs = 5;
    full.stop_ids = {11};
    full.min_tokens = 190;
    engine.submit({1, 2, 3, 4}, plain);
    engine.submit({1, 2, 3, 5}, full);
    const runtime::RequestId last = engine.submit({1, 2, 3, 6}, full);
    for (int i = 0; i < 8; ++i) engine.step(ignore);
    const int64_t before = allocations.load();
    for (int i = 0; i < 150; ++i) engine.step(ignore);
    EXPECT_EQ(allocations.load() - before, 0) << directory;
    const runtime::Request* r = engine.find(last);
    ASSERT_NE(r, nullptr);
    EXPECT_GE(r->pages.size(), 3u) << "two page borders lie behind it";
  }
  std::filesystem::remove_all(mixed);
}

// Verification too: the lookup drafter, buckets, prefixes in the cache, many sequences.
TEST(SteadyState, VerifyingDraftsAllocatesNothingPerToken) {
  const LoadedModel loaded = load_model("tests/golden/k3_a", LoadFormat::checkpoint);
  runtime::EngineConfig c = engine_config(DType::bf16);
  c.max_sequences = 12;
  c.drafts = 4;
  c.prefix_snapshots = 4;
  c.buckets = {{12, 1}, {12, 5}};
  runtime::Engine engine(*loaded.model, c);
  runtime::RequestOptions o;
  o.max_tokens = 250;
  o.sampling.temperature = 0;
  std::vector<int32_t> prompt(100);
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<int32_t>(i % 7);
  for (int i = 0; i < 12; ++i) {
    prompt[0] = i;
    engine.submit(prompt, o);
  }
  for (int i = 0; i < 16; ++i) engine.step(ignore);
  const int64_t before = allocations.load(), drafts = engine.stats().drafts;
  for (int i = 0; i < 30; ++i) engine.step(ignore);
  EXPECT_EQ(allocations.load() - before, 0);
  EXPECT_GT(engine.stats().drafts, drafts);
}

// Two steps are planned, a prefill and a decode, each with a team of its own at most; then the engine has its team.
TEST(Load, PlansItsMemoryOnce) {
  LoadOptions load{.model = "tests/golden/linear_a"};
  load.threads = 2;
  threads_started = 0;
  const Engine engine = Engine::load(load);
  EXPECT_GE(threads_started.load(), 1);
  EXPECT_LE(threads_started.load(), 2) << "one beside the caller to plan, one to run";
}

TEST(SteadyState, LogitsGoToTheFileAsTheyAreMade) {
  LoadOptions load{.model = "tests/golden/linear_a"};
  load.threads = 2;
  load.max_length = 4096;
  load.token_budget = 64;
  load.all_logits = true;
  Engine engine = Engine::load(load);
  LogitsOptions o;
  o.out = std::filesystem::temp_directory_path() / ("kdelta_steady_" + std::to_string(getpid()) + ".safetensors");
  o.dump = {"layers", "router"};
  std::vector<int32_t> ids(4000);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i % 500);
  largest = 0;
  engine.logits(ids, o);
  const auto logits_bytes = std::ssize(ids) * engine.vocab_size() * 4;
  EXPECT_LT(largest.load(), logits_bytes / 10) << "nothing grows with the number of tokens";
  EXPECT_GT(static_cast<int64_t>(std::filesystem::file_size(o.out)), logits_bytes);
  std::filesystem::remove(o.out);
}

}  // namespace
// G2: what a first request would have to set up stands when the service says that it is ready. One of every number of
// requests at once and of every length of prompt finds its memory and its threads there.
TEST(Ready, MeansThatNoRequestWaitsForMemoryOrThreadsToBeMade) {
  constexpr int64_t kLarge = 64 << 10;  // beyond what a request holds of its own
  LoadOptions load{.model = "models/tiny-k3"};
  load.threads = 2;
  load.max_length = 2304;
  load.max_sequences = 17;
  load.prefix_snapshots = 4;
  Service service(Engine::load(load));
  largest = 0;
  threads_started = 0;
  const auto answered = [&](int64_t requests, int64_t prompt) {
    std::vector<std::unique_ptr<ServiceAnswer>> all;
    for (int64_t i = 0; i < requests; ++i) {
      ServiceRequest r;
      r.task.options.max_tokens = 2;
      for (int64_t t = 0; t < prompt; ++t) r.task.prompt.push_back(static_cast<int32_t>((t * 7 + i + prompt) % 2000));
      all.push_back(service.submit(std::move(r)).answer);
    }
    for (const auto& answer : all) {
      ServiceDelta delta;
      bool ended = false;
      while (!ended && answer->wait(&delta, std::chrono::seconds(50))) ended = delta.end.has_value();
      ASSERT_TRUE(ended) << requests << " of " << prompt;
    }
    EXPECT_LT(largest.load(), kLarge) << requests << " of " << prompt;
  };
  for (const int64_t requests : {1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17}) ASSERT_NO_FATAL_FAILURE(answered(requests, 3));
  for (const int64_t prompt : {1, 63, 64, 65, 2047, 2048, 2049}) ASSERT_NO_FATAL_FAILURE(answered(1, prompt));
  EXPECT_EQ(threads_started.load(), 0);
}

}  // namespace kdelta::test
