// The Anthropic Messages API with the small model.
#include <gmock/gmock.h>

#include "tests/server/server.h"

namespace kdelta {
namespace {

using test::at;
using test::Client;
using test::json;
using test::named_events;
using test::Response;
using test::Server;
using testing::AllOf;
using testing::HasSubstr;

Server& shared() {
  static Server server({}, {}, [] {
    LoadOptions o = test::tiny_model();
    o.max_length = 1024;
    return o;
  }());
  return server;
}

constexpr char kQuestion[] = R"("messages":[{"role":"user","content":"What does light mean?"}])";
constexpr char kRead[] =
    R"("tools":[{"name":"read","description":"Reads a verse.","input_schema":{"type":"object","properties":{
       "book":{"enum":["Genesis","Exodus"]},"verse":{"type":"integer","minimum":1,"maximum":9}},"required":["book","verse"]}}])";

std::string body(const std::string& more, const std::string& max_tokens = "40") {
  return std::string("{") + kQuestion + R"(,"temperature":0,"max_tokens":)" + max_tokens + (more.empty() ? "" : ",") +
         more + "}";
}

Response post(const std::string& text, const char* path = "/v1/messages") {
  return shared().post(path, text);
}

std::string streaming(std::string text) {
  return text.insert(1, R"("stream":true,)");
}

// What a client makes of the events, as the API says to; checks their order.
Json folded(const std::vector<Json>& events) {
  EXPECT_EQ(at(events.front(), "type").string(), "message_start");
  EXPECT_EQ(at(events.back(), "type").string(), "message_stop");
  Json message = at(events.front(), "message");
  EXPECT_TRUE(at(message, "stop_reason").is_null());
  EXPECT_TRUE(at(message, "content").array().empty());
  Json content = Json::Array{};
  Json block;
  std::string arguments;
  for (size_t i = 1; i + 1 < events.size(); ++i) {
    const Json& e = events[i];
    const std::string type = at(e, "type").string();
    if (type == "ping") continue;
    if (type == "message_delta") {
      EXPECT_EQ(i + 2, events.size());
      for (const JsonMember& m : at(e, "delta").object()) message.set(m.key, m.value);
      message.set("usage", at(e, "usage"));
      continue;
    }
    EXPECT_EQ(at(e, "index").integer(), std::ssize(content.array()));
    if (type == "content_block_start") {
      EXPECT_TRUE(block.is_null()) << "blocks do not overlap";
      block = at(e, "content_block");
      arguments.clear();
    } else if (type == "content_block_delta") {
      const Json& delta = at(e, "delta");
      const std::string kind = at(delta, "type").string();
      const auto append = [&](const char* field) {
        block.set(field, at(block, field).string() + at(delta, field).string());
      };
      if (kind == "text_delta") append("text");
      if (kind == "thinking_delta") append("thinking");
      if (kind == "signature_delta") append("signature");
      if (kind == "input_json_delta") arguments += at(delta, "partial_json").string();
    } else {
      EXPECT_EQ(type, "content_block_stop");
      if (at(block, "type").string() == "tool_use") {
        try {
          block.set("input", json(arguments));
        } catch (const Error&) {  // one that was cut off
          block = Json::Object{{"type", "broken"}};
        }
      }
      content.array().push_back(std::exchange(block, Json()));
    }
  }
  EXPECT_TRUE(block.is_null());
  message.set("content", std::move(content));
  return message;
}

// Without what differs between two requests for the same.
std::string comparable(Json message) {
  message.set("id", "");
  Json content = Json::Array{};
  for (Json block : at(message, "content").array()) {
    if (at(block, "type").string() == "broken") continue;
    if (block.find("id") != nullptr) block.set("id", "");
    if (block.find("signature") != nullptr) {
      EXPECT_FALSE(at(block, "signature").string().empty());
      block.set("signature", "");
    }
    content.array().push_back(std::move(block));
  }
  message.set("content", std::move(content));
  Json usage = at(message, "usage");  // the second request finds the first one's prompt
  usage.set("input_tokens", at(usage, "input_tokens").integer() + at(usage, "cache_read_input_tokens").integer());
  usage.set("cache_read_input_tokens", 0);
  message.set("usage", std::move(usage));
  return json_text(message);
}

