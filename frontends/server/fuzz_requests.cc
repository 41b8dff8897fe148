// Any request to any endpoint, below the sockets and with an engine behind it: no reply says that the server is at
// fault, every word of it is JSON (an event of a stream as well), and an answer that is not given up comes to its end.
#include <condition_variable>
#include <map>

#include "frontends/server/api.h"
#include "kdelta/core/check.h"
#include "kdelta/io/fuzz_input.h"

namespace {

using namespace kdelta;
using namespace kdelta::server;
using fuzz::Input;

// Outlives its exchange: who rings may be late.
struct Bell {
  std::mutex mutex;
  std::condition_variable rings;
  bool rung = false;

  void ring() {
    const std::lock_guard lock(mutex);
    rung = true;
    rings.notify_one();
  }
  void wait() {
    std::unique_lock lock(mutex);
    KDELTA_CHECK(rings.wait_for(lock, std::chrono::seconds(60), [&] { return rung; }), "an answer without an end");
    rung = false;
  }
};

// Never destroyed: nothing of it runs when the program ends.
struct Fixture {
  Service service;
  Api open, closed;

  Fixture() : service(Engine::load(options())), open({.names = {"tiny"}, .seed = 1}), closed(restricted()) {
    for (Api* api : {&open, &closed}) api->serve(service, service.engine().default_generation());
  }
  static Fixture& get() {
    static auto* const f = new Fixture;
    return *f;
  }
  static LoadOptions options() {
    LoadOptions o{.model = "models/tiny-k3"};
    o.threads = 1;
    o.max_length = 160;
    o.max_sequences = 4;
    o.prefix_snapshots = 8;
    return o;
  }
  static ApiOptions restricted() {
    return {.names = {"tiny", "other"},
            .keys = {"abc", "abd"},
            .origins = {"http://a"},
            .timeout = std::chrono::milliseconds(50)};
  }
};

constexpr const char* kWords[] = {"",
                                  "user",
                                  "assistant",
                                  "system",
                                  "tool",
                                  "tiny",
                                  "light",
                                  "f",
                                  "g.h",
                                  "a\n",
                                  "\"",
                                  "required",
                                  "auto",
                                  "none",
                                  "low",
                                  "{\"a\":1}",
                                  "{",
                                  "[]",
                                  "call_1",
                                  "text",
                                  "é\xF0\x9F\x98\x80",
                                  "<|im_end|>",
                                  "[a-c]{2}",
                                  "root ::= \"yes\"",
                                  "<|open|>tools<|sep|>",
                                  "function",
                                  "allowed_tools",
                                  "json_schema"};
constexpr const char* kSchemas[] = {
    R"({})",
    R"({"type":"object"})",
    R"({"type":"integer","minimum":3,"maximum":90})",
    R"({"type":"object","properties":{"a":{"type":"string","maxLength":3}},"required":["a"],"additionalProperties":false})",
    R"({"enum":["x","y",3]})",
    R"({"$ref":"#/$defs/a","$defs":{"a":{"type":"array","items":{"$ref":"#/$defs/a"}}}})",
    R"({"anyOf":[{"type":"null"},{"const":{"b":[1,2]}}]})",
    R"({"type":"string","pattern":"^[a-z]+$","minLength":2})",
    R"({"type":"array","items":{"type":"boolean"},"minItems":1,"uniqueItems":true})",
    R"({"not":{}})",
    R"({"type":"string","format":"date-time"})",
    R"({"unknown":1})"};
constexpr double kNumbers[] = {0, 1, -1, 0.5, 2, 1e308, -1e308, 5e-324, 3.4e38, 3.5e38};
constexpr int64_t kIntegers[] = {
    0, 1, 2, -1, 5, 16, 17, 20, 21, 300, 163839, INT32_MAX, int64_t{INT32_MAX} + 1, INT64_MAX, INT64_MIN};

std::string any_text(Input& in) {
  switch (in.pick(4)) {
    case 0: {
      const std::string_view raw = in.bytes(24);
      return is_utf8(raw) ? std::string(raw) : "no";
    }
    case 1:
      return std::string(in.pick(256), 'a');
    default:
      return in.of(kWords);
  }
}

Json any_value(Input& in, int depth) {
  switch (in.pick(depth > 3 ? 5 : 8)) {
    case 0:
      return {};
    case 1:
      return in.pick(2) == 1;
    case 2:
      return in.of(kIntegers);
    case 3:
      return in.of(kNumbers);
    case 4:
      return any_text(in);
    case 5:
      return parse_json(in.of(kSchemas), {.name = "schema"});
    case 6: {
      Json out = Json::Array{};
      for (size_t n = in.pick(4); n > 0; --n) out.array().push_back(any_value(in, depth + 1));
      return out;
    }
    default: {
      Json out = Json::Object{};
      for (size_t n = in.pick(4); n > 0; --n) out.object().push_back({any_text(in), any_value(in, depth + 1)});
      return out;
    }
  }
}

// Of a schema of the server's own description, mostly; that is how a request gets past the first check.
Json value_of(Input& in, const Json& schema, int depth) {
  const size_t way = in.pick(16);
  if (way == 0 || depth > 12) return any_value(in, depth);
  if (const Json* to = schema.find("$ref")) {
    constexpr size_t prefix = std::string_view("#/components/schemas/").size();
    return value_of(in, *request_schemas().find(to->string().substr(prefix)), depth + 1);
  }
  if (const Json* forms = schema.find("anyOf"))
    return value_of(in, forms->array()[in.pick(forms->array().size())], depth + 1);
  if (const Json* example = schema.find("example"); example != nullptr && way < 4) return *example;
  if (const Json* values = schema.find("enum")) return values->array()[in.pick(values->array().size())];
  const Json* type = schema.find("type");
  if (type == nullptr) return any_value(in, depth);
  const std::string name = type->kind() == Json::Kind::array ? type->array().front().string() : type->string();
  if (name == "string") return any_text(in);
  if (name == "integer") return in.pick(2) == 0 ? int64_t{1} : in.of(kIntegers);
  if (name == "number") return in.of(kNumbers);
  if (name == "boolean") return in.pick(2) == 1;
  if (name == "array") {
    Json out = Json::Array{};
    const Json* items = schema.find("items");
    for (size_t n = in.pick(4); n > 0; --n)
      out.array().push_back(items == nullptr ? any_value(in, depth) : value_of(in, *items, depth + 1));
    return out;
  }
  if (name != "object") return {};
  const Json* properties = schema.find("properties");
  if (properties == nullptr) return parse_json(in.of(kSchemas), {.name = "schema"});
  Json out = Json::Object{};
  const Json* required = schema.find("required");
  for (const JsonMember& m : properties->object()) {
    bool needed = false;
    if (required != nullptr)
      for (const Json& one : required->array()) needed = needed || one.string() == m.key;
    if (in.pick(needed ? 16 : 8) == (needed ? 15 : 7) ? !needed : needed)
      out.object().push_back({m.key, value_of(in, m.value, depth + 1)});
  }
  return out;
}

constexpr const char* kBodies[] = {"ChatRequest",  "CompletionRequest", "ResponseRequest",   "MessageRequest",
                                   "CountRequest", "TokenizeRequest",   "DetokenizeRequest", "TemplateRequest"};
constexpr const char* kPaths[] = {"/v1/chat/completions",
                                  "/v1/completions",
                                  "/v1/responses",
                                  "/v1/messages",
                                  "/v1/messages/count_tokens",
                                  "/tokenize",
                                  "/detokenize",
                                  "/apply-template",
                                  "/v1/models",
                                  "/v1/models/tiny",
                                  "/v1/models/%74iny",
                                  "/v1/requests/r/cancel",
                                  "/v1/requests//cancel",
                                  "/health",
                                  "/ready",
                                  "/version",
                                  "/metrics",
                                  "/openapi.json",
                                  "/",
                                  ""};
constexpr const char* kMethods[] = {"POST", "GET", "HEAD", "OPTIONS", "PUT"};
constexpr const char* kHeaders[] = {"authorization", "x-api-key",      "origin",
                                    "host",          "content-type",   "access-control-request-headers",
                                    "x-request-id",  "idempotency-key"};
constexpr const char* kValues[] = {"",         "abc",      "Bearer abc", "bearer  abd",      "Bearer",
                                   "http://a", "http://b", "x",          "application/json", "r"};

HttpRequest request_of(Input& in) {
  HttpRequest r{.method = "POST", .path = "", .query = "", .headers = {}, .body = "", .peer = "x", .id = "r"};
  const size_t kind = in.pick(std::size(kBodies));
  r.path = kPaths[kind];
  if (in.pick(8) == 1) {
    r.method = in.of(kMethods);
    r.path = in.pick(4) == 1 ? std::string(in.bytes(20)) : in.of(kPaths);
  }
  if (in.pick(4) == 1)
    for (size_t n = in.pick(5); n > 0; --n) {
      std::string name = in.of(kHeaders);
      r.headers.emplace_back(std::move(name), in.pick(4) == 1 ? std::string(in.bytes(20)) : in.of(kValues));
    }
  if (in.pick(4) == 1)
    r.body = in.rest();
  else
    r.body = json_text(value_of(in, *request_schemas().find(kBodies[kind]), 0));
  return r;
}

Json checked_json(const std::string& text) {
  return parse_json(text, {.name = "reply"}, {.max_bytes = std::ssize(text)});
}

void check_reply(const Reply& reply) {
  KDELTA_CHECK(reply.status < 500 || reply.status == 504, reply.status, reply.body);
  KDELTA_CHECK(is_utf8(reply.body), reply.body);
  if (reply.type == "application/json") (void)checked_json(reply.body);
  KDELTA_CHECK(reply.status < 400 || reply.error, reply.body);
}

// Whole events, each of one line of data.
void check_events(std::string_view piece) {
  KDELTA_CHECK(is_utf8(piece) && (piece.empty() || piece.ends_with("\n\n")), piece);
  while (!piece.empty()) {
    const size_t end = piece.find("\n\n");
    std::string_view one = piece.substr(0, end);
    piece.remove_prefix(end + 2);
    if (one.starts_with(":")) continue;
    if (one.starts_with("event: ")) one.remove_prefix(one.find('\n') + 1);
    KDELTA_CHECK(one.starts_with("data: ") && one.find('\n') == std::string_view::npos, one);
    if (one != "data: [DONE]") (void)checked_json(std::string(one.substr(6)));
  }
}

// `looks`: after that many the client is gone.
void converse(Exchange& exchange, Bell& bell, size_t looks) {
  bool streams = false;
  for (size_t look = 0;; ++look) {
    Exchange::Output out;
    exchange.next(out);
    if (out.whole) return check_reply(*out.whole);
    if (out.head) streams = true;
    KDELTA_CHECK(streams || out.piece.empty());
    check_events(out.piece);
    if (out.done || look >= looks) return;
    bell.wait();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Fixture& fixture = Fixture::get();
  Input in(data, size);
  const HttpHandler handler = (in.pick(4) == 1 ? fixture.closed : fixture.open).handler();
  const size_t looks = in.pick(8) == 1 ? size_t{1} << 20 : in.pick(4);
  const HttpRequest request = request_of(in);
  for (const auto& [name, value] : handler.headers(request)) KDELTA_CHECK(!name.empty());
  const auto bell = std::make_shared<Bell>();
  if (const auto refused = handler.check(request)) {
    check_reply(*refused);
    return 0;
  }
  Answered answered = handler.handle(request, [bell] { bell->ring(); });
  if (answered.exchange) {
    converse(*answered.exchange, *bell, looks);
  } else {
    if (answered.reply.error) handler.form(request, answered.reply);
    check_reply(answered.reply);
  }
  answered.exchange.reset();
  KDELTA_CHECK(fixture.service.wait_idle(std::chrono::seconds(60)), "a cancelled request without an end");
  return 0;
}
