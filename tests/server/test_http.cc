// HTTP without a model: limits, connections, streams, and clients that misbehave.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <thread>

#include "frontends/server/http.h"
#include "tests/server/client.h"
#include "tests/support/deadline.h"

namespace kdelta::server {
namespace {

using namespace std::chrono_literals;
using test::ask;
using test::Client;
using test::Response;
using testing::HasSubstr;
using testing::StartsWith;

const bool kEndsInTime = test::Deadline::install(55s);

// What an exchange of these tests does: streams `pieces` of `size` bytes, or stays silent.
class Talk final : public Exchange {
 public:
  Talk(std::atomic<int>& alive, int64_t pieces, size_t size, Wake wake)
      : alive_(alive), left_(pieces), size_(size), wake_(std::move(wake)) {
    ++alive_;
  }
  ~Talk() override { --alive_; }

  void next(Output& out) override {
    if (!std::exchange(began_, true)) out.head = Reply{.type = "text/event-stream"};
    if (left_ == 0) return;
    out.piece.assign(size_, 'x');
    out.done = --left_ == 0;
    wake_();
  }

 private:
  std::atomic<int>& alive_;
  int64_t left_;
  const size_t size_;
  const Wake wake_;
  bool began_ = false;
};

class Waits final : public Exchange {
 public:
  explicit Waits(std::atomic<int>& alive) : alive_(alive) { ++alive_; }
  ~Waits() override { --alive_; }
  void next(Output&) override {}

 private:
  std::atomic<int>& alive_;
};

// Throws, at once or when its stream has begun.
class Breaks final : public Exchange {
 public:
  Breaks(std::atomic<int>& alive, bool late, Wake wake) : alive_(alive), late_(late), wake_(std::move(wake)) {
    ++alive_;
  }
  ~Breaks() override { --alive_; }
  void next(Output& out) override {
    if (!std::exchange(late_, false)) throw std::runtime_error("broken exchange");
    out.head = Reply{.type = "text/event-stream"};
    out.piece = "xxx";
    wake_();
  }

 private:
  std::atomic<int>& alive_;
  bool late_;
  const Wake wake_;
};

class Http : public testing::Test {
 protected:
  HttpOptions quick() {
    HttpOptions o;
    o.port = 0;
    o.max_body = 1000;
    o.max_header = 2000;
    o.header_timeout = o.body_timeout = 300ms;
    o.idle_timeout = o.write_timeout = 2s;
    o.ping_interval = 100ms;
    return o;
  }
  void start(HttpOptions o) {
    server_ = std::make_unique<HttpServer>(
        o, HttpHandler{.check = [this](const HttpRequest& r) -> std::optional<Reply> {
                         if (r.path == "/closed") return error_reply(401, "closed");
                         return std::nullopt;
                       },
                       .handle = [this](const HttpRequest& r, Wake wake) { return handle(r, std::move(wake)); },
                       .headers =
                           [](const HttpRequest& r) {
                             return Headers{{"x-request-id", r.id}};
                           },
                       .done = [this](const HttpRequest&, int status, double) { last_status_ = status; }});
  }
  int port() const { return server_->port(); }

  Answered handle(const HttpRequest& r, Wake wake) {
    if (r.path == "/throw") throw std::runtime_error("broken handler");
    if (r.path == "/stream") return {.reply = {}, .exchange = std::make_unique<Talk>(alive_, 5, 3, std::move(wake))};
    if (r.path == "/flood")
      return {.reply = {}, .exchange = std::make_unique<Talk>(alive_, 1 << 20, 1 << 16, std::move(wake))};
    if (r.path == "/silence") return {.reply = {}, .exchange = std::make_unique<Talk>(alive_, 0, 0, std::move(wake))};
    if (r.path == "/break" || r.path == "/break-late")
      return {.reply = {}, .exchange = std::make_unique<Breaks>(alive_, r.path == "/break-late", std::move(wake))};
    if (r.path == "/ring") {
      const std::lock_guard lock(mutex_);
      ring_ = std::move(wake);
      return {.reply = {}, .exchange = std::make_unique<Waits>(alive_)};
    }
    if (r.path == "/wait") return {.reply = {}, .exchange = std::make_unique<Waits>(alive_)};
    return {.reply = {.body = r.method + " " + r.path + "?" + r.query + " " + r.body, .type = "text/plain"}};
  }
  bool alive(int want) {
    for (int i = 0; i < 1000 && alive_ != want; ++i) std::this_thread::sleep_for(10ms);
    return alive_ == want;
  }

