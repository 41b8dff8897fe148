// The OpenAI Responses API with the small model.
#include <gmock/gmock.h>

#include "tests/server/server.h"

namespace kdelta {
namespace {

using test::at;
using test::json;
using test::named_events;
using test::Response;
using test::Server;
using testing::ElementsAre;
using testing::HasSubstr;

Server& shared() {
  static Server server({}, {}, [] {
    LoadOptions o = test::tiny_model();
    o.max_length = 1024;
    return o;
  }());
  return server;
}

constexpr char kRead[] =
    R"("tools":[{"type":"function","name":"read","description":"Reads a verse.","parameters":{"type":"object","properties":{
       "book":{"enum":["Genesis","Exodus"]},"verse":{"type":"integer","minimum":1,"maximum":9}},"required":["book","verse"]}}])";

std::string body(const std::string& more) {
  return R"({"input":"What does light mean?","temperature":0)" + std::string(more.empty() ? "" : ",") + more + "}";
}

Response post(const std::string& text) {
  return shared().post("/v1/responses", text);
}

std::string streaming(std::string text) {
  return text.insert(1, R"("stream":true,)");
}

// Without what differs between two requests for the same.
std::string comparable(Json response) {
  response.set("id", ""), response.set("created_at", 0);
  Json output = Json::Array{};
  for (Json item : at(response, "output").array()) {
    for (const char* field : {"id", "call_id"})
      if (item.find(field) != nullptr) item.set(field, "");
    output.array().push_back(std::move(item));
  }
  response.set("output", std::move(output));
  Json usage = at(response, "usage");
  usage.set("input_tokens_details", Json());  // the second request finds the first one's prompt
  response.set("usage", std::move(usage));
  return json_text(response);
}

// What a client makes of the events of one item, in their order; the item as it is when it is done.
Json folded_item(const std::vector<Json>& events, size_t& i, int64_t index) {
  const auto next = [&](const std::string& type) -> const Json& {
    const Json& e = events.at(i++);
    EXPECT_EQ(at(e, "type").string(), type);
    EXPECT_EQ(at(e, "output_index").integer(), index);
    return e;
  };
  Json item = at(next("response.output_item.added"), "item");
  EXPECT_EQ(at(item, "status").string(), "in_progress");
  const std::string kind = at(item, "type").string(), id = at(item, "id").string();
  const bool call = kind == "function_call";
  const std::string text = call                  ? "response.function_call_arguments"
                           : kind == "reasoning" ? "response.reasoning_text"
                                                 : "response.output_text";
  Json part;
  if (!call) part = at(next("response.content_part.added"), "part");
  std::string all;
  while (at(events.at(i), "type").string() == text + ".delta") {
    EXPECT_EQ(at(events[i], "item_id").string(), id);
    all += at(next(text + ".delta"), "delta").string();
  }
  if (!call) {
    EXPECT_EQ(at(next(text + ".done"), "text").string(), all);
    part.set("text", all);
    EXPECT_EQ(at(next("response.content_part.done"), "part"), part);
    item.set("content", Json::Array{part});
  } else {
    if (at(events.at(i), "type").string() == text + ".done") {
      EXPECT_EQ(at(next(text + ".done"), "arguments").string(), all);
    }
    item.set("arguments", all);
  }
  const Json done = at(next("response.output_item.done"), "item");
  item.set("status", at(done, "status"));
  EXPECT_EQ(item, done);
  return item;
}

// The response that the events make, which their last one must be.
Json folded(const std::vector<Json>& events) {
  for (size_t i = 0; i < events.size(); ++i)
    EXPECT_EQ(at(events[i], "sequence_number").integer(), static_cast<int64_t>(i));
  EXPECT_EQ(at(events[0], "type").string(), "response.created");
  EXPECT_EQ(at(events[1], "type").string(), "response.in_progress");
  EXPECT_TRUE(at(events[1], "response.output").array().empty());
  Json output = Json::Array{};
  size_t i = 2;
  while (i + 1 < events.size()) output.array().push_back(folded_item(events, i, std::ssize(output.array())));
  const Json& last = at(events.back(), "response");
  EXPECT_EQ(at(events.back(), "type").string(), "response." + at(last, "status").string());
  EXPECT_EQ(at(last, "output"), output);
  EXPECT_EQ(at(last, "id"), at(events[0], "response.id"));
  return last;
}

