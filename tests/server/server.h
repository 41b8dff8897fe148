// A server in this process: the small model behind real sockets.
#pragma once

#include <gtest/gtest.h>

#include <thread>

#include "frontends/server/api.h"
#include "tests/server/client.h"
#include "tests/support/deadline.h"

namespace kdelta::test {

inline const bool kEndsInTime = Deadline::install(std::chrono::seconds(55));

inline LoadOptions tiny_model(int64_t sequences = 4) {
  LoadOptions o{.model = "models/tiny-k3"};
  o.threads = 1;
  o.max_length = 256;
  o.max_sequences = sequences;
  o.prefix_snapshots = 8;
  return o;
}

class Server {
 public:
  explicit Server(server::ApiOptions api = {}, ServiceOptions options = {}, LoadOptions load = tiny_model(),
                  server::HttpOptions http = {})
      : api_(named(std::move(api))),
        http_(any_port(std::move(http)), api_.handler()),
        service(Engine::load(load), std::move(options)) {
    api_.serve(service, service.engine().default_generation());
  }
  // The sockets go first: their handlers ask the service.
  ~Server() { http_.reset(); }

  int port() const { return http_->port(); }
  server::HttpServer& http() { return *http_; }
  const Engine& engine() const { return service.engine(); }

  Response get(const std::string& path, const std::string& headers = "") const {
    return ask(port(), Client::get(path, headers));
  }
  Response post(const std::string& path, const std::string& body, const std::string& headers = "") const {
    return ask(port(), Client::post(path, body, headers));
  }

 private:
  static server::ApiOptions named(server::ApiOptions o) {
    if (o.names.empty()) o.names = {"tiny"};
    return o;
  }
  static server::HttpOptions any_port(server::HttpOptions o) {
    o.port = 0;
    return o;
  }

  server::Api api_;
  struct Http {
    Http(const server::HttpOptions& o, server::HttpHandler h)
        : server(std::make_unique<server::HttpServer>(o, std::move(h))) {}
    server::HttpServer* operator->() const { return server.get(); }
    server::HttpServer& operator*() const { return *server; }
    void reset() { server.reset(); }
    std::unique_ptr<server::HttpServer> server;
  } http_;

 public:
  Service service;
};

inline Json json(const std::string& text) {
  return parse_json(text, {.name = "reply"});
}
// The member at "choices.0.text".
inline const Json& at(const Json& root, std::string_view path) {
  const Json* value = &root;
  while (!path.empty()) {
    const size_t dot = std::min(path.find('.'), path.size());
    const std::string name(path.substr(0, dot));
    path.remove_prefix(std::min(dot + 1, path.size()));
    if (value->kind() == Json::Kind::array)
      value = &value->array().at(std::stoul(name));
    else if (const Json* member = value->find(name))
      value = member;
    else
      throw std::out_of_range(name + " of " + json_text(*value));
  }
  return *value;
}

// The data of a stream's events, "[DONE]" included.
inline std::vector<std::string> events(const std::string& body) {
  std::vector<std::string> out;
  for (size_t begin = 0; begin < body.size();) {
    const size_t end = std::min(body.find("\n\n", begin), body.size());
    const std::string one = body.substr(begin, end - begin);
    if (one.starts_with("data: ")) out.push_back(one.substr(6));
    begin = end + 2;
  }
  return out;
}

// The data of a stream whose events have names; checks that each name is its data's type.
inline std::vector<Json> named_events(const Response& r) {
  EXPECT_EQ(r.status, 200) << r.body;
  EXPECT_TRUE(r.whole);
  std::vector<Json> out;
  for (size_t begin = 0; begin < r.body.size();) {
    const size_t end = r.body.find("\n\n", begin), data = r.body.find("\ndata: ", begin);
    EXPECT_EQ(r.body.substr(begin, 7), "event: ");
    EXPECT_LT(data, end) << r.body.substr(begin);
    if (data >= end) break;
    out.push_back(json(r.body.substr(data + 7, end - data - 7)));
    EXPECT_EQ(at(out.back(), "type").string(), r.body.substr(begin + 7, data - begin - 7));
    begin = end + 2;
  }
  return out;
}

}  // namespace kdelta::test
