// Requests and prefixes that leave one engine as bytes and go on in another: the doors for separating prefill from
// decode and for keeping a conversation.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kdelta/api/engine.h"
#include "kdelta/core/error.h"
#include "tests/support/op_test.h"

namespace kdelta {
namespace {

using test::error_of;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

LoadOptions tiny() {
  LoadOptions o{.model = "models/tiny-k3"};
  o.threads = 1;
  o.max_length = 512;
  return o;
}

GenerateOptions sampled(int64_t tokens = 24) {
  GenerateOptions o;
  o.temperature = 0.8f;
  o.seed = 11;
  o.max_tokens = tokens;
  o.logprobs = 0;
  o.ignore_eos = true;
  return o;
}

const char* kText = "And God said unto him, I am the God of Abraham";

// Both halves as one.
Generation joined(Generation a, const Generation& b) {
  a.text += b.text;
  a.tokens.insert(a.tokens.end(), b.tokens.begin(), b.tokens.end());
  a.logprobs.insert(a.logprobs.end(), b.logprobs.begin(), b.logprobs.end());
  a.finish_reason = b.finish_reason;
  return a;
}

void expect_same(const Generation& got, const Generation& want, const std::string& where) {
  EXPECT_EQ(got.text, want.text) << where;
  EXPECT_EQ(got.tokens, want.tokens) << where;
  EXPECT_EQ(got.finish_reason, want.finish_reason) << where;
  ASSERT_EQ(got.logprobs.size(), want.logprobs.size()) << where;
  for (size_t i = 0; i < want.logprobs.size(); ++i) EXPECT_EQ(got.logprobs[i].logprob, want.logprobs[i].logprob);
}

// The first token behind the prompt is the classical handoff; the side that decodes has never seen the prompt.
TEST(Resume, WhatOneEngineStartedAnotherFinishesWithoutComputingAnythingTwice) {
  Engine prefills = Engine::load(tiny()), decodes = Engine::load(tiny());
  const auto prompt = prefills.tokenize(kText);
  const Generation want = prefills.generate(prompt, sampled());
  for (const int64_t tokens : {1, 2, 9, 23}) {
    const std::string where = "cut behind " + std::to_string(tokens);
    const Started s = prefills.start(prompt, sampled(), tokens);
    EXPECT_EQ(s.generation.finish_reason, "") << where;
    ASSERT_EQ(std::ssize(s.generation.tokens), tokens) << where;
    const WorkCounts before = decodes.work();
    const Generation rest = decodes.resume(s.state, {});
    expect_same(joined(s.generation, rest), want, where);
    EXPECT_EQ(decodes.work().prefill_tokens, before.prefill_tokens) << where;
    EXPECT_EQ(decodes.work().decode_tokens - before.decode_tokens, 24 - tokens) << where;
    EXPECT_EQ(rest.prompt_tokens, std::ssize(prompt));
    EXPECT_EQ(rest.cache_limit, "the request came with a state of its own");
  }
}

TEST(Resume, ThreadsAndDraftsOfTheOtherSideChangeNothing) {
  Engine prefills = Engine::load(tiny());
  const auto prompt = prefills.tokenize(kText);
  const Generation want = prefills.generate(prompt, sampled());
  const Started s = prefills.start(prompt, sampled(), 3);
  LoadOptions other = tiny();
  other.threads = 2;
  other.drafts = 4;
  other.max_sequences = 3;
  Engine decodes = Engine::load(other);
  expect_same(joined(s.generation, decodes.resume(s.state, {})), want, "drafts");
}

// A stop string that begins before the cut and ends behind it cuts the text where it would have been cut.
TEST(Resume, AStopStringAcrossTheCutIsFound) {
  Engine engine = Engine::load(tiny());
  const auto prompt = engine.tokenize(kText);
  const std::string text = engine.generate(prompt, sampled()).text;
  ASSERT_GT(text.size(), 30u);
  GenerateOptions o = sampled();
  o.stop = {text.substr(18, 9)};
  const Generation want = engine.generate(prompt, o);
  EXPECT_EQ(want.finish_reason, "stop");
  for (int64_t tokens = 1; tokens < 20; ++tokens) {
    const Started s = engine.start(prompt, o, tokens);
    if (s.state.empty()) {
      expect_same(s.generation, want, "ended before the cut");
      continue;
    }
    ResumeOptions r;
    r.stop = o.stop;
    expect_same(joined(s.generation, engine.resume(s.state, r)), want, "cut behind " + std::to_string(tokens));
  }
}

TEST(Resume, ARequestThatEndsBeforeTheCutHasNoState) {
  Engine engine = Engine::load(tiny());
  const Started s = engine.start(engine.tokenize(kText), sampled(4), 5);
  EXPECT_TRUE(s.state.empty());
  EXPECT_EQ(s.generation.finish_reason, "length");
  EXPECT_EQ(error_of([&] { engine.start({1}, sampled(), 0); }), "tokens: 0, expected >= 1");
}

TEST(Resume, TornForeignAndUnfitStatesAreRefusedByTheirSource) {
  Engine engine = Engine::load(tiny());
  const auto prompt = engine.tokenize(kText);
  const std::vector<char> state = engine.start(prompt, sampled()).state;
  const auto refused = [&](Engine& e, std::span<const char> bytes) {
    return error_of([&] { e.resume(bytes, {}, {}, "x.state"); });
  };
  for (const size_t n : {size_t{0}, size_t{7}, size_t{40}, state.size() / 2, state.size() - 1})
    EXPECT_THAT(refused(engine, std::span(state).first(n)), StartsWith("x.state: ")) << n;
  std::vector<char> changed = state;
  changed[changed.size() / 2] ^= 1;
  EXPECT_EQ(refused(engine, changed), "x.state: damaged: the checksum does not fit");
  Engine draft = Engine::load({.model = "models/tiny-k3-draft", .threads = 1, .max_length = 512});
  EXPECT_THAT(refused(draft, state), StartsWith("x.state: of another model, number "));
  LoadOptions other = tiny();
  other.state_dtype = "bf16";
  Engine halves = Engine::load(other);
  EXPECT_THAT(refused(halves, state), AllOf(StartsWith("x.state: recurrent of layer "), HasSubstr("expected")));
  other = tiny();
  other.dtype = "fp32";
  Engine whole = Engine::load(other);
  EXPECT_THAT(refused(whole, state), HasSubstr("BF16"));
  other = tiny();
  other.prefill_grid = 1;
  Engine anywhere = Engine::load(other);
  EXPECT_EQ(refused(anywhere, state), "x.state: its prompt is cut at multiples of 64, this engine's prefill_grid is 1");
  other = tiny();
  other.max_length = 8;
  Engine small = Engine::load(other);
  EXPECT_THAT(refused(small, state), AllOf(StartsWith("x.state: prompt: "), HasSubstr("the context holds 8")));
  EXPECT_EQ(engine.resume(state, {}).finish_reason, "length") << "and the state itself is good";
}

// What a conversation's next turn starts behind, carried into another process.
TEST(SavedPrefix, APromptStartsBehindWhatAnotherEngineComputed) {
  LoadOptions o = tiny();
  o.prefix_snapshots = 2;
  Engine first = Engine::load(o), second = Engine::load(o), cold = Engine::load(tiny());
  std::vector<int32_t> prompt(200);
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<int32_t>(100 + i * 7 % 1500);
  EXPECT_TRUE(first.save_prefix(prompt).empty()) << "nothing is kept yet";
  first.generate(prompt, sampled());
  std::vector<int32_t> next = prompt;
  next.insert(next.end(), {5, 6, 7});
  const std::vector<char> state = first.save_prefix(next);
  EXPECT_EQ(second.load_prefix(state).kept, 192);
  EXPECT_EQ(second.load_prefix(state).kept, 192) << "twice is once";
  const Generation got = second.generate(next, sampled());
  EXPECT_EQ(got.cached_tokens, 192);
  EXPECT_EQ(got.cache_limit, "everything but the prompt's end was reused");
  EXPECT_EQ(second.work().prefill_tokens, 11);
  expect_same(got, cold.generate(next, sampled()), "warm is cold");
}

TEST(SavedPrefix, OneThatWasComputedOtherwiseSaysSoAndIsKept) {
  LoadOptions o = tiny();
  o.prefix_snapshots = 2;
  o.isa = "portable";
  Engine plain = Engine::load(o);
  const std::vector<int32_t> prompt(100, 9);
  plain.generate(prompt, sampled(2));
  const std::vector<char> state = plain.save_prefix(prompt);
  EXPECT_EQ(plain.load_prefix(state).computed_otherwise, "");
  o.kda_gate = "composed";
  Engine composed = Engine::load(o);
  const LoadedPrefix loaded = composed.load_prefix(state);
  EXPECT_EQ(loaded.computed_otherwise, "computed with portable, gate factored, here it is portable, gate composed");
  EXPECT_EQ(loaded.kept, 64);
  o.kda_gate = "factored";
  o.force = "norm:reference";
  EXPECT_THAT(Engine::load(o).load_prefix(state).computed_otherwise,
              HasSubstr("here it is portable, gate factored, norm:"));
  o.force = "";
  o.threads = 2;
  EXPECT_EQ(Engine::load(o).load_prefix(state).computed_otherwise, "") << "threads change no bit";
  o.isa = "";
  Engine best = Engine::load(o);
  if (best.device_summary().find("portable") == std::string::npos) {
    EXPECT_THAT(best.load_prefix(state).computed_otherwise,
                StartsWith("computed with portable, gate factored, here it"));
  }
}

TEST(SavedPrefix, OneThatAPromptDoesNotBeginWithIsNotKept) {
  LoadOptions o = tiny();
  o.prefix_snapshots = 2;
  Engine first = Engine::load(o), second = Engine::load(o);
  std::vector<int32_t> prompt(100, 9);
  first.generate(prompt, sampled(2));
  const std::vector<char> state = first.save_prefix(prompt);
  std::vector<int32_t> other = prompt, shorter(prompt.begin(), prompt.begin() + 63);
  other[63] = 8;
  for (const std::vector<int32_t>* p : {&other, &shorter}) {
    const LoadedPrefix none = second.load_prefix(state, "x", p);
    EXPECT_TRUE(none.foreign);
    EXPECT_EQ(none.tokens, 64);
    EXPECT_EQ(none.kept, 0);
    EXPECT_TRUE(second.save_prefix(prompt).empty());
  }
  const LoadedPrefix all = second.load_prefix(state, "x", &prompt);
  EXPECT_FALSE(all.foreign);
  EXPECT_EQ(all.kept, 64);
}

TEST(SavedPrefix, WhatIsNoPrefixOrHasNoPlaceIsRefused) {
  LoadOptions o = tiny();
  o.prefix_snapshots = 2;
  Engine engine = Engine::load(o), none = Engine::load(tiny());
  std::vector<int32_t> prompt(100, 9);
  engine.generate(prompt, sampled(2));
  const std::vector<char> state = engine.save_prefix(prompt);
  ASSERT_FALSE(state.empty());
  EXPECT_TRUE(none.save_prefix(prompt).empty());
  EXPECT_EQ(error_of([&] { none.load_prefix(state, "x"); }), "x: a prefix, and prefix_snapshots is 0");
  EXPECT_THAT(error_of([&] { engine.load_prefix(engine.start(prompt, sampled()).state, "x"); }),
              HasSubstr("expected a prompt alone"));
  EXPECT_THAT(error_of([&] { engine.resume(state, {}, {}, "x"); }), HasSubstr("expected one left at least"));
  EXPECT_THAT(error_of([&] { engine.load_prefix(std::span(state).first(300), "x"); }), StartsWith("x: torn"));
  Engine draft =
      Engine::load({.model = "models/tiny-k3-draft", .threads = 1, .max_length = 512, .prefix_snapshots = 2});
  EXPECT_THAT(error_of([&] { draft.load_prefix(state, "x"); }), StartsWith("x: of another model"));
}

TEST(Messages, LinesOfTheOpenAiFormAreReadBackAndBadOnesAreNamed) {
  const auto all = Engine::read_messages(
      "{\"role\":\"user\",\"content\":\"x\\ny\"}\n\n"
      "{\"role\":\"assistant\",\"content\":\"\",\"reasoning\":\"hm\",\"tool_calls\":[{\"id\":\"call_1\",\"type\":"
      "\"function\",\"function\":{\"name\":\"get\",\"arguments\":\"{}\"}}]}\r\n"
      "{\"role\":\"tool\",\"content\":[{\"type\":\"text\",\"text\":\"4\"}],\"name\":\"get\",\"tool_call_id\":\"call_"
      "1\"}",
      "c");
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[0].content, "x\ny");
  EXPECT_EQ(all[1].reasoning, "hm");
  ASSERT_EQ(all[1].calls.size(), 1u);
  EXPECT_EQ(all[1].calls[0].id + all[1].calls[0].name + all[1].calls[0].arguments, "call_1get{}");
  EXPECT_EQ(all[2].content + all[2].name + all[2].call_id, "4getcall_1");
  EXPECT_THAT(error_of([] { Engine::read_messages("{\"role\":\"user\",\"content\":\"\"}\nx\n", "c"); }),
              StartsWith("c: line 2: "));
  EXPECT_THAT(error_of([] { Engine::read_messages("{\"content\":\"a\"}", "c"); }),
              HasSubstr("c: line 1: role: missing"));
}

}  // namespace
}  // namespace kdelta