TEST(Responses, AStreamsEventsMakeTheResponseThatComesWithoutAStream) {
  const std::string forced = std::string(kRead) + R"(,"tool_choice":{"type":"function","name":"read"})";
  for (
      const std::string& asked :
      {body(R"("reasoning":{"effort":"none"})"), body(R"("max_output_tokens":300)"), body(R"("max_output_tokens":9)"),
       body(forced + R"(,"max_output_tokens":400)"),
       body(forced + R"(,"reasoning":{"effort":"none"},"max_output_tokens":25)"),
       body(forced + R"(,"reasoning":{"effort":"none"},"max_output_tokens":30)"),
       body(
           R"("instructions":"Be brief.","metadata":{"a":"b"},"reasoning":{"effort":"low"},"max_output_tokens":300)")}) {
    const Response whole = post(asked);
    ASSERT_EQ(whole.status, 200) << whole.body;
    EXPECT_EQ(comparable(folded(named_events(post(streaming(asked))))), comparable(json(whole.body))) << asked;
  }
}

TEST(Responses, AnAnswerIsItemsOfReasoningTextAndCalls) {
  const auto kinds = [](const Json& response) {
    std::vector<std::string> out;
    for (const Json& item : at(response, "output").array())
      out.push_back(at(item, "type").string() + " " + at(item, "status").string());
    return out;
  };
  const Json plain = json(post(body(R"("max_output_tokens":300)")).body);
  EXPECT_EQ(at(plain, "status").string(), "completed");
  EXPECT_THAT(kinds(plain), ElementsAre("reasoning completed", "message completed"));
  EXPECT_GT(at(plain, "usage.output_tokens_details.reasoning_tokens").integer(), 0);
  EXPECT_LT(at(plain, "usage.output_tokens_details.reasoning_tokens").integer(),
            at(plain, "usage.output_tokens").integer());
  EXPECT_FALSE(at(plain, "store").boolean()) << "nothing is kept";
  const std::string quiet = R"(,"reasoning":{"effort":"none"})";
  const Json called =
      json(post(body(std::string(kRead) + R"(,"tool_choice":"required","parallel_tool_calls":false)" + quiet)).body);
  EXPECT_THAT(kinds(called), ElementsAre("function_call completed"));
  const Json arguments = json(at(called, "output.0.arguments").string());
  EXPECT_LE(at(arguments, "verse").integer(), 9);
  const Json cut = json(post(body(R"("max_output_tokens":3)" + quiet)).body);
  EXPECT_EQ(at(cut, "status").string(), "incomplete");
  EXPECT_EQ(at(cut, "incomplete_details.reason").string(), "max_output_tokens");
  EXPECT_THAT(kinds(cut), ElementsAre("message incomplete"));
}

