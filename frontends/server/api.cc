#include "frontends/server/api.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <random>
#include <type_traits>

#include "frontends/server/field_names.h"
#include "frontends/server/metrics.h"
#include "frontends/server/openapi.h"
#include "kdelta/api/request_fields.h"

namespace kdelta::server {
namespace {

// What is wrong with a request beside its fields.
struct Refused {
  Reply reply;
};

bool is_anthropic(const HttpRequest& r) {
  return r.path == "/v1/messages" || r.path.starts_with("/v1/messages/");
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

// What `ask` gives, or the reply to what it throws.
template <class Ask>
Answered replied(Ask ask) {
  try {
    return ask();
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

bool is_space(char c) {
  return c == ' ' || c == '\t';
}

// The token of "Bearer TOKEN", whose first word is of any case; "" of another scheme.
std::string_view bearer_of(std::string_view authorization) {
  constexpr std::string_view scheme = "bearer";
  if (authorization.size() <= scheme.size() || !is_space(authorization[scheme.size()])) return {};
  for (size_t i = 0; i < scheme.size(); ++i)
    if ((authorization[i] | 0x20) != scheme[i]) return {};
  authorization.remove_prefix(scheme.size());
  while (!authorization.empty() && is_space(authorization.front())) authorization.remove_prefix(1);
  return authorization;
}

// The API key that a request brings, or "".
std::string_view key_of(const HttpRequest& r) {
  const std::string_view bearer = bearer_of(r.header("authorization"));
  return bearer.empty() ? r.header("x-api-key") : bearer;
}

// "%2F" is "/". What is no such triple stays as it is.
std::string percent_decoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned value = 0;
    const char* digits = text.data() + i + 1;
    const bool triple =
        text[i] == '%' && i + 2 < text.size() && std::from_chars(digits, digits + 2, value, 16).ptr == digits + 2;
    out += triple ? static_cast<char>(value) : text[i];
    if (triple) i += 2;
  }
  return out;
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

// An endpoint's part of Api: with the request, with its body, with what wakes the connection, or without any of these.
template <auto F>
Answered Api::call(Api& api, const Call& c) {
  if constexpr (std::is_invocable_v<decltype(F), Api&>)
    return {.reply = (api.*F)()};
  else if constexpr (std::is_invocable_v<decltype(F), Api&, const HttpRequest&>)
    return {.reply = (api.*F)(c.request)};
  else if constexpr (std::is_invocable_v<decltype(F), Api&, const JsonReader&>)
    return {.reply = (api.*F)(c.body)};
  else
    return (api.*F)(c);
}

// In the order of the documentation. The description is openapi.h's: a row here is an endpoint there.
std::span<const Api::Route> Api::routes() {
  constexpr const char* kText = "text/plain; version=0.0.4; charset=utf-8";
  static constexpr Route all[] = {
      {{.method = "POST",
        .path = "/v1/chat/completions",
        .summary = "The next message of a conversation",
        .body = "ChatRequest",
        .reply = "Chat",
        .streams = true},
       call<&Api::chat>},
      {{.method = "POST",
        .path = "/v1/completions",
        .summary = "What comes behind a text",
        .body = "CompletionRequest",
        .reply = "Completion",
        .streams = true},
       call<&Api::complete>},
      {{.method = "POST",
        .path = "/v1/responses",
        .summary = "The next items of a conversation, of which nothing is kept",
        .body = "ResponseRequest",
        .reply = "Response",
        .streams = true},
       call<&Api::respond>},
      {{.method = "POST",
        .path = "/v1/messages",
        .summary = "The next message of a conversation, as the Anthropic API has it",
        .body = "MessageRequest",
        .reply = "MessageReply",
        .streams = true,
        .error = "MessageError"},
       call<&Api::message>},
      {{.method = "POST",
        .path = "/v1/messages/count_tokens",
        .summary = "The tokens of such a conversation",
        .body = "CountRequest",
        .reply = "Count",
        .error = "MessageError"},
       call<&Api::count_tokens>},
      {{"GET", "/v1/models", "The names of the model", "", "Models"}, call<&Api::models>},
      {{"GET", "/v1/models/{id}", "One of them", "", "Model"}, call<&Api::model>},
      {{"POST", "/v1/requests/{id}/cancel", "Ends a request that is under way", "", "Cancelled"}, call<&Api::cancel>},
      {{"POST", "/tokenize", "Text or messages to token ids", "TokenizeRequest", "Tokens"}, call<&Api::tokenize>},
      {{"POST", "/detokenize", "Token ids to text", "DetokenizeRequest", "Text"}, call<&Api::detokenize>},
      {{"POST", "/apply-template", "Messages to the text that the model sees", "TemplateRequest", "Text"},
       call<&Api::apply_template>},
      {{.method = "GET",
        .path = "/health",
        .summary = "Whether the engine works",
        .body = "",
        .reply = "Health",
        .open = true},
       call<&Api::health>},
      {{.method = "GET",
        .path = "/ready",
        .summary = "Whether requests are answered now",
        .body = "",
        .reply = "Health",
        .open = true},
       call<&Api::ready>},
      {{"GET", "/version", "The program", "", "Version"}, call<&Api::version_reply>},
      {{"GET", "/metrics", "Counts and times for Prometheus", "", "", kText}, call<&Api::metrics>},
      {{"GET", "/openapi.json", "This description", "", "Document"}, call<&Api::description>},
  };
  return all;
}

Api::Api(ApiOptions options)
    : options_(std::move(options)),
      created_(std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
                   .count()),
      retries_(options_.retries) {
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
          .form =
              [](const HttpRequest& r, Reply& error) {
                if (is_anthropic(r)) error.body = anthropic_error(error);
              },
          .done = [this](const HttpRequest& r, int status, double seconds) { log(r, status, seconds); }};
}

// What anybody may ask: whether it lives, and the page that asks for a key itself.
bool Api::is_open(const HttpRequest& r) {
  if (r.method == "OPTIONS" || r.path == "/") return true;
  for (const Route& route : routes())
    if (route.endpoint.open && matches(route.endpoint.path, r.path)) return true;
  return false;
}

std::optional<Reply> Api::check(const HttpRequest& r) const {
  if (is_open(r)) return std::nullopt;
  if (!may_ask(r))
    return error_reply(403, "Origin: '" + printable(r.header("origin")) + "' is none that this server allows");
  if (options_.keys.empty()) return std::nullopt;
  const std::string_view given = key_of(r);
  if (!given.empty() && is_key(options_.keys, given)) return std::nullopt;
  Reply refused = error_reply(401, "a valid API key is needed: Authorization: Bearer KEY, or x-api-key: KEY", "", "",
                              "invalid_api_key");
  refused.headers.emplace_back("WWW-Authenticate", "Bearer");
  return refused;
}

bool Api::allows(std::string_view origin) const {
  return std::ranges::any_of(options_.origins, [&](const std::string& o) { return o == "*" || o == origin; });
}

// A browser sends simple requests of any page without asking first, and tells the page's origin. A page of this server
// itself has the origin that the request was sent to.
bool Api::may_ask(const HttpRequest& r) const {
  const std::string origin(r.header("origin")), host(r.header("host"));
  return origin.empty() || allows(origin) ||
         (!host.empty() && (origin == "http://" + host || origin == "https://" + host));
}

Headers Api::headers(const HttpRequest& r) const {
  Headers out{{"x-request-id", r.id}};
  if (is_anthropic(r)) out.emplace_back("request-id", r.id);
  const std::string origin(r.header("origin"));
  if (origin.empty() || options_.origins.empty()) return out;
  const bool any = std::find(options_.origins.begin(), options_.origins.end(), "*") != options_.origins.end();
  if (!any) out.emplace_back("Vary", "Origin");
  if (!allows(origin)) return out;
  out.emplace_back("Access-Control-Allow-Origin", any ? "*" : origin);
  out.emplace_back("Access-Control-Expose-Headers", "x-request-id, Retry-After, Idempotent-Replayed");
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
  return replied([&] { return route(r, wake); });
}

Answered Api::route(const HttpRequest& r, const Wake& wake) {
  if (r.method == "OPTIONS") return {.reply = {.status = 204, .body = "", .type = ""}};
  const std::string method = r.method == "HEAD" ? "GET" : r.method;
  std::string allowed;
  for (const Route& route : routes()) {
    std::string id;
    if (!matches(route.endpoint.path, r.path, &id)) continue;
    allowed +=
        route.endpoint.method + std::string(route.endpoint.method == std::string_view("GET") ? ", HEAD, " : ", ");
    if (method != route.endpoint.method) continue;
    Call c{.request = r, .id = id, .body = {}, .wake = wake};
    if (*route.endpoint.body != '\0') c.body = read_body(r.body, route.endpoint.body);
    return route.answer(*this, c);
  }
  if (allowed.empty()) return {.reply = error_reply(404, "no such path: " + printable(r.path))};
  Reply wrong = error_reply(405, printable(r.path) + ": not by " + printable(r.method));
  wrong.headers.emplace_back("Allow", allowed + "OPTIONS");
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
  const std::string hang = s == nullptr ? "" : s->hang();
  if (!hang.empty()) return error_reply(503, "the engine hangs: " + hang, "server_error");
  return {.body = json_text(object({{"status", s == nullptr ? "loading" : s->draining() ? "draining" : "ok"}}))};
}

Reply Api::ready() const {
  const Service* s = service_;
  if (s == nullptr) return error_reply(503, "the model is being loaded");
  if (s->draining()) return error_reply(503, "the server is shutting down");
  return health();
}

Json Api::model_json(const std::string& name) const {
  Json out = object({{"id", name}, {"object", "model"}, {"created", created_}, {"owned_by", "kdelta"}});
  const Service* s = service_;
  if (s != nullptr) out.set("max_model_len", s->engine().max_length());
  return out;
}

Answered Api::model(const Call& c) {
  const std::string name = percent_decoded(c.id);
  check_model(name);
  return {.reply = {.body = json_text(model_json(name))}};
}

Reply Api::models() const {
  Json data = Json::Array{};
  for (const std::string& name : options_.names) data.array().push_back(model_json(name));
  return {.body = json_text(object({{"object", "list"}, {"data", std::move(data)}}))};
}

Answered Api::cancel(const Call& c) {
  if (!running_.cancel(c.id)) return {.reply = error_reply(404, "no request " + printable(c.id) + " is under way")};
  return {.reply = {.body = json_text(object({{"id", c.id}, {"cancelled", true}}))}};
}

Reply Api::version_reply() const {
  return {.body = json_text(object({{"version", version()}}))};
}

Reply Api::metrics() const {
  return {.body = metrics_text(service().stats(), options_.metrics_prefix, options_.names.front()),
          .type = "text/plain; version=0.0.4; charset=utf-8"};
}

Reply Api::description() const {
  std::vector<Endpoint> endpoints;
  for (const Route& route : routes()) endpoints.push_back(route.endpoint);
  return {.body = json_text(openapi(endpoints, version()))};
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
    return read_chat_prompt(engine, body);
  }
  return engine.tokenize(body.get<std::string>("prompt"), body.find<bool>("parse_special").value_or(false));
}

}  // namespace

Reply Api::tokenize(const JsonReader& body) const {
  const Engine& engine = service().engine();
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

Reply Api::detokenize(const JsonReader& body) const {
  const Engine& engine = service().engine();
  check_model(body.find<std::string>("model").value_or(""));
  const std::vector<int32_t> ids = token_ids(body, "tokens", body.get<std::vector<int64_t>>("tokens"));
  for (const int32_t id : ids)
    if (id >= engine.vocab_size()) body.refuse("tokens", "ids below " + std::to_string(engine.vocab_size()));
  const bool specials = body.find<bool>("special").value_or(true);
  read_nulls(body);
  refuse_unread(body);
  return {.body = json_text(object({{"prompt", engine.detokenize(ids, specials)}}))};
}

Reply Api::apply_template(const JsonReader& body) const {
  const Engine& engine = service().engine();
  check_model(body.find<std::string>("model").value_or(""));
  const std::vector<int32_t> ids = read_chat_prompt(engine, body);
  read_nulls(body);
  refuse_unread(body);
  return {.body = json_text(object({{"prompt", engine.detokenize(ids, true)}, {"tokens", ids_json(ids)}}))};
}

template <class Read, class MakeFormat>
Answered Api::run(const Call& c, const char* id_prefix, Read read, MakeFormat make_format) {
  FieldNames names;
  return named(names, [&] {
    AnswerRequest request = read(names);
    check_model(request.model);
    if (request.model.empty()) request.model = options_.names.front();
    const std::string id = new_id(id_prefix);
    std::unique_ptr<AnswerFormat> format = make_format(request, id);
    const auto begin = [&](Wake wake) {
      return named(names, [&] {
        return answer(service(), running_, request, c.request, id, std::move(format), {.timeout = options_.timeout},
                      std::move(wake));
      });
    };
    return retries_.answer(c.request, std::string(key_of(c.request)), c.wake,
                           [&](Wake wake) { return replied([&] { return begin(std::move(wake)); }); });
  });
}

Answered Api::complete(const Call& c) {
  const Engine& engine = service().engine();
  return run(
      c, "cmpl-",
      [&](FieldNames& names) { return read_completion(engine, c.body, defaults(), options_.limits, names); },
      [&](const AnswerRequest& r, const std::string& id) { return completion_format(engine, r, id); });
}

Answered Api::chat(const Call& c) {
  const Engine& engine = service().engine();
  return run(
      c, "chatcmpl-", [&](FieldNames& names) { return read_chat(engine, c.body, defaults(), options_.limits, names); },
      [&](const AnswerRequest& r, const std::string& id) { return chat_format(engine, r, id); });
}

Answered Api::respond(const Call& c) {
  const Engine& engine = service().engine();
  return run(
      c, "resp_", [&](FieldNames& names) { return read_response(engine, c.body, defaults(), names); },
      [&](const AnswerRequest& r, const std::string& id) { return response_format(engine, r, id); });
}

Answered Api::message(const Call& c) {
  return run(
      c, "msg_", [&](FieldNames& names) { return read_message(service().engine(), c.body, defaults(), names); },
      message_format);
}

Reply Api::count_tokens(const JsonReader& body) const {
  FieldNames names;
  return named(names, [&] {
    const AnswerRequest request = read_message(service().engine(), body, defaults(), names, true);
    check_model(request.model);
    return Reply{.body = json_text(object({{"input_tokens", std::ssize(request.prompts.front())}}))};
  });
}

}  // namespace kdelta::server
