#include "frontends/server/load_client.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <memory>
#include <random>
#include <stdexcept>

#include "kdelta/api/json.h"

namespace kdelta::server {
namespace {

using Clock = std::chrono::steady_clock;

double number_of(const Json& object, std::string_view field) {
  const Json* value = object.find(field);
  return value == nullptr ? 0 : value->number();
}

std::string text_of(const Json& object, std::string_view field) {
  const Json* value = object.find(field);
  return value != nullptr && value->kind() == Json::Kind::string ? value->string() : "";
}

// One connection, one request. What comes is kept as it is and read when the run is over, so that the times of one are
// not the work on another.
class Exchange {
 public:
  Exchange(const LoadPlan& plan, const addrinfo& to, int64_t number, double now) : answer_{.began = now} {
    const LoadRequest r = plan.request(number);
    out_ = r.method + " " + r.path + " HTTP/1.1\r\nHost: " + plan.host + "\r\nContent-Type: application/json\r\n" +
           "Connection: close\r\nContent-Length: " + std::to_string(r.body.size()) + "\r\n" + plan.headers + "\r\n" +
           r.body;
    socket_ = socket(to.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    const int on = 1;
    setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    if (socket_ < 0 || (connect(socket_, to.ai_addr, to.ai_addrlen) != 0 && errno != EINPROGRESS))
      fail(std::strerror(errno));
    last_heard_ = now;
  }
  ~Exchange() { close(); }
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  bool done() const { return done_; }
  pollfd waits_for() const {
    return {.fd = socket_, .events = static_cast<short>(out_.empty() ? POLLIN : POLLOUT), .revents = 0};
  }
  double last_heard() const { return last_heard_; }

  void fail(const std::string& why) {
    answer_.error = why;
    done_ = true;
    close();
  }

  void go_on(double now) {
    if (!out_.empty()) return write();
    char buffer[1 << 16];
    const ssize_t n = recv(socket_, buffer, sizeof(buffer), 0);
    if (n < 0) {
      if (errno != EAGAIN && errno != EINTR) fail(std::strerror(errno));
      return;
    }
    last_heard_ = answer_.ended = now;
    if (n == 0) {
      done_ = true;
      return close();
    }
    marks_.push_back({in_.size(), now});
    in_.append(buffer, static_cast<size_t>(n));
  }

  // Afterwards.
  LoadAnswer take() {
    try {
      if (answer_.error.empty()) read_answer();
    } catch (const std::exception& e) {
      answer_.error = e.what();
    }
    return std::move(answer_);
  }

 private:
  struct Mark {
    size_t at;  // bytes from there on came then
    double time;
  };

  void close() {
    if (socket_ >= 0) ::close(socket_);
    socket_ = -1;
  }

  void write() {
    const ssize_t n = send(socket_, out_.data(), out_.size(), MSG_NOSIGNAL);
    if (n > 0) out_.erase(0, static_cast<size_t>(n));
    if (n < 0 && errno != EAGAIN && errno != EINTR) fail(std::strerror(errno));
  }

  double time_of(size_t at) const {
    const auto next =
        std::upper_bound(marks_.begin(), marks_.end(), at, [](size_t a, const Mark& m) { return a < m.at; });
    return std::prev(next)->time;
  }

  void read_answer() {
    const size_t end = in_.find("\r\n\r\n");
    if (end == std::string::npos) throw std::runtime_error("the connection ended before an answer");
    const std::string head = lower(in_.substr(0, end));
    answer_.status = std::atoi(head.c_str() + std::min(head.find(' '), head.size()));
    if (head.find("\r\ntransfer-encoding: chunked") == std::string::npos) {
      answer_.body = in_.substr(end + 4);
      if (answer_.status != 200) answer_.error = "status " + std::to_string(answer_.status) + ": " + answer_.body;
      return;
    }
    bool whole = false;
    for (size_t at = end + 4;;) {
      const size_t line = in_.find("\r\n", at);
      size_t size = 0;
      if (line == std::string::npos ||
          std::from_chars(in_.data() + at, in_.data() + line, size, 16).ec != std::errc() ||
          in_.size() - line < size + 4)
        break;
      if (size == 0) {
        whole = true;
        break;
      }
      read_chunk(std::string_view(in_).substr(line + 2, size), time_of(line + 2 + size - 1));
      at = line + 2 + size + 2;
    }
    if (!whole && answer_.error.empty()) answer_.error = "the stream ended before its last chunk";
    if (!finished_ && answer_.error.empty()) answer_.error = "the stream ended without [DONE]";
  }

  // Events may be cut anywhere; what has not come whole waits.
  void read_chunk(std::string_view chunk, double time) {
    events_ += chunk;
    size_t begin = 0;
    for (size_t end; (end = events_.find("\n\n", begin)) != std::string::npos; begin = end + 2) {
      const std::string_view event = std::string_view(events_).substr(begin, end - begin);
      constexpr std::string_view kData = "data: ";
      if (event.starts_with(kData)) read_event(event.substr(kData.size()), time);
    }
    events_.erase(0, begin);
  }

  void read_event(std::string_view data, double time) {
    if (data == "[DONE]") {
      finished_ = true;
      return;
    }
    const Json event = parse_json(data, {.name = "event"});
    if (const Json* error = event.find("error")) answer_.error = text_of(*error, "message");
    if (const Json* usage = event.find("usage"); usage != nullptr && !usage->is_null()) {
      answer_.prompt_tokens = static_cast<int64_t>(number_of(*usage, "prompt_tokens"));
      answer_.tokens = static_cast<int64_t>(number_of(*usage, "completion_tokens"));
    }
    if (const Json* t = event.find("timings"))
      answer_.server_first = 1e-3 * (number_of(*t, "queued_ms") + number_of(*t, "prompt_ms"));
    const Json* choices = event.find("choices");
    if (choices == nullptr) return;
    std::string text;
    for (const Json& choice : choices->array()) {
      text += text_of(choice, "text");
      if (const Json* delta = choice.find("delta"))
        text += text_of(*delta, "reasoning_content") + text_of(*delta, "content");
      if (const std::string finish = text_of(choice, "finish_reason"); !finish.empty()) answer_.finish = finish;
    }
    if (text.empty()) return;
    answer_.text += text;
    answer_.pieces.push_back(time);
  }

  static std::string lower(std::string text) {
    for (char& c : text)
      if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    return text;
  }

  LoadAnswer answer_;
  int socket_ = -1;
  bool done_ = false, finished_ = false;
  double last_heard_ = 0;
  std::string out_, in_, events_;
  std::vector<Mark> marks_;
};

class Address {
 public:
  explicit Address(const LoadPlan& plan) {
    addrinfo want{};
    want.ai_socktype = SOCK_STREAM;
    const int error = getaddrinfo(plan.host.c_str(), std::to_string(plan.port).c_str(), &want, &found_);
    if (error != 0) throw std::runtime_error(plan.host + ": " + gai_strerror(error));
  }
  ~Address() { freeaddrinfo(found_); }
  Address(const Address&) = delete;
  Address& operator=(const Address&) = delete;
  const addrinfo& operator*() const { return *found_; }

