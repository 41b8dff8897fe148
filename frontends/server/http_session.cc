// One connection: requests are read within limits, handed to a handler, answered whole or piece by piece; a client that
// goes away, at whatever moment, ends what runs for it.
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/beast/http.hpp>
#include <cctype>
#include <cstdio>

#include "frontends/server/http_impl.h"
#include "frontends/server/threads.h"

namespace kdelta::server {
namespace {

namespace http = beast::http;
using Parser = http::request_parser<http::string_body>;

constexpr auto kLook = std::chrono::milliseconds(250);  // at a client whose next request hides whether it is there
constexpr size_t kLinger = size_t{4} << 20;             // bytes of a refused body that are read and thrown away

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

// Fit to be logged and to be sent back.
bool is_id(std::string_view text) {
  return !text.empty() && text.size() <= 128 && std::all_of(text.begin(), text.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.' || c == ':';
  });
}

HttpRequest request_of(const http::request_header<>& head, std::string peer) {
  HttpRequest r;
  r.method = head.method_string();
  const std::string_view target(head.target().data(), head.target().size());
  const size_t mark = std::min(target.find('?'), target.size());
  r.path = target.substr(0, mark);
  if (mark < target.size()) r.query = target.substr(mark + 1);
  for (const auto& field : head) r.headers.emplace_back(lower(field.name_string()), std::string(field.value()));
  r.peer = std::move(peer);
  const std::string_view id = r.header("x-request-id");
  r.id = is_id(id) ? std::string(id) : new_id("req-");
  return r;
}

http::response<http::string_body> response_of(const Reply& reply, const Headers& more, unsigned http_version) {
  http::response<http::string_body> out(http::int_to_status(static_cast<unsigned>(reply.status)), http_version);
  if (!reply.type.empty()) out.set(http::field::content_type, reply.type);
  for (const auto& [name, value] : more) out.set(name, value);
  for (const auto& [name, value] : reply.headers) out.set(name, value);
  return out;
}

// Nothing can be read, and the other end still listens.
bool is_there(int socket) {
  pollfd p{.fd = socket, .events = POLLRDHUP, .revents = 0};
  return poll(&p, 1, 0) == 0;
}

const std::string kLast;  // an empty chunk ends a body

std::string chunk_of(const std::string& piece) {
  char size[20];
  const int n = std::snprintf(size, sizeof(size), "%zx\r\n", piece.size());
  std::string out(size, static_cast<size_t>(n));
  out += piece;
  return out += "\r\n";
}

// The way of one connection's bytes. g++ 12 destroys temporaries of an expression with co_await twice, or not at all:
// what has a destructor is named before.
class Session {
 public:
  Session(HttpServer::Impl& server, std::shared_ptr<Connection> connection)
      : server_(server), options_(server.options), c_(std::move(connection)) {
    error_code ignored;
    const auto end = c_->stream.socket().remote_endpoint(ignored);
    if (!ignored) peer_ = end.address().to_string();
  }
  ~Session() { release_body(); }

  net::awaitable<void> run() {
    if (std::ssize(server_.all) > options_.max_connections) {
      const http::request_header<> none;
      const Reply full = error_reply(503, "too many connections");
      co_await refuse_unread(none, full);
      co_return;
    }
    for (bool first = true; !server_.draining; first = false) {
      const bool more = co_await one(first);
      if (!more) break;
    }
    error_code ignored;
    c_->stream.socket().shutdown(net::socket_base::shutdown_send, ignored);
  }

 private:
  using Pieces = Exchange::Output;

  // One request; false when the connection is done.
  net::awaitable<bool> one(bool first) {
    Parser parser;
    parser.header_limit(static_cast<uint32_t>(options_.max_header));
    parser.body_limit(static_cast<uint64_t>(options_.max_body));
    error_code error;
    request_ = {};
    more_headers_.clear();
    c_->stream.expires_after(first ? options_.header_timeout : options_.idle_timeout);
    co_await http::async_read_header(c_->stream, buffer_, parser, net::redirect_error(net::use_awaitable, error));
    const unsigned version = parser.get().version();
    if (error) {
      const std::optional<Reply> reply = refusal_of(error);
      if (reply) co_await refuse_unread(parser.get(), *reply);
      co_return false;
    }
    server_.set_busy(*c_, true);
    began_ = Clock::now();
    request_ = request_of(parser.get(), peer_);
    std::optional<Reply> refused = server_.handler.check(request_);
    more_headers_ = server_.handler.headers(request_);
    if (!refused) refused = reserve_body(parser);
    if (!refused) {
      co_await read_body(parser, error);
      if (error) refused = refusal_of(error);
      if (error && !refused) {
        note_done(499);
        co_return false;
      }
    }
    if (refused) {
      const bool unread = !parser.is_done();
      co_await refuse(*refused, version, unread);
      note_done(refused->status);
      server_.set_busy(*c_, false);
      co_return !unread && keep_;
    }
    request_.body = std::move(parser.get().body());
    const bool keep = parser.get().keep_alive();
    co_await answer(version, keep);
    release_body();
    server_.set_busy(*c_, false);
    co_return keep_&& keep;
  }

