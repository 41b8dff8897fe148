// Requests that are sent again: answered once, whoever leaves when.
#include <gmock/gmock.h>

#include "frontends/server/retries.h"
#include "tests/server/gate.h"
#include "tests/server/server.h"

namespace kdelta {
namespace {

using namespace std::chrono_literals;
using server::Answered;
using server::Exchange;
using server::HttpRequest;
using server::Reply;
using server::Retries;
using test::at;
using test::Client;
using test::Gate;
using test::json;
using test::Response;
using test::Server;
using test::soon;
using testing::HasSubstr;

// An answer that says what it is told to, without an engine.
struct Script {
  std::string waits;  // to be said
  bool head = false, done = false, failed = false;
  std::optional<Reply> whole;
  std::atomic<int> started{0}, ended{0}, looks{0};
  server::Wake wake;

  struct Play : Exchange {
    Script& script;
    explicit Play(Script& s) : script(s) {}
    ~Play() override { ++script.ended; }
    void next(Output& out) override {
      ++script.looks;
      if (script.whole) out.whole = script.whole;
      if (script.whole) return;
      if (!std::exchange(script.head, true)) out.head = Reply{.type = "text/event-stream"};
      out.piece = std::exchange(script.waits, "");
      out.done = script.done;
      out.failed = script.failed;
    }
  };
  Retries::Start start() {
    return [this](server::Wake w) {
      ++started;
      wake = std::move(w);
      return Answered{.reply = {}, .exchange = std::make_unique<Play>(*this)};
    };
  }
};

HttpRequest keyed(const std::string& key, const std::string& body = "{}") {
  return {.method = "POST",
          .path = "/p",
          .query = "",
          .headers = {{"idempotency-key", key}},
          .body = body,
          .peer = "",
          .id = "r"};
}
HttpRequest with_id(const std::string& id, const std::string& body = "{}") {
  return {.method = "POST",
          .path = "/p",
          .query = "",
          .headers = {{"x-request-id", id}},
          .body = body,
          .peer = "",
          .id = id};
}

std::string piece(Exchange& e) {
  Exchange::Output out;
  e.next(out);
  return out.piece + (out.done ? "." : "");
}

TEST(Retries, WhoeverJoinsAStreamHearsItFromItsBeginningAndTheSameEnd) {
  Script script;
  Retries retries({});
  int rung = 0;
  const Answered one = retries.answer(
      keyed("k"), "", [] {}, script.start());
  script.waits = "ab";
  EXPECT_EQ(piece(*one.exchange), "ab");
  const Answered two = retries.answer(
      keyed("k"), "", [&] { ++rung; }, script.start());
  EXPECT_EQ(piece(*two.exchange), "ab");
  script.waits = "c";
  script.wake();
  EXPECT_EQ(rung, 1);
  EXPECT_EQ(piece(*two.exchange), "c");
  EXPECT_EQ(piece(*one.exchange), "c") << "which the other has taken already";
  script.waits = "d";
  script.done = true;
  EXPECT_EQ(piece(*one.exchange), "d.");
  EXPECT_EQ(rung, 2) << "by the reader that took it";
  EXPECT_EQ(piece(*two.exchange), "d.");
  EXPECT_EQ(piece(*retries
                       .answer(
                           keyed("k"), "", [] {}, script.start())
                       .exchange),
            "abcd.");
  EXPECT_EQ(script.started, 1);
  EXPECT_EQ(script.ended, 1);
}

TEST(Retries, OneWhoseCallerPathOrKindDiffersIsAnother) {
  Script script;
  Retries retries({});
  const Answered first = retries.answer(
      keyed("k"), "alice", [] {}, script.start());
  const Answered other = retries.answer(
      keyed("k"), "bob", [] {}, script.start());
  const Answered id = retries.answer(
      with_id("k"), "alice", [] {}, script.start());
  EXPECT_EQ(script.started, 3);
  const Answered body = retries.answer(
      keyed("k", "{ }"), "alice", [] {}, script.start());
  EXPECT_EQ(body.reply.status, 422);
  EXPECT_EQ(body.reply.error->code, "idempotency_key_reused");
  HttpRequest elsewhere = keyed("k");
  elsewhere.path = "/q";
  EXPECT_EQ(retries
                .answer(
                    elsewhere, "alice", [] {}, script.start())
                .reply.status,
            422);
  const Answered same_id = retries.answer(
      with_id("k", "{ }"), "alice", [] {}, script.start());
  EXPECT_TRUE(same_id.exchange) << "an id may come with several requests";
  EXPECT_EQ(script.started, 4);
  for (const std::string& bad : {std::string(), std::string("a b"), std::string("\xc3\xa9"), std::string(256, 'a')})
    EXPECT_EQ(retries
                  .answer(
                      keyed(bad), "", [] {}, script.start())
                  .reply.status,
              400)
        << bad;
  EXPECT_EQ(script.started, 4);
}

TEST(Retries, AnAnswerUnderAKeyGoesOnWithoutAReaderAndOneUnderAnIdEndsWithItsLast) {
  Script script;
  Retries retries({});
  Answered one = retries.answer(
      with_id("i"), "", [] {}, script.start());
  Answered two = retries.answer(
      with_id("i"), "", [] {}, script.start());
  one.exchange.reset();
  EXPECT_EQ(script.ended, 0) << "somebody still reads it";
  two.exchange.reset();
  EXPECT_EQ(script.ended, 1);
  one = retries.answer(
      keyed("k"), "", [] {}, script.start());
  EXPECT_EQ(script.started, 2);
  EXPECT_EQ(piece(*one.exchange), "");
  one.exchange.reset();
  EXPECT_EQ(script.ended, 1);
  const int looks = script.looks;
  script.wake();
  EXPECT_TRUE(soon([&] { return script.looks > looks; })) << "it is read so that it goes on";
  two = retries.answer(
      keyed("k"), "", [] {}, script.start());
  EXPECT_EQ(script.started, 2);
  retries.drain();
  EXPECT_EQ(script.ended, 1) << "it has a reader again";
  two.exchange.reset();
  EXPECT_EQ(script.ended, 2) << "when the server ends nobody can come back";
}

TEST(Retries, AfterItsWindowNothingIsKeptAndNothingGoesOnUnread) {
  for (const bool done : {false, true}) {
    Script script;
    script.done = done;
    Retries retries({.window = 30ms});
    {
      const Answered one = retries.answer(
          keyed("k"), "", [] {}, script.start());
      EXPECT_EQ(piece(*one.exchange), done ? "." : "");
    }
    EXPECT_TRUE(soon([&] { return retries.held() == 0 && script.ended == 1; }));
    script.done = false;
    const Answered again = retries.answer(
        keyed("k"), "", [] {}, script.start());
    EXPECT_EQ(script.started, 2);
  }
}

TEST(Retries, AnAnswerThatFailedIsNotKeptButAllItsReadersHearOfIt) {
  Script script;
  Retries retries({});
  const Answered one = retries.answer(
      keyed("k"), "", [] {}, script.start());
  const Answered two = retries.answer(
      keyed("k"), "", [] {}, script.start());
  script.waits = "oh";
  script.done = script.failed = true;
  EXPECT_EQ(piece(*one.exchange), "oh.");
  EXPECT_EQ(piece(*two.exchange), "oh.");
  Script again;
  again.whole = server::error_reply(500, "broken");
  const Answered three = retries.answer(
      keyed("k"), "", [] {}, again.start());
  EXPECT_EQ(again.started, 1);
  Exchange::Output out;
  three.exchange->next(out);
  EXPECT_EQ(out.whole->status, 500);
  EXPECT_EQ(retries.held(), 0);
  const Answered refused = retries.answer(
      keyed("k"), "", [] {}, [](const server::Wake&) { return Answered{.reply = server::error_reply(429, "full")}; });
  out = {};
  refused.exchange->next(out);
  EXPECT_EQ(out.whole->status, 429);
  EXPECT_EQ(retries.held(), 0);
}

TEST(Retries, WhatIsHeldStaysWithinItsBoundsAndTheOldestGivesWay) {
  constexpr int64_t kMost = 8 << 10;
  Retries retries({.memory = kMost});
  const auto ask = [&](const std::string& key, size_t size) {
    Script script;
    script.waits = std::string(size, 'x');
    script.done = true;
    const Answered a = retries.answer(
        keyed(key), "", [] {}, script.start());
    EXPECT_EQ(piece(*a.exchange), std::string(size, 'x') + ".");
    EXPECT_LE(retries.held(), kMost);
    return script.started == 1;  // it was not kept
  };
  EXPECT_TRUE(ask("a", 2000));
  EXPECT_TRUE(ask("b", 2000));
  EXPECT_FALSE(ask("a", 2000));
  EXPECT_TRUE(ask("c", 2000));
  EXPECT_TRUE(ask("a", 2000)) << "it was the oldest";
  EXPECT_FALSE(ask("c", 2000));
  EXPECT_TRUE(ask("huge", 20000));
  EXPECT_TRUE(ask("huge", 20000)) << "more than all the memory";
  // One that outgrows it while it is read goes on, and holds no more than what a reader lacks.
  Script script;
  const Answered a = retries.answer(
      keyed("long"), "", [] {}, script.start());
  for (int i = 0; i < 10; ++i) {
    script.waits = std::string(2000, static_cast<char>('a' + i));
    EXPECT_EQ(piece(*a.exchange), std::string(2000, static_cast<char>('a' + i)));
    EXPECT_LE(retries.held(), kMost);
  }
}

TEST(Retries, ManyAtOnceStartOneAnswer) {
  Script script;
  script.waits = "abc";
  script.done = true;
  Retries retries({});
  std::vector<std::thread> threads;
  std::atomic<int> right{0};
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) {
        std::string all;
        const Answered a = retries.answer(
            keyed("k"), "", [] {}, script.start());
        for (int look = 0; look < 1'000'000 && !all.ends_with("."); ++look) all += piece(*a.exchange);
        right += all == "abc.";
      }
    });
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(right, 200);
  EXPECT_EQ(script.started, 1);
}

