// The endpoints. Everything that is said over HTTP is decided here and in the files it names; how bytes travel is
// http.h's.
#pragma once

#include <atomic>
#include <span>

#include "frontends/server/answers.h"
#include "frontends/server/http.h"
#include "frontends/server/openapi.h"
#include "frontends/server/retries.h"

namespace kdelta::server {

struct ApiOptions {
  std::vector<std::string> names;    // of the model; the first is its own
  std::vector<std::string> keys;     // any of them opens; empty: everything is open
  std::vector<std::string> origins;  // that browsers may come from; "*": any
  std::optional<uint64_t> seed;      // of requests that name none; else random ones
  RequestLimits limits;
  RetryOptions retries;
  std::chrono::milliseconds timeout{0};  // of one request; 0: none
  std::string metrics_prefix = "kdelta_";
  std::function<void(const std::string&)> log;  // a line of JSON for every request
};

class Api {
 public:
  explicit Api(ApiOptions options);
  // Until then it says that the model is being loaded. The service outlives every request. defaults: sampling, where a
  // body says nothing.
  void serve(Service& service, const GenerateOptions& defaults);
  HttpHandler handler();
  // The server is about to end: what nobody reads does so now.
  void drain() { retries_.drain(); }

 private:
  // A request on its way to its endpoint: what "{id}" of the path was, and the body of one that takes a body.
  struct Call {
    const HttpRequest& request;
    std::string id;
    JsonReader body;
    const Wake& wake;
  };
  struct Route {
    Endpoint endpoint;
    Answered (*answer)(Api&, const Call&);
  };
  static std::span<const Route> routes();
  template <auto F>
  static Answered call(Api& api, const Call& call);
  static bool is_open(const HttpRequest& request);
  // Whether a page of that origin may read the replies, and whether a request may run for where it comes from.
  bool allows(std::string_view origin) const;
  bool may_ask(const HttpRequest& request) const;

  std::optional<Reply> check(const HttpRequest& request) const;
  Answered handle(const HttpRequest& request, Wake wake);
  Answered route(const HttpRequest& request, const Wake& wake);
  Headers headers(const HttpRequest& request) const;
  void log(const HttpRequest& request, int status, double seconds) const;

  Service& service() const;
  GenerateOptions defaults() const;
  void check_model(const std::string& name) const;
  Reply health() const;
  Reply ready() const;
  Reply models() const;
  Reply version_reply() const;
  Reply metrics() const;
  Reply description() const;
  Reply tokenize(const JsonReader& body) const;
  Reply detokenize(const JsonReader& body) const;
  Reply apply_template(const JsonReader& body) const;
  Answered model(const Call& call);
  Json model_json(const std::string& name) const;
  Answered cancel(const Call& call);
  Answered complete(const Call& call);
  Answered chat(const Call& call);
  Answered message(const Call& call);
  Answered respond(const Call& call);
  Reply count_tokens(const JsonReader& body) const;
  // What `read` makes of the body, run or joined to an equal one.
  template <class Read, class MakeFormat>
  Answered run(const Call& call, const char* id_prefix, Read read, MakeFormat make_format);

  const ApiOptions options_;
  const int64_t created_;
  GenerateOptions defaults_;  // fixed before service_ is
  std::atomic<Service*> service_{nullptr};
  RunningRequests running_;
  Retries retries_;  // ends before what its answers know
};

// Whether `given` is one of `keys`, in a time that does not tell how much of a key it got right.
bool is_key(const std::vector<std::string>& keys, std::string_view given);

}  // namespace kdelta::server