TEST(Responses, ItsInputIsThePromptOfTheSameChat) {
  const auto count = [](const std::string& text) {
    const Response r = post(text);
    EXPECT_EQ(r.status, 200) << r.body;
    return at(json(r.body), "usage.input_tokens").integer();
  };
  const auto tokens = [](const std::string& text) {
    return at(json(shared().post("/tokenize", text).body), "count").integer();
  };
  EXPECT_EQ(count(R"({"input":"Hi","instructions":"Be brief.","max_output_tokens":1})"),
            tokens(R"({"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"Hi"}]})"));
  const std::string items = R"("max_output_tokens":1,"input":[{"role":"developer","content":"Be brief."},
      {"type":"message","role":"user","content":[{"type":"input_text","text":"Read "},{"type":"input_text","text":"it."}]},
      {"type":"reasoning","id":"r","summary":[],"content":[{"type":"reasoning_text","text":"Hm."}],"encrypted_content":null},
      {"type":"message","id":"m","status":"completed","role":"assistant","content":[{"type":"output_text","text":"Well.","annotations":[]}]},
      {"type":"function_call","id":"f","call_id":"a","name":"read","arguments":"{\"book\": \"Genesis\"}","status":"completed"},
      {"type":"function_call","call_id":"b","name":"read","arguments":"{}"},
      {"type":"function_call_output","call_id":"b","output":[{"type":"input_text","text":"two"}]},
      {"type":"function_call_output","call_id":"a","output":"one"},
      {"role":"assistant","content":"So."},{"role":"assistant","content":"There."},{"role":"user","content":"Go on"}])";
  const std::string chat = R"("messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"Read it."},
      {"role":"assistant","content":"Well.","reasoning":"Hm.","tool_calls":[
        {"id":"a","function":{"name":"read","arguments":"{\"book\": \"Genesis\"}"}},{"id":"b","function":{"name":"read","arguments":"{}"}}]},
      {"role":"tool","tool_call_id":"b","content":"two"},{"role":"tool","tool_call_id":"a","content":"one"},
      {"role":"assistant","content":"So."},{"role":"assistant","content":"There."},{"role":"user","content":"Go on"}])";
  EXPECT_EQ(count("{" + items + "}"), tokens("{" + chat + "}"));
  EXPECT_EQ(
      count(
          "{" + items +
          R"(,"reasoning":{"effort":"none"},"tools":[{"type":"function","name":"f","description":"d","parameters":{"type":"object"},"strict":false}]})"),
      tokens(
          "{" + chat +
          R"(,"thinking":false,"tools":[{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object"}}}]})"));
}

TEST(Responses, TheTextIsWhatItsFormatSays) {
  const Json r = json(
      post(
          body(
              R"("reasoning":{"effort":"none"},"text":{"format":{"type":"json_schema","name":"n","schema":{"type":"object",)"
              R"("properties":{"ok":{"type":"boolean"}},"required":["ok"],"additionalProperties":false}}})"))
          .body);
  EXPECT_EQ(at(json(at(r, "output.0.content.0.text").string()), "ok").kind(), Json::Kind::boolean);
}

TEST(Responses, WhatItDoesNotHonourIsRefusedByName) {
  for (const auto& [more, name] :
       {std::pair<std::string, std::string>{R"("previous_response_id":"resp_1")", "previous_response_id"},
        {R"("conversation":"c")", "conversation"},
        {R"("background":true)", "background"},
        {R"("truncation":"auto")", "truncation"},
        {R"("include":["message.output_text.logprobs"])", "include"},
        {R"("top_logprobs":2)", "top_logprobs"},
        {R"("max_output_tokens":0)", "max_output_tokens"},
        {R"("tools":[{"type":"web_search"}])", "tools[0].type"},
        {R"("tool_choice":"required")", "tool_choice"},
        {R"("tool_choice":{"type":"allowed_tools","mode":"none","tools":[]})", "tool_choice.mode"},
        {R"("text":{"format":{"type":"yaml"}})", "text.format.type"}}) {
    const Response r = post(body(more));
    EXPECT_EQ(r.status, 400) << more;
    EXPECT_EQ(at(json(r.body), "error.param"), Json(name)) << r.body;
  }
  for (const auto& [input, name] :
       {std::pair<std::string, std::string>{"[]", "input"},
        {R"([{"type":"item_reference","id":"x"}])", "input[0].type"},
        {R"([{"role":"user","content":[{"type":"input_image"}]}])", "input[0].content[0].type"},
        {R"([{"type":"reasoning","summary":[],"encrypted_content":"x"}])", "input[0].encrypted_content"}}) {
    const Response r = post(R"({"input":)" + input + "}");
    EXPECT_EQ(r.status, 400) << input;
    EXPECT_EQ(at(json(r.body), "error.param"), Json(name)) << r.body;
  }
}

}  // namespace
}  // namespace kdelta