TEST(Messages, AStreamsEventsMakeTheMessageThatComesWithoutAStream) {
  const std::string forced = std::string(kRead) + R"(,"tool_choice":{"type":"any","disable_parallel_tool_use":true})";
  for (const std::string& text : {body(""), body(R"("thinking":{"type":"enabled","budget_tokens":1024})", "200"),
                                  body(R"("thinking":{"type":"adaptive","display":"omitted"})", "200"),
                                  body(R"("stop_sequences":["e"],"system":[{"type":"text","text":"Be brief."}])"),
                                  body(forced, "200"), body(forced + R"(,"thinking":{"type":"adaptive"})", "400"),
                                  body(forced, "25"), body(forced, "30"), body(R"("temperature":1,"seed":4)")}) {
    std::string asked = text;
    if (asked.find(R"("temperature":1)") != std::string::npos) asked.erase(asked.find(R"("temperature":0,)"), 16);
    const Response whole = post(asked);
    ASSERT_EQ(whole.status, 200) << whole.body;
    const std::vector<Json> events = named_events(post(streaming(asked)));
    EXPECT_EQ(comparable(folded(events)), comparable(json(whole.body))) << asked;
    EXPECT_EQ(at(events[1], "type").string(), "ping");
  }
}

TEST(Messages, TheReasonSaysWhyItStopped) {
  const auto reason = [](const std::string& text) { return at(json(post(text).body), "stop_reason").string(); };
  EXPECT_EQ(reason(body("", "1")), "max_tokens");
  EXPECT_EQ(reason(body("", "500")), "end_turn");
  const Json stopped = json(post(body(R"("stop_sequences":["zzz","e"])", "500")).body);
  EXPECT_EQ(at(stopped, "stop_reason").string(), "stop_sequence");
  EXPECT_EQ(at(stopped, "stop_sequence").string(), "e");
  EXPECT_EQ(at(stopped, "content.0.text").string().find('e'), std::string::npos);
  const Json called =
      json(post(body(std::string(kRead) + R"(,"tool_choice":{"type":"tool","name":"read"})", "200")).body);
  EXPECT_EQ(at(called, "stop_reason").string(), "tool_use");
  ASSERT_EQ(at(called, "content").array().size(), 1u);
  EXPECT_THAT(at(called, "content.0.input.book").string(), testing::AnyOf("Genesis", "Exodus"));
  EXPECT_LE(at(called, "content.0.input.verse").integer(), 9);
  // A call that max_tokens cuts off is none; its spelling is not lost.
  const Json cut = json(post(body(std::string(kRead) + R"(,"tool_choice":{"type":"any"})", "25")).body);
  EXPECT_EQ(at(cut, "stop_reason").string(), "max_tokens");
  for (const Json& block : at(cut, "content").array()) EXPECT_EQ(at(block, "type").string(), "text");
  // More than 256 tokens hold, and a grammar sees to it that it is said.
  Server small;
  const Json full = json(
      small
          .post(
              "/v1/messages",
              body(
                  R"("output_config":{"format":{"type":"json_schema","schema":{"type":"string","pattern":"^(zqxj){400}$"}}})",
                  "500"))
          .body);
  EXPECT_EQ(at(full, "stop_reason").string(), "model_context_window_exceeded") << json_text(full);
}

TEST(Messages, APromptIsThatOfTheSameChat) {
  const auto count = [](const std::string& text) {
    return at(json(post(text, "/v1/messages/count_tokens").body), "input_tokens").integer();
  };
  const auto tokens = [](const std::string& text) { return at(json(post(text, "/tokenize").body), "count").integer(); };
  EXPECT_EQ(count(std::string("{") + kQuestion + "}"), tokens(std::string("{\"thinking\":false,") + kQuestion + "}"));
  EXPECT_EQ(
      count(std::string(R"({"thinking":{"type":"adaptive"},"output_config":{"effort":"low"},)") + kQuestion + "}"),
      tokens(std::string(R"({"reasoning_effort":"low",)") + kQuestion + "}"));
  const std::string turns =
      R"({"system":[{"type":"text","text":"Be ","cache_control":{"type":"ephemeral"}},{"type":"text","text":"brief."}],
      "thinking":{"type":"adaptive"},"messages":[{"role":"user","content":[{"type":"text","text":"Read "},{"type":"text","text":"it."}]},
      {"role":"assistant","content":[{"type":"thinking","thinking":"Hm.","signature":"x"},{"type":"text","text":"Well."},
        {"type":"tool_use","id":"a","name":"read","input":{"book":"Genesis"}}]},
      {"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":[{"type":"text","text":"no"}],"is_error":true},
        {"type":"text","text":"And now?"}]}])";
  const std::string chat = R"({"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"Read it."},
      {"role":"assistant","content":"Well.","reasoning":"Hm.","tool_calls":[{"id":"a","function":{"name":"read","arguments":"{\"book\": \"Genesis\"}"}}]},
      {"role":"tool","tool_call_id":"a","content":"Error: no"},{"role":"user","content":"And now?"}])";
  EXPECT_EQ(count(turns + "}"), tokens(chat + "}"));
  EXPECT_EQ(
      count(turns + R"(,"tools":[{"name":"f","description":"d","input_schema":{"type":"object"}}]})"),
      tokens(
          chat +
          R"(,"tools":[{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object"}}}]})"));
  EXPECT_EQ(count(turns + R"(,"tools":[{"name":"f","input_schema":{}}],"tool_choice":{"type":"none"}})"),
            count(turns + "}"));
}

