// What http_server.cc and http_session.cc share; includes Boost.
#pragma once

#include <atomic>
#include <boost/asio.hpp>
#include <boost/beast/core.hpp>
#include <condition_variable>
#include <mutex>
#include <set>
#include <thread>

#include "frontends/server/http.h"

namespace kdelta::server {

namespace net = boost::asio;
namespace beast = boost::beast;
using boost::system::error_code;

struct Connection;

// How a connection is told that something happened: from any thread, also when the connection or the whole server is
// gone. Nobody but the connections' thread ever holds a connection, so no socket outlives what it is registered with.
class Bell {
 public:
  Bell(net::io_context& io, std::weak_ptr<Connection> connection) : io_(&io), connection_(std::move(connection)) {}

  // Many calls between two looks are one.
  void ring();
  // Of the connections' thread. A look: true when it has rung since the last one.
  bool take() { return rung_.exchange(false); }
  bool rung() const { return rung_; }
  // Of the connections' thread: the connection ends.
  void close() {
    const std::lock_guard lock(mutex_);
    io_ = nullptr;
  }

 private:
  std::atomic<bool> rung_{false};
  std::mutex mutex_;
  net::io_context* io_;  // under mutex_; null when closed
  std::weak_ptr<Connection> connection_;
};

// One connection's socket. Of the connections' thread.
struct Connection {
  explicit Connection(net::ip::tcp::socket socket) : stream(std::move(socket)), timer(stream.get_executor()) {}

  beast::tcp_stream stream;
  net::steady_timer timer;
  std::shared_ptr<Bell> bell;
  bool busy = false;      // in the middle of a request
  bool readable = false;  // there is input, or its end, while a reply is on its way
};

inline void Bell::ring() {
  if (rung_.exchange(true)) return;
  const std::lock_guard lock(mutex_);
  if (io_ == nullptr) return;
  net::post(*io_, [weak = connection_] {
    if (const auto connection = weak.lock()) connection->timer.cancel();
  });
}

struct HttpServer::Impl {
  Impl(HttpOptions o, HttpHandler h);
  ~Impl();

  net::awaitable<void> accept();
  net::awaitable<void> serve(std::shared_ptr<Connection> connection);
  // And closes the connections that are not in the middle of a request, or all.
  void stop_accepting(bool close_all);
  void set_busy(Connection& c, bool busy);

  const HttpOptions options;
  const HttpHandler handler;
  int bound_port = 0;
  // Of the connections' thread.
  std::set<std::shared_ptr<Connection>> all;
  bool draining = false;
  int64_t body_bytes = 0;

  std::atomic<int64_t> open{0};
  std::mutex mutex;
  std::condition_variable idle;
  int64_t busy = 0;  // under `mutex`

  // Coroutines end with these, and look at what is above.
  net::io_context io{1};
  net::thread_pool pool;
  net::ip::tcp::acceptor acceptor{io};
  std::thread thread;
};

}  // namespace kdelta::server