// Over HTTP, with the small model drawing at random: nothing but one run gives equal answers.

constexpr char kRandom[] = R"({"prompt":"In the","max_tokens":12,"temperature":2,"ignore_eos":true})";

TEST(Retries, ARequestSentAgainHasTheWordsOfTheFirstInEveryDialect) {
  Server server;
  const std::string messages = R"("messages":[{"role":"user","content":"Hi"}],"temperature":2)";
  const std::pair<std::string, std::string> asks[] = {
      {"/v1/completions", kRandom},
      {"/v1/chat/completions", "{" + messages + R"(,"max_tokens":8})"},
      {"/v1/messages", "{" + messages + R"(,"max_tokens":8})"},
      {"/v1/responses", R"({"input":"Hi","temperature":2,"max_output_tokens":16})"}};
  for (const auto& [path, whole] : asks)
    for (const bool stream : {false, true})
      for (const std::string header : {"Idempotency-Key: ", "X-Request-Id: "}) {
        const std::string body = stream ? R"({"stream":true,)" + whole.substr(1) : whole;
        const std::string once = header + "k" + path.substr(4, 3) + (stream ? "s" : "w") + "\r\n";
        const auto runs = [&] { return server.service.stats().prompt_length.count; };
        const int64_t before = runs();
        const Response first = server.post(path, body, once);
        Response again = server.post(path, body, once);
        EXPECT_EQ(first.status, 200) << first.body;
        EXPECT_EQ(again.body, first.body) << path;
        EXPECT_EQ(again.headers["idempotent-replayed"], "true");
        EXPECT_EQ(runs(), before + 1);
        Response other = server.post(path, body, header + "z" + path.substr(4, 3) + (stream ? "s" : "w") + "\r\n");
        EXPECT_NE(other.body, first.body);
        EXPECT_FALSE(other.headers.contains("idempotent-replayed"));
        server.post(path, body);
        server.post(path, body);
        EXPECT_EQ(runs(), before + 4) << "without any id nothing says that it is the same";
        // A key of one endpoint and body.
        const Response reused = server.post(path, R"({"service_tier":"auto",)" + body.substr(1), once);
        EXPECT_EQ(reused.status, header.starts_with("I") ? 422 : 200) << reused.body;
      }
}