TEST(Messages, TheNextTurnCountsWhatWasFoundApart) {
  std::string words;
  for (int i = 0; i < 40; ++i) words += "light and word ";
  const std::string first =
      R"({"max_tokens":2,"temperature":0,"system":")" + words + R"(","messages":[{"role":"user","content":"Hi"})";
  const Json a = json(post(first + "]}").body);
  const Json b =
      json(post(first + R"(,{"role":"assistant","content":"Yes"},{"role":"user","content":"Go on"}]})").body);
  EXPECT_EQ(at(a, "usage.cache_read_input_tokens").integer(), 0);
  EXPECT_GT(at(b, "usage.cache_read_input_tokens").integer(), 63);
  EXPECT_GT(at(b, "usage.input_tokens").integer() + at(b, "usage.cache_read_input_tokens").integer(),
            at(a, "usage.input_tokens").integer());
}

TEST(Messages, TheTextIsWhatItsFormatSays) {
  const Json r = json(
      post(
          body(
              R"("output_config":{"format":{"type":"json_schema","schema":{"type":"object","properties":{"ok":{"type":"boolean"}},)"
              R"("required":["ok"],"additionalProperties":false}}})"))
          .body);
  EXPECT_EQ(at(json(at(r, "content.0.text").string()), "ok").kind(), Json::Kind::boolean);
}

TEST(Messages, EveryErrorHasTheFormOfThatApi) {
  const auto type_of = [](const Response& r, int status) {
    EXPECT_EQ(r.status, status) << r.body;
    const Json e = json(r.body);
    EXPECT_EQ(at(e, "type").string(), "error");
    EXPECT_FALSE(at(e, "error.message").string().empty());
    return at(e, "error.type").string();
  };
  EXPECT_EQ(type_of(post("{"), 400), "invalid_request_error");
  EXPECT_EQ(type_of(post(body(R"("model":"another")")), 404), "not_found_error");
  EXPECT_EQ(type_of(post("{}", "/v1/messages/unknown"), 404), "not_found_error");
  EXPECT_EQ(type_of(shared().get("/v1/messages"), 405), "invalid_request_error");
  EXPECT_EQ(
      type_of(test::ask(shared().port(), "POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Length: 999999999\r\n\r\n"),
              413),
      "request_too_large");
  server::ApiOptions keys;
  keys.keys = {"secret"};
  Server locked(keys);
  EXPECT_EQ(type_of(locked.post("/v1/messages", body("")), 401), "authentication_error");
  EXPECT_EQ(locked.post("/v1/messages", body(""), "x-api-key: secret\r\n").status, 200);
  Response r = post(body(""));
  EXPECT_EQ(r.headers["request-id"], r.headers["x-request-id"]);
  // And nobody else's.
  EXPECT_EQ(at(json(post("{", "/v1/completions").body), "error.param").kind(), Json::Kind::null);
}

TEST(Messages, WhatItDoesNotHonourIsRefusedByName) {
  for (
      const auto& [text, name] :
      {std::pair<std::string, std::string>{std::string("{") + kQuestion + "}", "max_tokens"},
       {body(R"("tool_choice":{"type":"any"})"), "tool_choice"},
       {body(std::string(kRead) + R"(,"tool_choice":{"type":"tool","name":"write"})"), "tool_choice"},
       {body(R"("tools":[{"type":"web_search_20250305","name":"web_search"}])"), "tools[0].type"},
       {body(R"("tools":[{"name":"f"}])"), "tools[0].input_schema"},
       {body(R"("thinking":{"type":"enabled"})"), "thinking.budget_tokens"},
       {body(R"("thinking":{"type":"between_tools"})"), "thinking.type"},
       {body(R"("output_config":{"effort":"xhigh"})"), "effort"},
       {body(R"("stop_sequences":[""])"), "request: stop_sequences"},
       {body(R"("container":"x")"), "container"},
       {R"({"max_tokens":1,"messages":[]})", "messages"},
       {R"({"max_tokens":1,"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]})",
        "messages[1].role"},
       {R"({"max_tokens":1,"messages":[{"role":"tool","content":"a"}]})", "messages[0].role"},
       {R"({"max_tokens":1,"messages":[{"role":"user","content":[{"type":"image","source":{}}]}]})",
        "messages[0].content[0].source"},
       {R"({"max_tokens":1,"messages":[{"role":"user","content":[{"type":"tool_use","id":"a","name":"b","input":{}}]}]})",
        "messages[0].content[0].type"}}) {
    const Response r = post(text);
    EXPECT_EQ(r.status, 400) << text;
    EXPECT_THAT(at(json(r.body), "error.message").string(), HasSubstr(name + ":")) << text;
  }
}

}  // namespace
}  // namespace kdelta
