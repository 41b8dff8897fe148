// Ranges for profilers, seen by a sink in a profiler's place.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kdelta/core/trace.h"
#include "kdelta/model/load.h"
#include "kdelta/runtime/engine.h"

namespace kdelta::runtime {
namespace {

using testing::ElementsAre;

// Names with their depth: "0 step", "1 model.layers.0.self_attn", "2 linear:amx".
class Heard final : public TraceSink {
 public:
  Heard() { trace_to(this); }
  ~Heard() override { trace_to(nullptr); }
  void push(const char* name) override {
    names.push_back(std::to_string(depth) + " " + name);
    ++depth;
  }
  void pop() override { EXPECT_GE(--depth, 0); }
  std::vector<std::string> names;
  int depth = 0;
};

void run_step(Engine& engine) {
  RequestOptions o;
  o.max_tokens = 1;
  (void)engine.submit({1, 2, 3}, o);
  engine.step([](const TokenEvent&) {});
}

TEST(Trace, AStepHoldsItsSublayersAndTheseTheirOps) {
  const LoadedModel loaded = load_model("tests/golden/linear_a", LoadFormat::checkpoint);
  Heard heard;
  Engine engine(*loaded.model, {});
  run_step(engine);
  EXPECT_EQ(heard.depth, 0) << "every range is closed";
  ASSERT_FALSE(heard.names.empty());
  EXPECT_EQ(heard.names.front(), "0 step");
  std::vector<std::string> sublayers, wanted;
  for (const Sublayer& s : loaded.model->sublayers()) wanted.push_back("1 " + s.name);
  const auto begins = [](const std::string& text, const char* with) { return text.rfind(with, 0) == 0; };
  std::string inside;
  std::map<std::string, std::vector<std::string>> ops;
  for (const std::string& n : heard.names) {
    EXPECT_TRUE(begins(n, "0 ") || begins(n, "1 ") || begins(n, "2 ")) << n;
    if (n.find(":") == std::string::npos && begins(n, "1 ")) sublayers.push_back(inside = n);
    if (begins(n, "2 ")) ops[inside].push_back(n.substr(2, n.find(':') - 2));
  }
  EXPECT_EQ(sublayers, wanted);
  for (const std::string& s : wanted)
    EXPECT_EQ(std::count(ops[s].begin(), ops[s].end(), "kda") + std::count(ops[s].begin(), ops[s].end(), "mla"),
              s.ends_with("self_attn") ? 1 : 0)
        << s;
  EXPECT_EQ(
      std::count_if(heard.names.begin(), heard.names.end(), [&](const auto& n) { return begins(n, "1 sample:"); }), 1)
      << "an op beside the sublayers is the step's";
}

TEST(Trace, WhoeverWatchesOpsIsNotReplacedAndWithoutASinkNothingIsHeard) {
  const LoadedModel loaded = load_model("tests/golden/linear_a", LoadFormat::checkpoint);
  class Watcher final : public OpObserver {
   public:
    void on_op(std::string_view, std::string_view, const Cost&) override { ++ops; }
    int ops = 0;
  } watcher;
  {
    Heard heard;
    Engine engine(*loaded.model, {});
    engine.observe(&watcher, nullptr);
    run_step(engine);
    EXPECT_GT(watcher.ops, 0);
    for (const std::string& n : heard.names) EXPECT_EQ(n.find(':'), std::string::npos) << n;
    engine.observe(nullptr, nullptr);
    heard.names.clear();
    run_step(engine);
    EXPECT_THAT(heard.names, testing::Contains(testing::HasSubstr(":")));
  }
  Engine engine(*loaded.model, {});
  EXPECT_EQ(trace_sink(), nullptr) << "no profiler is attached to a test";
  run_step(engine);
}

// The end of an op is where the next thing begins, whoever listens by then.
TEST(Trace, AnOpEndsWithTheRangeAroundIt) {
  Heard heard;
  OpRanges ops;
  {
    const TraceRange outer("outer");
    ops.on_op("a", "x", {});
    ops.on_op("b", "y", {});
    const TraceRange inner("inner");
    ops.on_op("c", "z", {});
  }
  EXPECT_THAT(heard.names, ElementsAre("0 outer", "1 a:x", "1 b:y", "1 inner", "2 c:z"));
  EXPECT_EQ(heard.depth, 0);
}

}  // namespace
}  // namespace kdelta::runtime
