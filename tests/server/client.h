// A client on a plain socket, so that a test can send what no library would. Nothing waits for ever.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <map>
#include <string>
#include <string_view>

namespace kdelta::test {

struct Response {
  int status = 0;                              // 0: the connection ended instead
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;
  bool whole = false;  // its end was seen
};

class Client {
 public:
  explicit Client(int port, int receive_buffer = 0) : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    if (receive_buffer > 0) setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof(receive_buffer));
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(port));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = connect(socket_, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0;
  }
  ~Client() { close(); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  bool connected() const { return connected_; }
  void close() {
    if (socket_ >= 0) ::close(socket_);
    socket_ = -1;
  }
  void half_close() { shutdown(socket_, SHUT_WR); }

  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    return true;
  }

  static std::string get(const std::string& path, const std::string& headers = "") {
    return "GET " + path + " HTTP/1.1\r\nHost: x\r\n" + headers + "\r\n";
  }
  static std::string post(const std::string& path, const std::string& body, const std::string& headers = "") {
    return "POST " + path +
           " HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) +
           "\r\n" + headers + "\r\n" + body;
  }

  // The next response, whole; what there is of it after `most` milliseconds.
  Response receive(int most = 30'000, bool head_only = false) {
    Response r = receive_head(most);
    if (r.status == 0) return r;
    if (head_only || r.status == 204) return r.whole = true, r;
    if (const auto coding = r.headers.find("transfer-encoding"); coding != r.headers.end()) {
      std::string chunk;
      while (next_chunk(chunk, most)) r.body += chunk;
      r.whole = ended_;
    } else if (const auto length = r.headers.find("content-length"); length != r.headers.end()) {
      const size_t n = std::stoul(length->second);
      while (in_.size() < n && more(most)) {
      }
      r.body = in_.substr(0, n);
      r.whole = r.body.size() == n;
      in_.erase(0, r.body.size());
    } else {  // until the connection ends
      while (more(most)) {
      }
      r.body = std::move(in_);
      in_.clear();
      r.whole = closed_;
    }
    return r;
  }

  Response receive_head(int most = 30'000) {
    Response r;
    size_t end = std::string::npos;
    while ((end = in_.find("\r\n\r\n")) == std::string::npos)
      if (!more(most)) return r;
    r.status = std::atoi(in_.c_str() + in_.find(' '));
    for (size_t at = in_.find("\r\n") + 2; at < end;) {
      const size_t line = in_.find("\r\n", at), colon = in_.find(':', at);
      std::string name = in_.substr(at, colon - at);
      std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
      r.headers[name] = in_.substr(colon + 2, line - colon - 2);
      at = line + 2;
    }
    in_.erase(0, end + 4);
    ended_ = false;
    return r;
  }

  // False at the end of the body, and when nothing comes.
  bool next_chunk(std::string& chunk, int most = 30'000) {
    size_t line = 0;
    while ((line = in_.find("\r\n")) == std::string::npos)
      if (!more(most)) return false;
    const size_t n = std::stoul(in_.substr(0, line), nullptr, 16);
    while (in_.size() < line + 2 + n + 2)
      if (!more(most)) return false;
    chunk = in_.substr(line + 2, n);
    in_.erase(0, line + 2 + n + 2);
    ended_ = n == 0;
    return n > 0;
  }

  // Whether the other end closes within that time; what it still sends is thrown away.
  bool closes(int most = 30'000) {
    while (more(most)) in_.clear();
    return closed_;
  }

 private:
  bool more(int most) {
    pollfd p{.fd = socket_, .events = POLLIN, .revents = 0};
    if (socket_ < 0 || poll(&p, 1, most) <= 0) return false;
    char buffer[1 << 16];
    const ssize_t n = recv(socket_, buffer, sizeof(buffer), 0);
    if (n <= 0) return closed_ = true, false;
    in_.append(buffer, static_cast<size_t>(n));
    return true;
  }

  int socket_;
  bool connected_ = false, closed_ = false, ended_ = false;
  std::string in_;
};

// One request on a connection of its own.
inline Response ask(int port, const std::string& request) {
  Client client(port);
  client.send(request);
  return client.receive(30'000, request.starts_with("HEAD "));
}

}  // namespace kdelta::test
