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

// One connection's socket, and how it is told that something happened. Of the connections' thread, but for wake().
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  explicit Connection(net::ip::tcp::socket socket) : stream(std::move(socket)), timer(stream.get_executor()) {}

  // From any thread; many calls between two looks are one.
  void wake() {
    if (woken.exchange(true)) return;
    net::post(timer.get_executor(), [self = shared_from_this()] { self->timer.cancel(); });
  }

  beast::tcp_stream stream;
  net::steady_timer timer;
  std::atomic<bool> woken{false};
  bool busy = false;      // in the middle of a request
  bool readable = false;  // there is input, or its end, while a reply is on its way
};

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
