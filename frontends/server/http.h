// HTTP/1.1 as the server's other files see it: a request in, a reply out, whole or piece by piece. Boost.Beast is named
// in http_server.cc and http_session.cc alone. One thread owns every socket; handlers run on a few others, so a long
// prompt that is being read holds up no stream.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kdelta::server {

using Headers = std::vector<std::pair<std::string, std::string>>;
using Clock = std::chrono::steady_clock;

struct HttpRequest {
  std::string method, path, query;
  Headers headers;  // names in lower case
  std::string body;
  std::string peer;  // address of the other end
  std::string id;    // of this request: the client's x-request-id when it is fit to be logged, else a new one

  // "" when there is none.
  std::string_view header(std::string_view lower_name) const;
};

struct ErrorText {
  std::string message, type, param, code;
};

struct Reply {
  int status = 200;
  std::string body;
  std::string type = "application/json";
  Headers headers = {};
  std::optional<ErrorText> error = {};  // of an error: what body says, for whoever says it in other words
};

// A reply that takes time. Only the connection's thread calls it. It is destroyed when all has been said or when the
// client is gone, whichever comes first: that cancels what it waits for.
class Exchange {
 public:
  struct Output {
    std::optional<Reply> whole;  // the reply, once
    // Or a stream: its head, with its first piece; body is not used.
    std::optional<Reply> head;
    std::string piece;  // one or several whole events
    bool done = false;
    bool failed = false;  // with done: the stream ends with an error
  };

  virtual ~Exchange() = default;
  // What can be said now; nothing when it has to wait. Called once at first, then after every wake.
  virtual void next(Output& out) = 0;
  // When next() is to be called at the latest.
  virtual std::optional<Clock::time_point> deadline() const { return std::nullopt; }
  // What keeps a silent stream open; "" when its format has nothing for that.
  virtual std::string ping() const { return ": ping\n\n"; }
};

// Says that an exchange has something to say. From any thread, also when the exchange is gone.
using Wake = std::function<void()>;

struct Answered {
  Reply reply;  // without an exchange
  std::unique_ptr<Exchange> exchange = nullptr;
};

struct HttpHandler {
  // Before the body is read: a refusal, or nothing.
  std::function<std::optional<Reply>(const HttpRequest&)> check;
  // On one of the handlers' threads. What it throws is a reply of 500.
  std::function<Answered(const HttpRequest&, Wake)> handle;
  // Headers of every reply to this request.
  std::function<Headers(const HttpRequest&)> headers;
  // An error to this request, about to be sent, in the form of its endpoint.
  std::function<void(const HttpRequest&, Reply&)> form;
  // The request has been answered, or its client was gone first (499). On the connection's thread.
  std::function<void(const HttpRequest&, int status, double seconds)> done;
};

struct HttpOptions {
  std::string host = "127.0.0.1";
  int port = 8000;                          // 0: any that is free
  int64_t max_body = int64_t{8} << 20;      // bytes of one request
  int64_t max_bodies = int64_t{256} << 20;  // of all that are being read or handled
  int64_t max_header = int64_t{16} << 10;
  int64_t max_connections = 16384;
  int handlers = 2;  // threads
  std::chrono::milliseconds header_timeout{15'000}, body_timeout{60'000}, idle_timeout{75'000}, write_timeout{30'000};
  std::chrono::milliseconds ping_interval{15'000};
};

// Throws std::runtime_error when the address cannot be bound. Serves from then on until it is destroyed.
class HttpServer {
 public:
  struct Impl;  // for the two files that know it
  HttpServer(HttpOptions options, HttpHandler handler);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  int port() const;
  // No new connections, no second request on those that are there.
  void drain();
  // Whether the last connection that was in the middle of a request has closed, after at most that long.
  bool wait_idle(std::chrono::milliseconds most);
  int64_t connections() const;

 private:
  std::unique_ptr<Impl> impl_;
};

// A JSON error in the form of the OpenAI API.
Reply error_reply(int status, std::string_view message, std::string_view type = "", std::string_view param = "",
                  std::string_view code = "");
// `prefix` and 24 random hexadecimal digits.
std::string new_id(const std::string& prefix);
// The type that a status has when nobody says another.
std::string_view error_type(int status);
// The body of an error in the form of the Anthropic API.
std::string anthropic_error(const Reply& reply);

}  // namespace kdelta::server
