#include "frontends/server/api.h"

#include <algorithm>
#include <chrono>
#include <random>

#include "frontends/server/metrics.h"
#include "kdelta/api/request_fields.h"

namespace kdelta::server {
namespace {

// What is wrong with a request beside its fields.
struct Refused {
  Reply reply;
};

struct Route {
  const char* method;
  const char* path;
};

// In the order of the documentation.
constexpr Route kRoutes[] = {
    {"POST", "/v1/chat/completions"},
    {"POST", "/v1/completions"},
    {"GET", "/v1/models"},
    {"POST", "/tokenize"},
    {"POST", "/detokenize"},
    {"POST", "/apply-template"},
    {"GET", "/health"},
    {"GET", "/ready"},
    {"GET", "/version"},
    {"GET", "/metrics"},
};

constexpr std::string_view kRequests = "/v1/requests/", kCancel = "/cancel";

std::string field_of(const std::string& message) {
  std::string rest = message;
  for (const std::string_view source : {"request: ", "sampling: "})
    if (rest.starts_with(source)) rest.erase(0, source.size());
  const size_t end = rest.find(':');
  const std::string field = end == std::string::npos ? "" : rest.substr(0, end);
  const bool name =
      !field.empty() && field.find_first_not_of("abcdefghijklmnopqrstuvwxyz_.[]0123456789") == std::string::npos;
  return name ? field : "";
}

Reply refusal_of(const Error& e) {
  switch (e.code()) {
    case ErrorCode::invalid_argument:
    case ErrorCode::unsupported:
      return error_reply(400, e.what(), "", field_of(e.what()));
    case ErrorCode::bad_file:
    case ErrorCode::out_of_memory:
    case ErrorCode::failed:
    case ErrorCode::internal:
      break;
  }
  return error_reply(500, e.what());
}

}  // namespace

bool is_key(const std::vector<std::string>& keys, std::string_view given) {
  bool any = false;
  for (const std::string& key : keys) {
    unsigned differs = key.size() == given.size() ? 0 : 1;
    for (size_t i = 0; i < given.size(); ++i)
      differs |= static_cast<unsigned char>(given[i]) ^ static_cast<unsigned char>(key[i % key.size()]);
    any |= differs == 0;
  }
  return any;
}

Api::Api(ApiOptions options)
    : options_(std::move(options)),
      created_(std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
                   .count()) {
  for (const std::string& key : options_.keys)
    if (key.empty()) throw std::invalid_argument("an API key is empty");
}

void Api::serve(Service& service, const GenerateOptions& defaults) {
  defaults_ = defaults;
  service_ = &service;
}

HttpHandler Api::handler() {
  return {.check = [this](const HttpRequest& r) { return check(r); },
          .handle = [this](const HttpRequest& r, Wake wake) { return handle(r, std::move(wake)); },
          .headers = [this](const HttpRequest& r) { return headers(r); },
          .done = [this](const HttpRequest& r, int status, double seconds) { log(r, status, seconds); }};
}

// What anybody may ask: whether it lives, and the page that asks for a key itself.
static bool is_open(const HttpRequest& r) {
  return r.method == "OPTIONS" || r.path == "/health" || r.path == "/ready" || r.path == "/";
}

std::optional<Reply> Api::check(const HttpRequest& r) const {
  if (options_.keys.empty() || is_open(r)) return std::nullopt;
  std::string_view given = r.header("authorization");
  constexpr std::string_view bearer = "Bearer ";
  if (given.starts_with(bearer))
    given.remove_prefix(bearer.size());
  else
    given = r.header("x-api-key");
  if (!given.empty() && is_key(options_.keys, given)) return std::nullopt;
  Reply refused = error_reply(401, "a valid API key is needed: Authorization: Bearer KEY, or x-api-key: KEY", "", "",
                              "invalid_api_key");
  refused.headers.emplace_back("WWW-Authenticate", "Bearer");
  return refused;
}

Headers Api::headers(const HttpRequest& r) const {
  Headers out{{"x-request-id", r.id}};
  const std::string origin(r.header("origin"));
  if (origin.empty() || options_.origins.empty()) return out;
  const bool any = std::find(options_.origins.begin(), options_.origins.end(), "*") != options_.origins.end();
  if (!any) out.emplace_back("Vary", "Origin");
  if (!any && std::find(options_.origins.begin(), options_.origins.end(), origin) == options_.origins.end()) return out;
  out.emplace_back("Access-Control-Allow-Origin", any ? "*" : origin);
  out.emplace_back("Access-Control-Expose-Headers", "x-request-id, Retry-After");
  if (r.method != "OPTIONS") return out;
  out.emplace_back("Access-Control-Allow-Methods", "GET, POST, OPTIONS");
  const std::string wanted(r.header("access-control-request-headers"));
  out.emplace_back("Access-Control-Allow-Headers", wanted.empty() ? "authorization, content-type, x-api-key" : wanted);
  out.emplace_back("Access-Control-Max-Age", "86400");
  return out;
}

void Api::log(const HttpRequest& r, int status, double seconds) const {
  if (!options_.log) return;
  options_.log(json_text(object({{"request_id", r.id},
                                 {"peer", r.peer},
                                 {"method", printable(r.method)},
                                 {"path", printable(r.path)},
                                 {"status", status},
                                 {"seconds", seconds},
                                 {"request_bytes", std::ssize(r.body)}})));
}

Answered Api::handle(const HttpRequest& r, Wake wake) {
  try {
    return route(r, wake);
  } catch (const Refused& refused) {
    return {.reply = refused.reply};
  } catch (const Error& e) {
    return {.reply = refusal_of(e)};
  } catch (const std::bad_alloc&) {
    return {.reply = error_reply(500, "out of memory")};
  } catch (const std::exception& e) {
    return {.reply = error_reply(500, e.what())};
  }
}

Answered Api::route(const HttpRequest& r, const Wake& wake) {
  if (r.method == "OPTIONS") return {.reply = {.status = 204, .body = "", .type = ""}};
  if (r.path.starts_with(kRequests) && r.path.ends_with(kCancel) && r.method == "POST") return {.reply = cancel(r)};
  const std::string method = r.method == "HEAD" ? "GET" : r.method;
  std::string allowed;
  for (const Route& route : kRoutes) {
    if (r.path != route.path) continue;
    allowed = route.method;
    if (method != route.method) break;
    if (r.path == "/health") return {.reply = health()};
    if (r.path == "/ready") return {.reply = ready()};
    if (r.path == "/version") return {.reply = {.body = json_text(object({{"version", version()}}))}};
    if (r.path == "/v1/models") return {.reply = models()};
    if (r.path == "/metrics")
      return {.reply = {.body = metrics_text(service().stats(), options_.metrics_prefix, options_.names.front()),
                        .type = "text/plain; version=0.0.4; charset=utf-8"}};
    if (r.path == "/tokenize") return {.reply = tokenize(r)};
    if (r.path == "/detokenize") return {.reply = detokenize(r)};
    if (r.path == "/apply-template") return {.reply = apply_template(r)};
    if (r.path == "/v1/completions") return complete(r, wake);
    return chat(r, wake);
  }
  if (allowed.empty()) return {.reply = error_reply(404, "no such path: " + printable(r.path))};
  Reply wrong = error_reply(405, r.path + " takes " + allowed);
  wrong.headers.emplace_back("Allow", allowed == "GET" ? "GET, HEAD, OPTIONS" : allowed + ", OPTIONS");
  return {.reply = std::move(wrong)};
}

Service& Api::service() const {
  Service* s = service_;
  if (s == nullptr) throw Refused{error_reply(503, "the model is being loaded")};
  return *s;
}

GenerateOptions Api::defaults() const {
  GenerateOptions o = defaults_;
  std::random_device device;
  o.seed = options_.seed ? *options_.seed : (uint64_t{device()} << 32) | device();
  return o;
}

void Api::check_model(const std::string& name) const {
  if (name.empty() || std::find(options_.names.begin(), options_.names.end(), name) != options_.names.end()) return;
  throw Refused{error_reply(404, "model: '" + printable(name) + "', this server has " + options_.names.front(), "",
                            "model", "model_not_found")};
}

Reply Api::health() const {
  const Service* s = service_;
  const std::string problem = s == nullptr ? "" : s->problem();
  if (!problem.empty()) return error_reply(503, "the engine has stopped: " + problem, "server_error");
  return {.body = json_text(object({{"status", s == nullptr ? "loading" : s->draining() ? "draining" : "ok"}}))};
}

Reply Api::ready() const {
  const Service* s = service_;
  if (s == nullptr) return error_reply(503, "the model is being loaded");
  if (s->draining()) return error_reply(503, "the server is shutting down");
  return health();
}

Reply Api::models() const {
  Json data = Json::Array{};
  const Service* s = service_;
  for (const std::string& name : options_.names) {
    Json model = object({{"id", name}, {"object", "model"}, {"created", created_}, {"owned_by", "kdelta"}});
    if (s != nullptr) model.set("max_model_len", s->engine().max_length());
    data.array().push_back(std::move(model));
  }
  return {.body = json_text(object({{"object", "list"}, {"data", std::move(data)}}))};
}

Reply Api::cancel(const HttpRequest& r) {
  const std::string id = r.path.substr(kRequests.size(), r.path.size() - kRequests.size() - kCancel.size());
  if (!running_.cancel(id)) return error_reply(404, "no request " + printable(id) + " is under way");
  return {.body = json_text(object({{"id", id}, {"cancelled", true}}))};
}

namespace {

Json ids_json(const std::vector<int32_t>& ids) {
  Json out = Json::Array{};
  for (const int32_t id : ids) out.array().push_back(id);
  return out;
}

// The prompt of a body that has messages or text.
std::vector<int32_t> prompt_ids(const Engine& engine, const JsonReader& body) {
  if (body.kind("messages")) {
    const ConversationFields c = read_conversation(body);
    return engine.chat_prompt(c.messages, c.settings);
  }
  return engine.tokenize(body.get<std::string>("prompt"), body.find<bool>("parse_special").value_or(false));
}

}  // namespace

Reply Api::tokenize(const HttpRequest& r) const {
  const Engine& engine = service().engine();
  const JsonReader body = read_body(r.body);
  check_model(body.find<std::string>("model").value_or(""));
  const bool pieces = body.find<bool>("with_pieces").value_or(false);
  const std::vector<int32_t> ids = prompt_ids(engine, body);
  read_nulls(body);
  refuse_unread(body);
  Json out = object({{"count", std::ssize(ids)}, {"max_model_len", engine.max_length()}, {"tokens", ids_json(ids)}});
  if (pieces) {
    Json texts = Json::Array{};
    for (const int32_t id : ids) texts.array().push_back(engine.detokenize({id}, true));
    out.set("pieces", std::move(texts));
  }
  return {.body = json_text(out)};
}

Reply Api::detokenize(const HttpRequest& r) const {
  const Engine& engine = service().engine();
  const JsonReader body = read_body(r.body);
  check_model(body.find<std::string>("model").value_or(""));
  const std::vector<int32_t> ids = token_ids(body, "tokens", body.get<std::vector<int64_t>>("tokens"));
  const bool specials = body.find<bool>("special").value_or(true);
  read_nulls(body);
  refuse_unread(body);
  return {.body = json_text(object({{"prompt", engine.detokenize(ids, specials)}}))};
}

Reply Api::apply_template(const HttpRequest& r) const {
  const Engine& engine = service().engine();
  const JsonReader body = read_body(r.body);
  check_model(body.find<std::string>("model").value_or(""));
  const ConversationFields c = read_conversation(body);
  read_nulls(body);
  refuse_unread(body);
  const std::vector<int32_t> ids = engine.chat_prompt(c.messages, c.settings);
  return {.body = json_text(object({{"prompt", engine.detokenize(ids, true)}, {"tokens", ids_json(ids)}}))};
}

Answered Api::complete(const HttpRequest& r, const Wake& wake) {
  Service& s = service();
  AnswerRequest request = read_completion(s.engine(), read_body(r.body), defaults(), options_.limits);
  check_model(request.model);
  if (request.model.empty()) request.model = options_.names.front();
  const std::string id = new_id("cmpl-");
  return answer(s, running_, request, r, id, completion_format(s.engine(), request, id), {.timeout = options_.timeout},
                wake);
}

Answered Api::chat(const HttpRequest& r, const Wake& wake) {
  Service& s = service();
  AnswerRequest request = read_chat(s.engine(), read_body(r.body), defaults(), options_.limits);
  check_model(request.model);
  if (request.model.empty()) request.model = options_.names.front();
  const std::string id = new_id("chatcmpl-");
  return answer(s, running_, request, r, id, chat_format(s.engine(), request, id), {.timeout = options_.timeout}, wake);
}

}  // namespace kdelta::server