TEST(Retries, ARetryThatWaitsWhileItsFirstLeavesGetsTheOneAnswer) {
  Gate gate;
  Server server({}, {.before_step = gate.hook()}, test::tiny_model(1));
  const std::string body = R"({"stream":true,)" + std::string(kRandom + 1);
  int64_t runs = 0;
  for (const std::string key : {"Idempotency-Key: k\r\n", "X-Request-Id: i\r\n"}) {
    gate.set(false);
    auto first = std::make_unique<Client>(server.port()), second = std::make_unique<Client>(server.port());
    for (const auto& c : {&first, &second}) {
      (*c)->send(Client::post("/v1/completions", body, key));
      ASSERT_EQ((*c)->receive_head().status, 200);
    }
    first.reset();
    gate.set(true);
    std::string got, chunk;
    while (second->next_chunk(chunk)) got += chunk;
    EXPECT_THAT(got, testing::EndsWith("data: [DONE]\n\n"));
    EXPECT_EQ(server.post("/v1/completions", body, key).body, got);
    EXPECT_TRUE(server.service.wait_idle(10s));
    EXPECT_EQ(server.service.stats().prompt_length.count, ++runs);
    EXPECT_EQ(server.service.stats().cancelled, 0);
  }
}

TEST(Retries, WhatAKeyStartedIsThereForARetryThatComesLater) {
  Gate gate;
  Server server({}, {.before_step = gate.hook()}, test::tiny_model(1));
  gate.set(false);
  auto first = std::make_unique<Client>(server.port());
  first->send(Client::post("/v1/completions", kRandom, "Idempotency-Key: k\r\n"));
  ASSERT_TRUE(soon([&] { return server.service.stats().waiting + server.service.stats().running == 1; }));
  first.reset();
  gate.set(true);
  EXPECT_TRUE(soon([&] { return server.service.stats().cut == 1; })) << "it goes on";
  Response got = server.post("/v1/completions", kRandom, "Idempotency-Key: k\r\n");
  EXPECT_EQ(got.status, 200);
  EXPECT_EQ(got.headers["idempotent-replayed"], "true");
  EXPECT_EQ(server.service.stats().prompt_length.count, 1);
  EXPECT_EQ(server.service.stats().cancelled, 0);
}

