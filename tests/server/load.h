// A server under load of every kind at once: streams that must each be what they are alone, and beside them clients
// that read slowly, leave, stop in the middle of a request, send a byte at a time or far too much, or say nothing.
// Nothing here asks how fast it goes: what it measures it prints.
#pragma once

#include <gmock/gmock.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cmath>
#include <fstream>
#include <numeric>
#include <random>
#include <thread>

#include "frontends/server/load_client.h"
#include "tests/server/server.h"

namespace kdelta::test {

struct LoadScale {
  int64_t streams = 200;  // at once
  int64_t rounds = 1;     // of them
  int64_t tokens = 8;
  int64_t idle = 300;                       // connections that say nothing
  int64_t slow = 4, leaving = 8, half = 8;  // readers; clients; requests that stop in the middle
  int64_t huge = 2;                         // bodies of 64 MB, with and without a length each
};

// Bytes; `peak` since the last call of forget_peak().
struct Memory {
  int64_t now = 0, peak = 0;
};
inline void forget_peak() {
  std::ofstream("/proc/self/clear_refs") << "5";
}
inline Memory memory() {
  Memory m;
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("VmHWM:")) m.peak = std::strtoll(line.c_str() + 6, nullptr, 10) << 10;
    if (line.starts_with("VmRSS:")) m.now = std::strtoll(line.c_str() + 6, nullptr, 10) << 10;
  }
  return m;
}