  std::atomic<int> alive_{0}, last_status_{0};
  std::mutex mutex_;
  Wake ring_;  // of the last exchange that is rung from outside
  std::unique_ptr<HttpServer> server_;
};

TEST_F(Http, ARequestIsAnsweredAndTheConnectionStays) {
  start(quick());
  Client client(port());
  for (const std::string body : {"", "abc"}) {
    client.send(Client::post("/echo?a=1", body));
    const Response r = client.receive();
    EXPECT_EQ(r.status, 200);
    EXPECT_EQ(r.body, "POST /echo?a=1 " + body);
  }
  client.send(Client::get("/one") + Client::get("/two"));  // without waiting for the first
  EXPECT_EQ(client.receive().body, "GET /one? ");
  EXPECT_EQ(client.receive().body, "GET /two? ");
  client.send("HEAD /echo HTTP/1.1\r\nHost: x\r\n\r\n" + Client::get("/after", "Connection: close\r\n"));
  EXPECT_EQ(client.receive(30'000, true).status, 200);
  EXPECT_EQ(client.receive().body, "GET /after? ") << "a HEAD has no body";
  EXPECT_TRUE(client.closes());
}

TEST_F(Http, ARequestIdIsTheClientsWhenItIsFitToBeLogged) {
  start(quick());
  EXPECT_EQ(ask(port(), Client::get("/", "X-Request-Id: abc-1.2_3\r\n")).headers["x-request-id"], "abc-1.2_3");
  for (const std::string& bad : std::vector<std::string>{"a b", "a\"b", std::string(200, 'a')})
    EXPECT_THAT(ask(port(), Client::get("/", "X-Request-Id: " + bad + "\r\n")).headers["x-request-id"],
                StartsWith("req-"));
}

TEST_F(Http, WhatIsTooLargeOrNoHttpIsRefusedByItsStatus) {
  start(quick());
  EXPECT_EQ(ask(port(), Client::post("/", std::string(1000, 'a'))).status, 200);
  EXPECT_EQ(ask(port(), Client::post("/", std::string(1001, 'a'))).status, 413);
  EXPECT_EQ(ask(port(), "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n").status, 413);
  const std::string chunk = "200\r\n" + std::string(512, 'a') + "\r\n";
  const std::string chunked = "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
  EXPECT_EQ(ask(port(), chunked + chunk + "0\r\n\r\n").status, 200);
  EXPECT_EQ(ask(port(), chunked + chunk + chunk + "0\r\n\r\n").status, 413);
  EXPECT_EQ(ask(port(), Client::get("/", "A: " + std::string(3000, 'a') + "\r\n")).status, 431);
  EXPECT_EQ(ask(port(), Client::get("/" + std::string(3000, 'a'))).status, 431);
  for (const std::string bad : {"hello\r\n\r\n", "GET / HTTP/9.9\r\n\r\n", "GET /\r\n\r\n", "\x16\x03\x01\x02\r\n\r\n",
                                "POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n"})
    EXPECT_EQ(ask(port(), bad).status, 400) << bad;
}

TEST_F(Http, ARefusalReachesAClientThatIsStillSending) {
  start(quick());
  Client client(port());
  client.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3000000\r\n\r\n");
  std::thread sender([&] { client.send(std::string(3'000'000, 'a')); });
  EXPECT_EQ(client.receive().status, 413);
  sender.join();
  EXPECT_EQ(ask(port(), Client::post("/closed", "abc")).status, 401) << "before the body was read";
}

TEST_F(Http, ASlowClientLosesItsConnectionInTime) {
  start(quick());
  Client header(port()), body(port()), silent(port());
  header.send("GET / HTTP/1.1\r\nA");
  body.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc");
  const auto begin = Clock::now();
  while (Clock::now() - begin < 1s && header.send("a")) std::this_thread::sleep_for(50ms);  // one byte at a time
  EXPECT_TRUE(header.closes(5'000));
  EXPECT_TRUE(body.closes(5'000));
  EXPECT_TRUE(silent.closes(5'000));
  EXPECT_EQ(ask(port(), Client::get("/")).status, 200);
}

TEST_F(Http, AClientThatExpectsToBeAskedIsAsked) {
  start(quick());
  Client client(port());
  client.send("POST /e HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n");
  EXPECT_EQ(client.receive_head().status, 100);
  client.send("abc");
  EXPECT_EQ(client.receive().body, "POST /e? abc");
}

TEST_F(Http, AStreamArrivesWholeInEveryVersionOfHttp) {
  start(quick());
  Client client(port());
  for (int i = 0; i < 2; ++i) {
    client.send(Client::post("/stream", ""));
    const Response r = client.receive();
    EXPECT_EQ(r.body, std::string(15, 'x'));
    EXPECT_TRUE(r.whole);
    EXPECT_EQ(r.headers.at("content-type"), "text/event-stream");
  }
  const Response old = ask(port(), "GET /stream HTTP/1.0\r\n\r\n");
  EXPECT_EQ(old.body, std::string(15, 'x'));
  EXPECT_FALSE(old.headers.contains("transfer-encoding"));
  EXPECT_TRUE(alive(0));
}

TEST_F(Http, ASilentStreamIsKeptOpenByPings) {
  start(quick());
  Client client(port());
  client.send(Client::get("/silence"));
  EXPECT_EQ(client.receive_head().status, 200);
  std::string chunk;
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(client.next_chunk(chunk));
    EXPECT_EQ(chunk, ": ping\n\n");
  }
}

// F2: whatever the client is doing, and however it leaves.
TEST_F(Http, AnExchangeThatThrowsIsAnErrorOrEndsItsStream) {
  start(quick());
  Client client(port());
  client.send(Client::get("/break"));
  const Response r = client.receive();
  EXPECT_EQ(r.status, 500);
  EXPECT_THAT(r.body, HasSubstr("broken exchange"));
  client.send(Client::get("/break-late"));
  const Response cut = client.receive();
  EXPECT_EQ(cut.status, 200);
  EXPECT_EQ(cut.body, "xxx");
  EXPECT_FALSE(cut.whole) << "it must not look like an end";
  EXPECT_TRUE(client.closes());
  EXPECT_TRUE(alive(0));
}

TEST_F(Http, AClientThatLeavesEndsItsExchange) {
  start(quick());
  for (const std::string path : {"/wait", "/silence"})
    for (const std::string behind : {"", "GET /next HTTP/1.1\r\n"})
      for (const bool half : {false, true}) {
        Client client(port());
        client.send(Client::get(path) + behind);
        ASSERT_TRUE(alive(1)) << path;
        if (half)
          client.half_close();
        else
          client.close();
        EXPECT_TRUE(alive(0)) << path << " " << behind << half;
      }
  for (int i = 0; i < 1000 && last_status_ != 499; ++i) std::this_thread::sleep_for(10ms);
  EXPECT_EQ(last_status_, 499);
}

TEST_F(Http, AReaderThatTakesNothingIsDroppedAndHoldsUpNobody) {
  HttpOptions o = quick();
  o.write_timeout = 500ms;
  start(o);
  Client slow(port(), 4096);
  slow.send(Client::get("/flood"));
  ASSERT_TRUE(alive(1));
  EXPECT_EQ(ask(port(), Client::get("/other")).status, 200);
  EXPECT_TRUE(alive(0));
}

TEST_F(Http, AHandlerThatThrowsIsAStatusAndNoMore) {
  start(quick());
  const Response r = ask(port(), Client::get("/throw"));
  EXPECT_EQ(r.status, 500);
  EXPECT_THAT(r.body, HasSubstr("broken handler"));
  EXPECT_EQ(ask(port(), Client::get("/")).status, 200);
}

TEST_F(Http, ConnectionsAndBodiesBeyondTheirLimitsAreToldToComeBack) {
  HttpOptions o = quick();
  o.max_connections = 2;
  o.max_bodies = 1500;
  start(o);
  {
    Client first(port()), second(port());
    first.send(Client::get("/wait"));
    ASSERT_TRUE(alive(1));
    second.send(Client::get("/"));
    ASSERT_EQ(second.receive().status, 200);
    Response r = ask(port(), Client::get("/"));
    EXPECT_EQ(r.status, 503);
    EXPECT_EQ(r.headers["retry-after"], "1");
  }
  ASSERT_TRUE(alive(0));
  Client holds(port());
  holds.send(Client::post("/wait", std::string(1000, 'a')));
  ASSERT_TRUE(alive(1));
  EXPECT_EQ(ask(port(), Client::post("/", std::string(600, 'a'))).status, 503);
  holds.close();
  ASSERT_TRUE(alive(0));
  EXPECT_EQ(ask(port(), Client::post("/", std::string(600, 'a'))).status, 200);
}

TEST_F(Http, DrainingItFinishesStreamsAndClosesTheRest) {
  start(quick());
  Client idle(port()), running(port());
  idle.send(Client::get("/"));
  EXPECT_EQ(idle.receive().status, 200);
  running.send(Client::get("/silence"));
  EXPECT_EQ(running.receive_head().status, 200);
  server_->drain();
  EXPECT_TRUE(idle.closes(5'000));
  EXPECT_FALSE(Client(port()).connected());
  std::string chunk;
  EXPECT_TRUE(running.next_chunk(chunk)) << "the stream goes on";
  EXPECT_FALSE(server_->wait_idle(1ms));
  running.close();
  EXPECT_TRUE(server_->wait_idle(10s));
}

TEST_F(Http, ItMayEndInTheMiddleOfEverything) {
  start(quick());
  Client a(port()), b(port()), c(port());
  a.send(Client::get("/flood"));
  b.send(Client::get("/wait"));
  c.send("GET / HT");
  ASSERT_TRUE(alive(2));
  server_.reset();
  EXPECT_EQ(alive_, 0);
}

// Whoever rings holds no connection, whose socket would close when what it is registered with is gone. The moment is
// short: what held one was seen by many runs of test_server at once, not by this test alone.
TEST_F(Http, AnExchangeMayBeWokenWhileItsServerEndsAndBehindIt) {
  std::atomic<bool> over{false};
  std::atomic<int64_t> rung{0};
  std::thread ringer([&] {
    while (!over) {
      const std::lock_guard lock(mutex_);
      if (ring_) ring_(), ++rung;
    }
  });
  for (int i = 0; i < 40; ++i) {
    start(quick());
    Client client(port());
    client.send(Client::get("/ring"));
    EXPECT_TRUE(alive(1));
    const int64_t before = rung;
    while (rung < before + 100) std::this_thread::yield();
    server_.reset();
    EXPECT_EQ(alive_, 0);
  }
  over = true;
  ringer.join();
}

}  // namespace
}  // namespace kdelta::server