 private:
  addrinfo* found_ = nullptr;
};

// When each request may begin.
std::vector<double> arrivals(const LoadPlan& plan) {
  std::vector<double> times(static_cast<size_t>(plan.requests));
  if (plan.rate <= 0) return times;
  std::mt19937_64 random(plan.seed);
  std::exponential_distribution<double> gap(plan.rate);
  double at = 0;
  for (double& t : times) t = at += gap(random);
  return times;
}

}  // namespace

std::vector<LoadAnswer> run_load(const LoadPlan& plan) {
  const Address to(plan);
  const std::vector<double> due = arrivals(plan);
  const auto begin = Clock::now();
  const auto now = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
  const double patience = std::chrono::duration<double>(plan.patience).count();
  std::vector<std::unique_ptr<Exchange>> all(due.size());
  std::vector<Exchange*> open;
  std::vector<pollfd> polled;
  for (size_t next = 0; next < all.size() || !open.empty();) {
    while (next < all.size() && std::ssize(open) < plan.concurrency && now() >= due[next]) {
      all[next] = std::make_unique<Exchange>(plan, *to, static_cast<int64_t>(next), now());
      if (!all[next]->done()) open.push_back(all[next].get());
      ++next;
    }
    polled.clear();
    for (const Exchange* e : open) polled.push_back(e->waits_for());
    int wait = 100;
    if (next < all.size() && std::ssize(open) < plan.concurrency)
      wait = std::clamp(static_cast<int>(1e3 * (due[next] - now())), 0, wait);
    poll(polled.data(), polled.size(), wait);
    const double time = now();
    for (size_t i = 0; i < open.size(); ++i) {
      if (polled[i].revents != 0) open[i]->go_on(time);
      if (!open[i]->done() && time - open[i]->last_heard() > patience) open[i]->fail("nothing came for too long");
    }
    std::erase_if(open, [](const Exchange* e) { return e->done(); });
  }
  std::vector<LoadAnswer> answers;
  answers.reserve(all.size());
  for (const auto& e : all) answers.push_back(e->take());
  return answers;
}

}  // namespace kdelta::server