  // What to say to a request that cannot be read; nothing to a client that is gone.
  static std::optional<Reply> refusal_of(const error_code& error) {
    if (error == http::error::header_limit) return error_reply(431, "the headers are too large");
    if (error == http::error::body_limit) return error_reply(413, "the body is too large");
    // A read that took too long has closed the socket.
    if (error == beast::error::timeout || error == http::error::end_of_stream ||
        error == http::error::partial_message || error.category() == boost::system::system_category() ||
        error == net::error::eof || error == net::error::operation_aborted)
      return std::nullopt;
    return error_reply(400, "not HTTP: " + error.message());
  }

  // Bodies of all requests together are bounded too.
  std::optional<Reply> reserve_body(const Parser& parser) {
    const auto length = parser.content_length();
    if (length && *length > static_cast<uint64_t>(options_.max_body)) return error_reply(413, "the body is too large");
    const int64_t want = parser.is_done() ? 0 : length ? static_cast<int64_t>(*length) : options_.max_body;
    if (server_.body_bytes + want > options_.max_bodies) {
      return error_reply(503, "too many request bodies at once");
    }
    reserved_ = want;
    server_.body_bytes += want;
    return std::nullopt;
  }

  void release_body() { server_.body_bytes -= std::exchange(reserved_, 0); }

  net::awaitable<void> read_body(Parser& parser, error_code& error) {
    if (parser.is_done()) co_return;
    if (beast::iequals(parser.get()[http::field::expect], "100-continue")) {
      constexpr std::string_view go_on = "HTTP/1.1 100 Continue\r\n\r\n";
      c_->stream.expires_after(options_.write_timeout);
      co_await net::async_write(c_->stream, net::buffer(go_on), net::redirect_error(net::use_awaitable, error));
      if (error) co_return;
    }
    c_->stream.expires_after(options_.body_timeout);
    co_await http::async_read(c_->stream, buffer_, parser, net::redirect_error(net::use_awaitable, error));
  }

  // A request of which only `head`, or a part of it, was read: it has an id and is told of like every other.
  net::awaitable<void> refuse_unread(const http::request_header<>& head, const Reply& reply) {
    began_ = Clock::now();
    request_ = request_of(head, peer_);
    more_headers_ = server_.handler.headers(request_);
    co_await refuse(reply, 11, true);
    note_done(reply.status);
  }

  // `linger`: input is still coming, which would make the kernel throw away what was written.
  net::awaitable<void> refuse(const Reply& reply, unsigned version, bool linger) {
    error_code error;
    if (linger) keep_ = false;
    co_await write_whole(reply, version, keep_, error);
    if (error || !linger) co_return;
    c_->stream.socket().shutdown(net::socket_base::shutdown_send, error);
    std::vector<char> bin(size_t{64} << 10);
    c_->stream.expires_after(std::chrono::seconds(2));
    for (size_t all = 0; all < kLinger && !error;)
      all += co_await c_->stream.async_read_some(net::buffer(bin), net::redirect_error(net::use_awaitable, error));
  }

  net::awaitable<void> write_whole(const Reply& reply, unsigned version, bool keep, error_code& error) {
    Reply formed = reply;
    if (formed.error && server_.handler.form) server_.handler.form(request_, formed);
    http::response<http::string_body> out = response_of(formed, more_headers_, version);
    out.keep_alive(keep && !server_.draining);
    const bool head = request_.method == "HEAD";
    if (!head) out.body() = formed.body;
    if (formed.status == 204)
      out.body().clear();
    else
      out.content_length(formed.body.size());
    keep_ = out.keep_alive();
    c_->stream.expires_after(options_.write_timeout);
    if (head) {
      http::response_serializer<http::string_body> serializer(out);
      co_await http::async_write_header(c_->stream, serializer, net::redirect_error(net::use_awaitable, error));
    } else {
      co_await http::async_write(c_->stream, out, net::redirect_error(net::use_awaitable, error));
    }
  }

  net::awaitable<void> answer(unsigned version, bool keep) {
    keep_ = keep;
    Answered answered;
    co_await ask(answered);
    error_code error;
    if (!answered.exchange) {
      co_await write_whole(answered.reply, version, keep, error);
      note_done(error ? 499 : answered.reply.status);
      if (error) keep_ = false;
      co_return;
    }
    int status = 499;
    watch();
    co_await converse(*answered.exchange, version, keep, status, error);
    answered.exchange.reset();
    unwatch_.emit(net::cancellation_type::all);
    note_done(error ? 499 : status);
    if (error) keep_ = false;
  }

  // What a handler's thread leaves behind.
  struct Handled {
    Answered answered;
    std::atomic<bool> done{false};
  };

  // On a handler's thread; the coroutine stays on this one.
  net::awaitable<void> ask(Answered& answered) {
    const auto handled = std::make_shared<Handled>();
    net::post(server_.pool, [this, handled, bell = c_->bell] {
      thread_local const bool named = name_thread("kdelta-handler");
      (void)named;
      handled->answered = handle(bell);
      handled->done = true;  // from here on the session may be gone
      (void)bell->take();
      bell->ring();
    });
    while (!handled->done) {
      error_code ignored;
      c_->timer.expires_after(std::chrono::hours(1));
      co_await c_->timer.async_wait(net::redirect_error(net::use_awaitable, ignored));
    }
    answered = std::move(handled->answered);
  }