// Connections that say nothing, in a process of their own, so that their ends do not count among the server's files.
// Made before the server has threads.
class IdleClients {
 public:
  IdleClients() {
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends_), 0);
    child_ = fork();
    if (child_ == 0) {
      ::close(ends_[0]);
      serve();
      _exit(0);
    }
    ::close(ends_[1]);
  }
  ~IdleClients() {
    ::close(ends_[0]);  // which ends the child
    waitpid(child_, nullptr, 0);
  }
  IdleClients(const IdleClients&) = delete;
  IdleClients& operator=(const IdleClients&) = delete;

  // How many of `count` were made.
  int64_t connect(int port, int64_t count) const { return ask({port, count}); }
  // How many of some twenty of them are answered.
  int64_t answered() const { return ask({0, 0}); }
  static int64_t asked(int64_t count) { return std::min<int64_t>(count, 20); }

 private:
  using Message = std::array<int64_t, 2>;

  int64_t ask(const Message& m) const {
    int64_t result = -1;
    pollfd p{.fd = ends_[0], .events = POLLIN, .revents = 0};
    if (write(ends_[0], &m, sizeof(m)) != sizeof(m) || poll(&p, 1, 40'000) != 1 ||
        read(ends_[0], &result, sizeof(result)) != sizeof(result))
      return -1;
    return result;
  }

  void serve() const {
    std::vector<std::unique_ptr<Client>> all;
    for (Message m; read(ends_[1], &m, sizeof(m)) == sizeof(m);) {
      int64_t result = 0;
      for (int64_t i = 0; i < m[1]; ++i) {
        all.push_back(std::make_unique<Client>(static_cast<int>(m[0])));
        result += all.back()->connected();
      }
      for (int64_t i = 0; m[1] == 0 && i < asked(std::ssize(all)); ++i) {
        Client& one = *all[static_cast<size_t>(i * std::ssize(all) / asked(std::ssize(all)))];
        one.send(Client::get("/health"));
        result += one.receive(30'000).status == 200;
      }
      if (write(ends_[1], &result, sizeof(result)) != sizeof(result)) return;
    }
  }

  int ends_[2] = {-1, -1};
  pid_t child_ = -1;
};

class Load {
 public:
  explicit Load(LoadScale scale) : scale_(scale), server_({}, {.max_waiting = 4096}, model(), http()) {
    EXPECT_GE(files_, scale.idle + 2 * scale.streams + 400) << "too few open files";
    for (int64_t i = 0; i < kKinds; ++i) {
      alone_.push_back(streams(1, i).front());
      EXPECT_EQ(alone_.back().error, "");
      EXPECT_FALSE(alone_.back().text.empty());
    }
  }

  void run() {
    const Memory before = memory();
    ASSERT_EQ(idle_.connect(port(), scale_.idle), scale_.idle);
    ASSERT_TRUE(until([&] { return server_.http().connections() >= scale_.idle; }));
    const Memory with_idle = memory();
    forget_peak();
    std::vector<std::thread> others;
    for (int64_t i = 0; i < scale_.slow; ++i) others.emplace_back([this, i] { read_slowly(i); });
    for (int64_t i = 0; i < scale_.leaving; ++i) others.emplace_back([this, i] { leave(i); });
    others.emplace_back([this] { stop_halfway(); });
    for (int64_t i = 0; i < scale_.huge; ++i)
      for (const bool length : {true, false}) others.emplace_back([this, length] { send_too_much(length); });
    std::vector<double> gaps;
    for (int64_t round = 0; round < scale_.rounds; ++round) {
      const auto answers = streams(scale_.streams, -1);
      for (size_t i = 0; i < answers.size(); ++i) {
        expect_alone(answers[i], static_cast<int64_t>(i));
        for (size_t p = 1; p < answers[i].pieces.size(); ++p)
          gaps.push_back(1e3 * (answers[i].pieces[p] - answers[i].pieces[p - 1]));
      }
    }
    for (std::thread& t : others) t.join();
    EXPECT_TRUE(server_.service.wait_idle(std::chrono::seconds(40)));
    // Bodies of 8 MB that were being read, and what streams hold: not the 64 MB that were sent, nor what is idle.
    const Memory after = memory();
    EXPECT_LT(after.peak - with_idle.now, (2 * scale_.huge * 3 * 8 + 96) << 20);
    EXPECT_EQ(idle_.answered(), IdleClients::asked(scale_.idle)) << "those that were idle";
    std::sort(gaps.begin(), gaps.end());
    std::printf(
        "%lld streams a round, %lld idle connections of %.1f kB; between tokens ms p50 %.2f p99 %.2f max %.2f; memory "
        "MB "
        "%lld before, %lld with idle ones, %lld at most, %lld after\n",
        static_cast<long long>(scale_.streams), static_cast<long long>(scale_.idle),
        static_cast<double>(with_idle.now - before.now) / 1e3 / static_cast<double>(std::max<int64_t>(scale_.idle, 1)),
        at(gaps, .5), at(gaps, .99), at(gaps, 1), static_cast<long long>(before.now >> 20),
        static_cast<long long>(with_idle.now >> 20), static_cast<long long>(after.peak >> 20),
        static_cast<long long>(after.now >> 20));
  }

  Server& server() { return server_; }

 private:
  static constexpr int64_t kKinds = 12;

  static LoadOptions model() {
    LoadOptions o = tiny_model(64);
    o.max_length = 128;
    o.token_budget = 512;
    return o;
  }
  // Idle connections stay for as long as the test may take.
  static server::HttpOptions http() {
    server::HttpOptions o;
    o.header_timeout = std::chrono::hours(1);
    return o;
  }
  int port() const { return server_.port(); }

  // As many as this process may have.
  static int64_t open_files() {
    rlimit files{};
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    return static_cast<int64_t>(files.rlim_cur);
  }

  template <class F>
  static bool until(F condition) {
    for (int i = 0; i < 4000; ++i) {
      if (condition()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }

  static double at(const std::vector<double>& sorted, double part) {
    if (sorted.empty()) return 0;
    return sorted[static_cast<size_t>(part * static_cast<double>(sorted.size() - 1))];
  }

  std::string body(int64_t kind) const {
    const char* prompts[] = {"In the beginning", "The light of the", "And he said unto them,", "What is"};
    return std::string(R"({"prompt":")") + prompts[kind % 4] + R"(","max_tokens":)" + std::to_string(scale_.tokens) +
           R"(,"ignore_eos":true,"temperature":0.8,"stream":true,"seed":)" + std::to_string(kind) + "}";
  }

  // All at once; of one kind, or of all in turn.
  std::vector<server::LoadAnswer> streams(int64_t count, int64_t kind) const {
    server::LoadPlan plan;
    plan.port = port();
    plan.requests = plan.concurrency = count;
    plan.patience = std::chrono::seconds(40);
    plan.request = [&](int64_t i) {
      return server::LoadRequest{.path = "/v1/completions", .body = body(kind >= 0 ? kind : i % kKinds)};
    };
    return server::run_load(plan);
  }

  void expect_alone(const server::LoadAnswer& answer, int64_t number) const {
    EXPECT_EQ(answer.error, "") << number;
    EXPECT_EQ(answer.text, alone_[static_cast<size_t>(number % kKinds)].text) << number;
    EXPECT_EQ(answer.finish, "length") << number;
  }

  void read_slowly(int64_t number) const {
    Client client(port(), 4096);
    client.send(Client::post("/v1/completions", body(number % kKinds)));
    EXPECT_EQ(client.receive_head().status, 200);
    std::string chunk, text, all;
    while (client.next_chunk(chunk)) {
      all += chunk;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    for (const std::string& e : events(all))
      if (e != "[DONE]") text += test::at(json(e), "choices.0.text").string();
    EXPECT_EQ(text, alone_[static_cast<size_t>(number % kKinds)].text) << "read slowly";
  }

  // After so many pieces of the stream, or before any.
  void leave(int64_t number) const {
    Client client(port());
    client.send(Client::post("/v1/completions", body(number % kKinds)));
    std::string chunk;
    if (number % 4 > 0 && client.receive_head().status == 200)
      for (int64_t i = 1; i < number % 4; ++i) client.next_chunk(chunk);
    number % 2 == 0 ? client.half_close() : client.close();
    EXPECT_TRUE(number % 2 != 0 || client.closes(40'000)) << "half closed is gone";
  }

  // Some in the head, some in the body; some a byte at a time.
  void stop_halfway() const {
    std::vector<std::unique_ptr<Client>> all;
    const std::string request = Client::post("/v1/completions", body(0));
    for (int64_t i = 0; i < scale_.half; ++i) {
      all.push_back(std::make_unique<Client>(port()));
      all.back()->send(request.substr(0, i % 2 == 0 ? 30 : request.size() - 10));
    }
    Client drop(port());
    for (size_t i = 0; i < 40; ++i) {
      drop.send(request.substr(i, 1));
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }

  void send_too_much(bool with_length) const {
    Client client(port());
    constexpr size_t kAll = size_t{64} << 20;
    client.send("POST /v1/completions HTTP/1.1\r\nHost: x\r\n" +
                (with_length ? "Content-Length: " + std::to_string(kAll) : std::string("Transfer-Encoding: chunked")) +
                "\r\n\r\n");
    std::thread sender([&] {
      const std::string part(size_t{1} << 16, ' ');
      const std::string chunk = with_length ? part : "10000\r\n" + part + "\r\n";
      for (size_t sent = 0; sent < kAll && client.send(chunk); sent += part.size()) {
      }
    });
    EXPECT_EQ(client.receive().status, 413);
    sender.join();
  }

  const LoadScale scale_;
  const int64_t files_ = open_files();  // of the child too
  IdleClients idle_;
  Server server_;
  std::vector<server::LoadAnswer> alone_;
};

}  // namespace kdelta::test
