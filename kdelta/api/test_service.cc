// The service: requests of many threads on one engine. Every wait has an end, so a lost wake-up fails and does not
// hang.
#include "kdelta/api/service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>
#include <thread>

#include "tests/support/deadline.h"
#include "tests/support/op_test.h"

namespace kdelta {
namespace {

using namespace std::chrono_literals;
using test::error_of;
using testing::HasSubstr;

// Less than the whole test has, so that a wait that fails says so first.
constexpr auto kLong = 40s;
const bool kEndsInTime = test::Deadline::install(55s, "Service");

LoadOptions tiny(int64_t sequences) {
  LoadOptions o{.model = "models/tiny-k3"};
  o.threads = 1;
  o.max_length = 192;
  o.max_sequences = sequences;
  o.prefix_snapshots = 4;
  return o;
}

GenerateTask task(const Engine& engine, uint64_t seed, int64_t tokens = 12) {
  const std::string words[] = {"In the beginning", "The light of the", "And he said unto them,", "What is"};
  GenerateTask t;
  t.prompt = engine.tokenize(words[seed % 4]);
  t.options.seed = seed;
  t.options.max_tokens = tokens;
  t.options.logprobs = 2;
  return t;
}

// All of an answer; its end is there unless kLong has passed.
ServiceDelta read(ServiceAnswer& answer) {
  ServiceDelta all, more;
  while (!all.end && answer.wait(&more, kLong)) {
    for (AnswerPart& p : more.parts) all.parts.push_back(std::move(p));
    all.tokens.insert(all.tokens.end(), more.tokens.begin(), more.tokens.end());
    all.logprobs.insert(all.logprobs.end(), more.logprobs.begin(), more.logprobs.end());
    all.end = std::move(more.end);
  }
  return all;
}

std::string text_of(const ServiceDelta& d, AnswerPart::Kind kind = AnswerPart::Kind::text) {
  std::string text;
  for (const AnswerPart& p : d.parts)
    if (p.kind == kind) text += p.text;
  return text;
}

std::string reason_of(const ServiceDelta& d) {
  return d.end ? d.end->reason : "no end";
}

// Lets the engine's thread take steps one by one, or all of them.
class Gate {
 public:
  std::function<void()> hook() {
    return [this] {
      std::unique_lock lock(mutex_);
      ++waiting_;
      changed_.notify_all();
      if (!changed_.wait_for(lock, kLong, [&] { return steps_ > 0; })) throw std::runtime_error("the gate stayed shut");
      --waiting_;
      --steps_;
    };
  }
  void let(int64_t steps) {
    const std::lock_guard lock(mutex_);
    steps_ += steps;
    changed_.notify_all();
  }
  void open() { let(int64_t{1} << 40); }
  // Until the engine stands before a step and all that were let have run.
  bool arrived() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kLong, [&] { return waiting_ > 0 && steps_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t steps_ = 0, waiting_ = 0;
};

TEST(Service, AnswersOfManyThreadsAreThoseOfGenerate) {
  constexpr uint64_t kThreads = 3, kEach = 2;
  std::vector<Generation> want;
  {
    Engine alone = Engine::load(tiny(1));
    for (uint64_t i = 0; i < kThreads * kEach; ++i) {
      const GenerateTask t = task(alone, i);
      want.push_back(alone.generate(t.prompt, t.options));
    }
  }
  Service service(Engine::load(tiny(3)));
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      for (uint64_t i = t * kEach; i < (t + 1) * kEach; ++i) {
        auto [admission, answer] = service.submit({.task = task(service.engine(), i)});
        ASSERT_EQ(admission, Admission::accepted);
        const ServiceDelta all = read(*answer);
        EXPECT_EQ(text_of(all), want[i].text);
        EXPECT_EQ(all.tokens, want[i].tokens);
        EXPECT_EQ(reason_of(all), want[i].finish_reason);
        ASSERT_EQ(all.logprobs.size(), want[i].logprobs.size());
        for (size_t n = 0; n < all.logprobs.size(); ++n) {
          EXPECT_EQ(all.logprobs[n].logprob, want[i].logprobs[n].logprob);
          EXPECT_EQ(all.logprobs[n].top, want[i].logprobs[n].top);
        }
      }
    });
  for (std::thread& t : threads) t.join();
  const ServiceStats stats = service.stats();
  EXPECT_EQ(stats.stopped + stats.cut, kThreads * kEach);
  EXPECT_EQ(stats.first_token.count, kThreads * kEach);
  EXPECT_EQ(stats.tokens, stats.inter_token.count + stats.first_token.count);
  EXPECT_EQ(service.problem(), "");
}

TEST(Service, AChatsPartsJoinedAreTheReplyOfChatAndAStopStringCutsItsContent) {
  const std::vector<ChatMessage> messages{{.role = "user", .content = "What does light mean?"}};
  GenerateOptions o;
  o.temperature = 0;
  o.max_tokens = 60;
  Engine alone = Engine::load(tiny(1));
  const ChatReply want = alone.chat(messages, {}, o);
  ASSERT_GT(want.content.size(), 8u);
  const std::vector<int32_t> prompt = alone.chat_prompt(messages, {});
  Service service(std::move(alone));
  const ServiceDelta all = read(*service.submit({.task = {prompt, o}, .chat = true}).answer);
  EXPECT_EQ(text_of(all, AnswerPart::Kind::content), want.content);
  EXPECT_EQ(text_of(all, AnswerPart::Kind::reasoning), want.reasoning);
  EXPECT_EQ(all.tokens, want.generation.tokens);
  const size_t cut = want.content.size() / 2;
  o.stop = {"never to be found", want.content.substr(cut, 3)};
  const ServiceDelta stopped = read(*service.submit({.task = {prompt, o}, .chat = true}).answer);
  EXPECT_EQ(text_of(stopped, AnswerPart::Kind::content), want.content.substr(0, want.content.find(o.stop[1])));
  EXPECT_EQ(text_of(stopped, AnswerPart::Kind::reasoning), want.reasoning);
  ASSERT_EQ(reason_of(stopped), "stop");
  EXPECT_EQ(stopped.end->stop, o.stop[1]);
}

TEST(Service, ACancelledRequestEndsBeforeTheNextStepWhereverItIs) {
  Gate gate;
  Service service(Engine::load(tiny(1)), {.before_step = gate.hook()});
  const auto submit = [&] { return service.submit({.task = task(service.engine(), 1, 100)}).answer; };
  auto runs = submit();
  ASSERT_TRUE(gate.arrived());
  auto queued = submit(), next = submit();
  gate.let(3);
  ASSERT_TRUE(gate.arrived());
  queued->cancel();
  runs->cancel();
  gate.let(2);  // the one that was being waited for, and one of the next request
  const ServiceDelta q = read(*queued), r = read(*runs);
  EXPECT_EQ(reason_of(q), "cancelled");
  EXPECT_TRUE(q.tokens.empty());
  EXPECT_EQ(reason_of(r), "cancelled");
  EXPECT_LE(r.tokens.size(), 4u);
  ServiceDelta first;
  EXPECT_TRUE(next->wait(&first, kLong)) << "its place is free for the next";
  next.reset();  // and whoever drops an answer cancels it
  gate.open();
  EXPECT_TRUE(service.wait_idle(kLong));
  EXPECT_EQ(service.stats().cancelled, 3);
}

TEST(Service, TheStatsCountARequestUntilItHasEndedThoughNoStepFollows) {
  Gate gate;
  Service service(Engine::load(tiny(1)), {.before_step = gate.hook()});
  std::vector<std::unique_ptr<ServiceAnswer>> answers;
  for (uint64_t i = 0; i < 3; ++i) answers.push_back(service.submit({.task = task(service.engine(), i, 100)}).answer);
  EXPECT_EQ(service.stats().waiting, 3);
  ASSERT_TRUE(gate.arrived());
  gate.let(1);
  ASSERT_TRUE(gate.arrived());
  const ServiceStats busy = service.stats();
  EXPECT_EQ(busy.running, 1);
  EXPECT_EQ(busy.waiting, 2);
  EXPECT_GT(busy.page_usage, 0);
  for (const auto& answer : answers) answer->cancel();
  gate.let(1);  // the one that was being waited for; there is none behind it
  for (const auto& answer : answers) EXPECT_EQ(reason_of(read(*answer)), "cancelled");
  const ServiceStats idle = service.stats();
  EXPECT_EQ(idle.running, 0);
  EXPECT_EQ(idle.waiting, 0);
  EXPECT_EQ(idle.page_usage, 0);
}

TEST(Service, MoreThanTheQueueHoldsIsRefusedUntilAPlaceIsFree) {
  Gate gate;
  Service service(Engine::load(tiny(2)), {.max_waiting = 1, .before_step = gate.hook()});
  std::vector<std::unique_ptr<ServiceAnswer>> answers;
  for (int i = 0; i < 3; ++i) answers.push_back(service.submit({.task = task(service.engine(), 1, 4)}).answer);
  EXPECT_EQ(service.submit({.task = task(service.engine(), 1, 4)}).admission, Admission::full);
  gate.open();
  for (const auto& answer : answers) EXPECT_EQ(reason_of(read(*answer)), "length");
  EXPECT_EQ(service.submit({.task = task(service.engine(), 1, 4)}).admission, Admission::accepted);
}

TEST(Service, DrainingItFinishesWhatItAcceptedAndRefusesTheRest) {
  Service service(Engine::load(tiny(1)));
  auto first = service.submit({.task = task(service.engine(), 1)}).answer;
  auto second = service.submit({.task = task(service.engine(), 2)}).answer;
  service.drain();
  EXPECT_EQ(service.submit({.task = task(service.engine(), 3)}).admission, Admission::draining);
  EXPECT_TRUE(service.wait_idle(kLong));
  EXPECT_EQ(reason_of(read(*first)), "length");
  EXPECT_EQ(reason_of(read(*second)), "length");
}

TEST(Service, AStoppedServiceEndsEverythingAndSaysWhy) {
  Gate gate;
  Service service(Engine::load(tiny(1)), {.before_step = gate.hook()});
  auto runs = service.submit({.task = task(service.engine(), 1)}).answer;
  auto waits = service.submit({.task = task(service.engine(), 2)}).answer;
  ASSERT_TRUE(gate.arrived());
  gate.let(1);
  std::thread opener([&] { gate.open(); });
  service.stop("time is up");
  opener.join();
  for (ServiceAnswer* a : {runs.get(), waits.get()}) {
    const ServiceDelta all = read(*a);
    if (reason_of(all) == "length") continue;  // it was done before
    EXPECT_EQ(reason_of(all), "cancelled");
    EXPECT_EQ(all.end->error, "time is up");
  }
  EXPECT_EQ(service.submit({.task = task(service.engine(), 1)}).admission, Admission::draining);
}

TEST(Service, ABrokenEngineEndsEveryRequestWithItsError) {
  Gate gate;
  std::atomic<bool> broken{false};
  Service service(Engine::load(tiny(1)), {.before_step = [&, wait = gate.hook()] {
                    wait();
                    if (broken) throw std::runtime_error("the device fell off the bus");
                  }});
  auto runs = service.submit({.task = task(service.engine(), 1, 100)}).answer;
  ASSERT_TRUE(gate.arrived());
  auto waits = service.submit({.task = task(service.engine(), 2)}).answer;
  gate.let(2);
  ASSERT_TRUE(gate.arrived());
  broken = true;
  gate.open();
  for (ServiceAnswer* a : {runs.get(), waits.get()}) {
    const ServiceDelta all = read(*a);
    ASSERT_EQ(reason_of(all), "error");
    EXPECT_THAT(all.end->error, HasSubstr("the device fell off the bus"));
  }
  EXPECT_EQ(service.problem(), "the device fell off the bus");
  EXPECT_EQ(service.submit({.task = task(service.engine(), 1)}).admission, Admission::dead);
  EXPECT_TRUE(service.wait_idle(kLong));
}

TEST(Service, AReaderThatFallsTooFarBehindLosesItsRequestAndNobodyElse) {
  Service service(Engine::load(tiny(2)), {.max_unread = 8});
  auto slow = service.submit({.task = task(service.engine(), 1, 64)}).answer;
  ASSERT_TRUE(service.wait_idle(kLong));
  const ServiceDelta all = read(*slow);
  ASSERT_EQ(reason_of(all), "cancelled");
  EXPECT_THAT(all.end->error, HasSubstr("nobody read the last 9 tokens"));
  EXPECT_LE(all.tokens.size(), 10u);
  const ServiceDelta other = read(*service.submit({.task = task(service.engine(), 1, 4)}).answer);
  EXPECT_EQ(reason_of(other), "length");
}

TEST(Service, WhatGenerateRefusesIsRefusedBeforeItIsQueued) {
  Service service(Engine::load(tiny(1)));
  GenerateTask t = task(service.engine(), 1);
  t.prompt.assign(500, 3);
  EXPECT_THAT(error_of([&] { service.submit({.task = t}); }), HasSubstr("prompt: 500 tokens, the context holds 192"));
  t.prompt = {1 << 20};
  EXPECT_THAT(error_of([&] { service.submit({.task = t}); }), HasSubstr("prompt: token"));
  t.prompt = {5};
  t.options.top_p = 3;
  EXPECT_THAT(error_of([&] { service.submit({.task = t}); }), HasSubstr("top_p"));
  EXPECT_EQ(service.stats().failed, 0);
}

TEST(Service, ReadyIsCalledForEveryThingToRead) {
  std::mutex mutex;
  std::condition_variable changed;
  int64_t calls = 0;
  Service service(Engine::load(tiny(1)));
  auto answer = service
                    .submit({.task = task(service.engine(), 1, 16)},
                            [&] {
                              const std::lock_guard lock(mutex);
                              ++calls;
                              changed.notify_all();
                            })
                    .answer;
  bool ended = false;
  for (int64_t seen = 0; !ended; ++seen) {
    std::unique_lock lock(mutex);
    ASSERT_TRUE(changed.wait_for(lock, kLong, [&] { return calls > seen; })) << "something waits and nobody was told";
    lock.unlock();
    ServiceDelta delta;
    while (answer->take(&delta)) ended = ended || delta.end;
  }
}

}  // namespace
}  // namespace kdelta