  Answered handle(const std::shared_ptr<Bell>& bell) {
    try {
      return server_.handler.handle(request_, [bell] { bell->ring(); });
    } catch (const std::exception& e) {
      return {.reply = error_reply(500, e.what())};
    }
  }

  // While a reply is on its way nothing is read, so the end of the input would go unnoticed.
  void watch() {
    c_->readable = false;
    c_->stream.socket().async_wait(net::socket_base::wait_read,
                                   net::bind_cancellation_slot(unwatch_.slot(), [c = c_](const error_code& error) {
                                     if (error) return;
                                     c->readable = true;
                                     c->timer.cancel();
                                   }));
  }

  net::awaitable<void> converse(Exchange& exchange, unsigned version, bool keep, int& status, error_code& error) {
    bool streams = false;
    auto spoke = Clock::now();
    for (;;) {
      (void)c_->bell->take();
      Pieces out;
      if (!ask_next(exchange, out, streams)) {  // nothing that a stream could still say
        error = net::error::fault;
        co_return;
      }
      if (out.whole) {
        status = out.whole->status;
        co_await write_whole(*out.whole, version, keep, error);
        co_return;
      }
      if (out.head) {
        streams = true;
        status = out.head->status;
        co_await write_head(*out.head, version, keep, error);
      }
      if (!error && !out.piece.empty()) co_await write_piece(out.piece, version, error);
      if (!error && out.done && version >= 11) co_await write_piece(kLast, version, error);
      if (error || out.done) co_return;
      if (out.head || !out.piece.empty()) spoke = Clock::now();
      if (streams && Clock::now() - spoke >= options_.ping_interval) {
        spoke = Clock::now();
        const std::string ping = exchange.ping();
        if (!ping.empty()) co_await write_piece(ping, version, error);
        if (error) co_return;
      }
      co_await wait(exchange, streams, spoke, error);
      if (error) co_return;
    }
  }

  // What it throws is a reply of 500, unless a stream has begun.
  static bool ask_next(Exchange& exchange, Pieces& out, bool streams) {
    try {
      exchange.next(out);
    } catch (const std::exception& e) {
      if (streams) return false;
      out = {};
      out.whole = error_reply(500, e.what());
    }
    return true;
  }

  // Until there is something to say, a ping is due, or the client is gone.
  net::awaitable<void> wait(const Exchange& exchange, bool streams, Clock::time_point spoke, error_code& error) {
    for (;;) {
      if (!c_->stream.socket().is_open() || (c_->readable && !is_there(c_->stream.socket().native_handle()))) {
        error = net::error::eof;
        co_return;
      }
      const auto now = Clock::now();
      auto until = now + std::chrono::hours(1);
      if (streams) until = std::min(until, spoke + options_.ping_interval);
      if (const auto deadline = exchange.deadline()) until = std::min(until, *deadline);
      if (c_->bell->rung() || now >= until) co_return;
      if (c_->readable) until = std::min(until, now + kLook);
      error_code ignored;
      c_->timer.expires_at(until);
      co_await c_->timer.async_wait(net::redirect_error(net::use_awaitable, ignored));
    }
  }

  net::awaitable<void> write_head(const Reply& head, unsigned version, bool keep, error_code& error) {
    http::response<http::empty_body> out(response_of(head, more_headers_, version).base());
    out.keep_alive(keep && version >= 11 && !server_.draining);
    if (version >= 11) out.chunked(true);
    keep_ = out.keep_alive();
    http::response_serializer<http::empty_body> serializer(out);
    c_->stream.expires_after(options_.write_timeout);
    co_await http::async_write_header(c_->stream, serializer, net::redirect_error(net::use_awaitable, error));
  }

  net::awaitable<void> write_piece(const std::string& piece, unsigned version, error_code& error) {
    const std::string chunk = version >= 11 ? chunk_of(piece) : piece;
    c_->stream.expires_after(options_.write_timeout);
    co_await net::async_write(c_->stream, net::buffer(chunk), net::redirect_error(net::use_awaitable, error));
  }

  void note_done(int status) {
    if (server_.handler.done)
      server_.handler.done(request_, status, std::chrono::duration<double>(Clock::now() - began_).count());
  }

  HttpServer::Impl& server_;
  const HttpOptions& options_;
  std::shared_ptr<Connection> c_;
  beast::flat_buffer buffer_;
  HttpRequest request_;
  Headers more_headers_;
  std::string peer_;
  Clock::time_point began_;
  net::cancellation_signal unwatch_;
  int64_t reserved_ = 0;
  bool keep_ = false;
};

}  // namespace

net::awaitable<void> HttpServer::Impl::serve(std::shared_ptr<Connection> connection) {
  Session session(*this, std::move(connection));
  co_await session.run();
}

}  // namespace kdelta::server
