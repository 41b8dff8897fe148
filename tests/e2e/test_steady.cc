// A steady state allocates nothing: every operator new of this program is counted while a request decodes.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "tests/e2e/support.h"

namespace {
std::atomic<int64_t> allocations{0};
}

// The pair below is consistent with itself; g++ 12 sees only that free() meets a pointer from operator new.
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"
void* operator new(size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* p = std::malloc(bytes == 0 ? 1 : bytes)) return p;
  throw std::bad_alloc();
}
void operator delete(void* p) noexcept {
  std::free(p);
}
void operator delete(void* p, size_t) noexcept {
  std::free(p);
}

namespace kdelta::test {
namespace {

TEST(SteadyState, DecodingAllocatesNothingPerToken) {
  for (const char* directory : {"tests/golden/k3_a", "tests/golden/linear_a"}) {
    const LoadedModel loaded = load_model(directory, LoadFormat::checkpoint);
    runtime::EngineConfig c = engine_config(DType::bf16);
    c.max_sequences = 3;
    runtime::Engine engine(*loaded.model, c);
    runtime::RequestOptions o;
    o.max_tokens = 60;
    o.sampling.temperature = 0.7f;
    for (int i = 0; i < 3; ++i) engine.submit({1, 2, 3, 4 + i}, o);
    const std::function<void(const runtime::TokenEvent&)> ignore = [](const runtime::TokenEvent&) {};
    for (int i = 0; i < 8; ++i) engine.step(ignore);
    const int64_t before = allocations.load();
    for (int i = 0; i < 40; ++i) engine.step(ignore);
    EXPECT_EQ(allocations.load() - before, 0) << directory;
  }
}

}  // namespace
}  // namespace kdelta::test
