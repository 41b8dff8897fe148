#include <cstdio>
#include <random>

#include "frontends/server/http_impl.h"
#include "frontends/server/threads.h"

namespace kdelta::server {

using net::ip::tcp;

HttpServer::Impl::Impl(HttpOptions o, HttpHandler h)
    : options(std::move(o)), handler(std::move(h)), pool(static_cast<size_t>(options.handlers)) {
  const auto fail = [&](const char* what, const std::string& why) {
    throw std::runtime_error(options.host + ":" + std::to_string(options.port) + ": " + what + ": " + why);
  };
  error_code error;
  tcp::resolver resolver(io);
  const auto found = resolver.resolve(options.host, std::to_string(options.port), tcp::resolver::passive, error);
  if (error || found.empty()) fail("no such address", error.message());
  const tcp::endpoint endpoint = found.begin()->endpoint();
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(net::socket_base::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(4096, error);
  if (error) fail("cannot listen", error.message());
  bound_port = acceptor.local_endpoint().port();
  net::co_spawn(io, accept(), net::detached);
  thread = std::thread([this] {
    name_thread("kdelta-http");
    io.run();
  });
}

// Every coroutine comes to its own end: nothing of them is left for the destructor of what they run on.
HttpServer::Impl::~Impl() {
  net::post(io, [this] { stop_accepting(true); });
  thread.join();
  pool.join();
}

void HttpServer::Impl::stop_accepting(bool close_all) {
  draining = true;
  error_code ignored;
  acceptor.close(ignored);
  for (const auto& c : all) {
    if (c->busy && !close_all) continue;
    c->stream.close();
    c->timer.cancel();
  }
}

net::awaitable<void> HttpServer::Impl::accept() {
  while (acceptor.is_open()) {
    error_code error;
    tcp::socket socket(io);
    co_await acceptor.async_accept(socket, net::redirect_error(net::use_awaitable, error));
    if (error == net::error::operation_aborted || draining) co_return;
    if (error) {  // out of descriptors: those that are open have to close first
      net::steady_timer pause(io, std::chrono::milliseconds(20));
      co_await pause.async_wait(net::redirect_error(net::use_awaitable, error));
      continue;
    }
    socket.set_option(tcp::no_delay(true), error);
    const auto connection = std::make_shared<Connection>(std::move(socket));
    connection->bell = std::make_shared<Bell>(io, connection);
    all.insert(connection);
    open = static_cast<int64_t>(all.size());
    net::co_spawn(io, serve(connection), [this, connection](const std::exception_ptr&) {
      connection->bell->close();
      set_busy(*connection, false);
      all.erase(connection);
      open = static_cast<int64_t>(all.size());
    });
  }
}

void HttpServer::Impl::set_busy(Connection& c, bool now) {
  if (std::exchange(c.busy, now) == now) return;
  const std::lock_guard lock(mutex);
  busy += now ? 1 : -1;
  if (busy == 0) idle.notify_all();
}

HttpServer::HttpServer(HttpOptions options, HttpHandler handler)
    : impl_(std::make_unique<Impl>(std::move(options), std::move(handler))) {}

HttpServer::~HttpServer() = default;

int HttpServer::port() const {
  return impl_->bound_port;
}

int64_t HttpServer::connections() const {
  return impl_->open;
}

void HttpServer::drain() {
  net::post(impl_->io, [impl = impl_.get()] { impl->stop_accepting(false); });
}

bool HttpServer::wait_idle(std::chrono::milliseconds most) {
  std::unique_lock lock(impl_->mutex);
  return impl_->idle.wait_for(lock, most, [&] { return impl_->busy == 0; });
}

}  // namespace kdelta::server