TEST(Retries, EqualRequestsOfManyConnectionsAreOneRun) {
  Server server;
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 16; ++i) {
    clients.push_back(std::make_unique<Client>(server.port()));
    clients.back()->send(Client::post("/v1/completions", kRandom, "Idempotency-Key: k\r\n"));
  }
  const std::string want = clients.front()->receive().body;
  EXPECT_THAT(want, HasSubstr("text_completion"));
  for (size_t i = 1; i < clients.size(); ++i) EXPECT_EQ(clients[i]->receive().body, want);
  EXPECT_EQ(server.service.stats().prompt_length.count, 1);
}

TEST(Retries, CallersWithDifferentKeysOfTheServerShareNothing) {
  Server server({.keys = {"alice", "bob"}});
  const auto ask = [&](const std::string& caller) {
    return server.post("/v1/completions", kRandom, "Idempotency-Key: k\r\nAuthorization: Bearer " + caller + "\r\n")
        .body;
  };
  const std::string alices = ask("alice");
  EXPECT_NE(ask("bob"), alices);
  EXPECT_EQ(ask("alice"), alices);
}

TEST(Retries, WithoutAWindowEveryRequestRuns) {
  Server server({.retries = {.window = 0ms}});
  for (const std::string header : {"Idempotency-Key: k\r\n", "X-Request-Id: k\r\n"})
    EXPECT_NE(server.post("/v1/completions", kRandom, header).body,
              server.post("/v1/completions", kRandom, header).body);
  EXPECT_EQ(server.service.stats().prompt_length.count, 4);
}

}  // namespace
}  // namespace kdelta
