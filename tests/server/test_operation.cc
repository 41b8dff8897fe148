// Running a server: clients that leave, queues that are full, keys, origins, shutting down, engines that break.
#include <gmock/gmock.h>

#include "tests/server/gate.h"
#include "tests/server/server.h"

namespace kdelta {
namespace {

using namespace std::chrono_literals;
using test::at;
using test::Client;
using test::events;
using test::Gate;
using test::json;
using test::Response;
using test::Server;
using test::soon;
using testing::HasSubstr;

const std::string kEndless = R"({"prompt":"In the","max_tokens":200,"ignore_eos":true,"temperature":0)";

std::string endless(bool stream) {
  return kEndless + (stream ? R"(,"stream":true})" : "}");
}

// F2: in the queue, in prefill and in decode, streaming and not.
TEST(Operation, AClientThatLeavesEndsItsRequestWhereverItIs) {
  Gate gate;
  Server server({}, {.before_step = gate.hook()}, test::tiny_model(1));
  for (const bool stream : {false, true}) {
    const ServiceStats before = server.service.stats();
    gate.set(false);
    auto runs = std::make_unique<Client>(server.port()), waits = std::make_unique<Client>(server.port());
    runs->send(Client::post("/v1/completions", endless(stream)));
    waits->send(Client::post("/v1/completions", endless(stream)));
    if (stream) {
      EXPECT_EQ(runs->receive_head().status, 200);
      EXPECT_EQ(waits->receive_head().status, 200);
    }
    std::this_thread::sleep_for(50ms);
    runs.reset();
    waits.reset();
    std::this_thread::sleep_for(50ms);
    gate.set(true);
    EXPECT_TRUE(server.service.wait_idle(10s));
    EXPECT_LE(server.service.stats().tokens - before.tokens, 400);
    EXPECT_EQ(server.service.stats().cancelled - before.cancelled, 2);
    EXPECT_EQ(server.post("/v1/completions", R"({"prompt":"In","max_tokens":2})").status, 200);
  }
  for (const bool half : {false, true}) {  // while tokens come
    const int64_t cancelled = server.service.stats().cancelled;
    Client client(server.port());
    client.send(Client::post("/v1/completions", endless(true)));
    EXPECT_EQ(client.receive_head().status, 200);
    std::string chunk;
    ASSERT_TRUE(client.next_chunk(chunk));
    half ? client.half_close() : client.close();
    EXPECT_TRUE(soon([&] { return server.service.stats().cancelled > cancelled; }));
  }
}

TEST(Operation, AFullQueueSaysComeBackLater) {
  Gate gate;
  gate.set(false);
  Server server({}, {.max_waiting = 1, .before_step = gate.hook()}, test::tiny_model(1));
  Client runs(server.port()), waits(server.port());
  for (Client* c : {&runs, &waits}) {
    c->send(Client::post("/v1/completions", R"({"prompt":"In the","max_tokens":2,"stream":true})"));
    ASSERT_EQ(c->receive_head().status, 200);
  }
  Response r = server.post("/v1/completions", R"({"prompt":"In the","max_tokens":2})");
  EXPECT_EQ(r.status, 429);
  EXPECT_EQ(r.headers["retry-after"], "1");
  EXPECT_EQ(at(json(r.body), "error.type").string(), "rate_limit_error");
  EXPECT_EQ(server.get("/health").status, 200) << "which needs no engine";
  EXPECT_THAT(server.get("/metrics").body, HasSubstr("num_requests_running"));
  gate.set(true);
  std::string chunk;
  while (runs.next_chunk(chunk)) {
  }
  EXPECT_TRUE(soon([&] { return server.post("/v1/completions", R"({"prompt":"In","max_tokens":2})").status == 200; }));
}

TEST(Operation, ARequestIsCancelledByItsId) {
  Server server;
  Client client(server.port());
  client.send(Client::post("/v1/completions", endless(true), "X-Request-Id: mine\r\n"));
  ASSERT_EQ(client.receive_head().status, 200);
  std::string chunk, rest;
  ASSERT_TRUE(client.next_chunk(chunk));
  EXPECT_EQ(server.post("/v1/requests/mine/cancel", "").status, 200);
  while (client.next_chunk(chunk)) rest += chunk;
  ASSERT_FALSE(events(rest).empty());
  EXPECT_EQ(at(json(events(rest).back()), "error.code").string(), "cancelled");
  EXPECT_TRUE(server.service.wait_idle(10s));
  EXPECT_EQ(server.post("/v1/requests/mine/cancel", "").status, 404);
}

TEST(Operation, ARequestThatTakesTooLongEnds) {
  Gate gate;
  gate.set(false);
  Server server({.timeout = 200ms}, {.before_step = gate.hook()});
  EXPECT_EQ(server.post("/v1/completions", endless(false)).status, 504);
  gate.set(true);
  EXPECT_TRUE(server.service.wait_idle(10s));
}

TEST(Operation, WithoutOneOfItsKeysOnlyHealthIsTold) {
  Server server({.keys = {"first-key", "second"}});
  for (const std::string path : {"/v1/models", "/metrics", "/version", "/nothing"}) {
    EXPECT_EQ(server.get(path).status, 401) << path;
    EXPECT_EQ(server.get(path, "Authorization: Bearer first-ke\r\n").status, 401);
    EXPECT_EQ(server.get(path, "Authorization: first-key\r\n").status, 401);
    EXPECT_NE(server.get(path, "Authorization: Bearer first-key\r\n").status, 401);
    EXPECT_NE(server.get(path, "x-api-key: second\r\n").status, 401);
    for (const std::string scheme : {"bearer ", "BEARER ", "bEaReR   "})
      EXPECT_NE(server.get(path, "Authorization: " + scheme + "first-key\r\n").status, 401) << scheme;
    for (const std::string other : {"bearerfirst-key", "Basic first-key", "bearer", "bearer First-key"})
      EXPECT_EQ(server.get(path, "Authorization: " + other + "\r\n").status, 401) << other;
  }
  EXPECT_EQ(server.post("/v1/completions", endless(false)).status, 401);
  EXPECT_EQ(server.get("/health").status, 200);
  EXPECT_EQ(server.get("/ready").status, 200);
  for (const auto& [given, ok] : {std::pair{"first-key", true},
                                  {"second", true},
                                  {"", false},
                                  {"first-keyfirst-key", false},
                                  {"firs", false},
                                  {"secondsecond", false},
                                  {"First-key", false}})
    EXPECT_EQ(server::is_key({"first-key", "second"}, given), ok) << given;
}

TEST(Operation, BrowsersOfKnownOriginsMayAsk) {
  Server server({.keys = {"k"}, .origins = {"http://a.example"}});
  const std::string ask = "Origin: http://a.example\r\n";
  Response r = test::ask(server.port(),
                         "OPTIONS /v1/models HTTP/1.1\r\nHost: x\r\n" + ask +
                             "Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: x-a\r\n\r\n");
  EXPECT_EQ(r.status, 204) << "a preflight brings no key";
  EXPECT_EQ(r.headers["access-control-allow-origin"], "http://a.example");
  EXPECT_EQ(r.headers["access-control-allow-headers"], "x-a");
  r = server.get("/v1/models", ask);
  EXPECT_EQ(r.status, 401);
  EXPECT_EQ(r.headers["access-control-allow-origin"], "http://a.example") << "an error can be read as well";
  EXPECT_FALSE(server.get("/health", "Origin: http://b.example\r\n").headers.contains("access-control-allow-origin"));
  EXPECT_FALSE(server.get("/health").headers.contains("access-control-allow-origin"));
}

// A simple request of a page is sent without a preflight, and would run whoever may read its reply.
TEST(Operation, APageOfAnOriginThatIsNotAllowedIsRefusedBeforeItsRequestRuns) {
  Server server({.origins = {"http://a.example"}});
  const auto status = [&](const std::string& origin) {
    return server.post("/v1/completions", R"({"prompt":"In","max_tokens":1})", "Origin: " + origin + "\r\n").status;
  };
  EXPECT_EQ(status("http://b.example"), 403);
  EXPECT_EQ(status("null"), 403);
  EXPECT_EQ(server.service.stats().prompt_length.count, 0) << "nothing ran";
  EXPECT_EQ(status("http://a.example"), 200);
  EXPECT_EQ(status("http://x"), 200) << "the server's own, as Host has it";
  EXPECT_EQ(server.get("/health", "Origin: http://b.example\r\n").status, 200);
  Server none, any({.origins = {"*"}});
  EXPECT_EQ(none.get("/metrics", "Origin: http://b.example\r\n").status, 403);
  EXPECT_EQ(any.get("/metrics", "Origin: http://b.example\r\n").status, 200);
}

TEST(Operation, ABrokenEngineFailsHealthAndEveryRequest) {
  std::atomic<bool> broken{false};
  Server server({}, {.before_step = [&] {
                  if (broken) throw std::runtime_error("out of order");
                }});
  Client stream(server.port()), whole(server.port());
  stream.send(Client::post("/v1/completions", endless(true)));
  whole.send(Client::post("/v1/completions", endless(false)));
  ASSERT_EQ(stream.receive_head().status, 200);
  std::string chunk, all;
  ASSERT_TRUE(stream.next_chunk(chunk));
  ASSERT_TRUE(soon([&] { return server.service.stats().running == 2; }));  // who comes later is told 503
  broken = true;
  while (stream.next_chunk(chunk)) all += chunk;
  EXPECT_THAT(at(json(events(all).back()), "error.message").string(), HasSubstr("out of order"));
  EXPECT_EQ(whole.receive().status, 500);
  EXPECT_EQ(server.get("/health").status, 503);
  EXPECT_EQ(server.get("/ready").status, 503);
  EXPECT_EQ(server.post("/v1/completions", endless(false)).status, 503);
}

TEST(Operation, AStepThatHangsFailsHealthUntilItIsOver) {
  Gate gate;
  Server server({}, {.step_limit = 50ms, .before_step = gate.hook()});
  EXPECT_EQ(server.get("/health").status, 200);
  gate.set(false);
  Client client(server.port());
  client.send(Client::post("/v1/completions", R"({"prompt":"In the","max_tokens":3})"));
  ASSERT_TRUE(soon([&] { return server.get("/health").status == 503; }));
  EXPECT_THAT(server.get("/ready").body, HasSubstr("the engine hangs: a step has taken "));
  EXPECT_GT(server.service.stats().step_seconds, .05);
  EXPECT_EQ(server.service.problem(), "") << "it may go on";
  gate.set(true);
  EXPECT_EQ(client.receive().status, 200) << "and nobody lost an answer";
  EXPECT_TRUE(soon([&] { return server.get("/health").status == 200; }));
  EXPECT_GE(server.service.stats().slow_steps, 1);
  EXPECT_TRUE(soon([&] { return server.service.stats().step_seconds == 0; }));
}

TEST(Operation, DrainingItIsNotReadyAndFinishesItsStreams) {
  Gate gate;
  gate.set(false);
  Server server({}, {.before_step = gate.hook()});
  Client client(server.port());
  client.send(Client::post("/v1/completions", R"({"prompt":"In the","max_tokens":5,"stream":true})"));
  ASSERT_EQ(client.receive_head().status, 200);
  server.service.drain();
  EXPECT_EQ(server.get("/ready").status, 503);
  EXPECT_EQ(server.get("/health").status, 200);
  EXPECT_EQ(server.post("/v1/completions", endless(false)).status, 503);
  server.http().drain();
  gate.set(true);
  std::string chunk, all;
  while (client.next_chunk(chunk)) all += chunk;
  EXPECT_EQ(events(all).back(), "[DONE]");
  EXPECT_TRUE(server.http().wait_idle(10s));
}

TEST(Operation, BeforeTheModelIsThereItLivesAndIsNotReady) {
  server::Api api({.names = {"tiny"}});
  server::HttpOptions o;
  o.port = 0;
  server::HttpServer http(o, api.handler());
  EXPECT_EQ(test::ask(http.port(), Client::get("/health")).status, 200);
  EXPECT_EQ(test::ask(http.port(), Client::get("/ready")).status, 503);
  EXPECT_EQ(test::ask(http.port(), Client::post("/v1/completions", "{}")).status, 503);
  EXPECT_EQ(test::ask(http.port(), Client::get("/v1/models")).status, 200);
}

TEST(Operation, EveryRequestIsALineOfTheLog) {
  std::mutex mutex;
  std::vector<std::string> lines;
  Server server({.log = [&](const std::string& line) {
    const std::lock_guard lock(mutex);
    lines.push_back(line);
  }});
  server.post("/v1/completions", R"({"prompt":"In","max_tokens":2})", "X-Request-Id: abc\r\n");
  server.get("/nothing");
  ASSERT_TRUE(soon([&] {
    const std::lock_guard lock(mutex);
    return lines.size() == 2;
  }));
  const Json first = json(lines[0]);
  EXPECT_EQ(at(first, "request_id").string(), "abc");
  EXPECT_EQ(at(first, "status").integer(), 200);
  EXPECT_EQ(at(first, "path").string(), "/v1/completions");
  EXPECT_EQ(at(json(lines[1]), "status").integer(), 404);
}

TEST(Operation, ARequestThatIsRefusedUnreadIsALineOfTheLogToo) {
  std::mutex mutex;
  std::vector<std::string> lines;
  server::HttpOptions http;
  http.max_header = 2000;
  const auto log = [&](const std::string& line) {
    const std::lock_guard lock(mutex);
    lines.push_back(line);
  };
  Server server({.log = log}, {}, test::tiny_model(), http);
  const std::string post = "POST /v1/completions HTTP/1.1\r\nX-Request-Id: abc\r\nContent-Length: ";
  const std::pair<std::string, int> refused[] = {{post + "99999999999\r\n\r\n", 413},
                                                 {post + "x\r\n\r\n", 400},
                                                 {"hello\r\n\r\n", 400},
                                                 {Client::get("/", "A: " + std::string(3000, 'a') + "\r\n"), 431}};
  size_t sent = 0;
  for (const auto& [request, status] : refused) {
    Response r = test::ask(server.port(), request);
    EXPECT_EQ(r.status, status);
    ++sent;
    ASSERT_TRUE(soon([&] {
      const std::lock_guard lock(mutex);
      return lines.size() == sent;
    })) << request;
    const std::lock_guard lock(mutex);
    const Json line = json(lines.back());
    EXPECT_EQ(at(line, "status").integer(), status);
    EXPECT_EQ(at(line, "request_id").string(), r.headers["x-request-id"]);
    EXPECT_NE(r.headers["x-request-id"], "") << request;
  }
  EXPECT_EQ(at(json(lines[0]), "request_id").string(), "abc");
  EXPECT_EQ(at(json(lines[0]), "path").string(), "/v1/completions");
}

// 24 at once, some of whom leave: everybody else gets the answer that comes alone.
TEST(Operation, ManyStreamsAtOnceAreEachTheirOwn) {
  Server server;
  const auto body = [](int i) {
    return R"({"prompt":"In the )" + std::string(i % 3 ? "light" : "word") +
           R"( of","max_tokens":12,"stream":true,"seed":)" + std::to_string(i % 6) + "}";
  };
  const auto text = [](const std::string& all) {
    std::string out;
    for (const std::string& e : events(all))
      if (e != "[DONE]") out += at(json(e), "choices.0.text").string();
    return out;
  };
  std::vector<std::string> want;
  for (int i = 0; i < 6; ++i) want.push_back(text(server.post("/v1/completions", body(i)).body));
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 24; ++i) {
    clients.push_back(std::make_unique<Client>(server.port()));
    clients.back()->send(Client::post("/v1/completions", body(i)));
  }
  for (size_t i = 0; i < clients.size(); i += 5) clients[i]->close();
  for (size_t i = 0; i < clients.size(); ++i) {
    if (i % 5 == 0) continue;
    EXPECT_EQ(text(clients[i]->receive().body), want[i % 6]) << i;
  }
  EXPECT_TRUE(server.service.wait_idle(10s));
}

}  // namespace
}  // namespace kdelta
