// Calls that an answer must make, over HTTP with the small model: what is asked of them holds whatever it would rather
// say.
#include <gmock/gmock.h>

#include "tests/server/server.h"

namespace kdelta {
namespace {

using test::at;
using test::events;
using test::json;
using test::Response;
using test::Server;
using testing::HasSubstr;

Server& shared() {
  static Server server({}, {}, [] {
    LoadOptions o = test::tiny_model();
    o.max_length = 1024;
    return o;
  }());
  return server;
}

// Every kind of value that an argument can be.
constexpr char kLook[] =
    R"({"type":"function","function":{"name":"look","parameters":{"type":"object","properties":{
       "where":{"type":"string","maxLength":6},"kind":{"enum":["a \"b\"","c&d",3]},"deep":{"type":["integer","null"],"minimum":1,
       "maximum":9},"at":{"type":"array","items":{"type":"boolean"},"maxItems":2}},
       "required":["where","kind","deep","at"]}}})";
constexpr char kRest[] =
    R"({"type":"function","function":{"name":"re.st-1","parameters":{"type":"object","properties":{}}}})";

std::string body(const std::string& tools, const std::string& more) {
  return R"({"messages":[{"role":"user","content":"What does light mean?"}],"thinking":false,"tools":[)" + tools + "]" +
         (more.empty() ? "" : ",") + more + "}";
}

Response chat(const std::string& tools, const std::string& more) {
  return shared().post("/v1/chat/completions", body(tools, more));
}

std::string named(const std::string& name) {
  return R"("tool_choice":{"type":"function","function":{"name":")" + name + R"("}})";
}

void expect_look(const Json& call) {
  EXPECT_EQ(at(call, "function.name").string(), "look");
  const Json arguments = json(at(call, "function.arguments").string());
  ASSERT_EQ(arguments.object().size(), 4u) << json_text(arguments);
  EXPECT_EQ(at(arguments, "where").kind(), Json::Kind::string);
  EXPECT_THAT(json_text(at(arguments, "kind")), testing::AnyOf(R"("a \"b\"")", R"("c&d")", "3"));
  const Json& deep = at(arguments, "deep");
  if (!deep.is_null()) {
    EXPECT_GE(deep.integer(), 1);
    EXPECT_LE(deep.integer(), 9);
  }
  EXPECT_LE(at(arguments, "at").array().size(), 2u);
  for (const Json& item : at(arguments, "at").array()) EXPECT_EQ(item.kind(), Json::Kind::boolean);
}

TEST(Tools, ACallThatIsAskedForIsMadeAndItsArgumentsAreValidUnderTheSchema) {
  for (int seed = 0; seed < 4; ++seed) {
    const Response r = chat(std::string(kLook) + "," + kRest, named("look") + R"(,"seed":)" + std::to_string(seed));
    ASSERT_EQ(r.status, 200) << r.body;
    const Json choice = at(json(r.body), "choices.0");
    EXPECT_EQ(at(choice, "finish_reason").string(), "tool_calls");
    EXPECT_TRUE(at(choice, "message.content").is_null());
    ASSERT_EQ(at(choice, "message.tool_calls").array().size(), 1u);
    expect_look(at(choice, "message.tool_calls.0"));
  }
  const Json rest = json(chat(std::string(kLook) + "," + kRest, named("re.st-1")).body);
  EXPECT_EQ(at(rest, "choices.0.message.tool_calls.0.function.name").string(), "re.st-1");
  EXPECT_EQ(at(rest, "choices.0.message.tool_calls.0.function.arguments").string(), "{}");
}

TEST(Tools, WhatIsAskedOfCallsAlsoHoldsBehindThoughtsAndInAStream) {
  std::string name, arguments, content, finish;
  const Response r = shared().post(
      "/v1/chat/completions",
      R"({"messages":[{"role":"user","content":"What does light mean?"}],"temperature":0,"stream":true,"tools":[)" +
          std::string(kLook) + R"(],"tool_choice":"required","parallel_tool_calls":false})");
  ASSERT_EQ(r.status, 200) << r.body;
  std::vector<std::string> all = events(r.body);
  ASSERT_EQ(all.back(), "[DONE]");
  all.pop_back();
  for (const std::string& e : all) {
    const Json choice = at(json(e), "choices.0");
    const Json& delta = at(choice, "delta");
    if (const Json* c = delta.find("content")) content += c->string();
    if (!at(choice, "finish_reason").is_null()) finish = at(choice, "finish_reason").string();
    if (delta.find("tool_calls") == nullptr) continue;
    EXPECT_EQ(at(delta, "tool_calls.0.index").integer(), 0) << "one call";
    const Json& function = at(delta, "tool_calls.0.function");
    if (const Json* n = function.find("name")) name += n->string();
    arguments += at(function, "arguments").string();
  }
  EXPECT_EQ(finish, "tool_calls");
  EXPECT_EQ(content, "");
  Json call = Json::Object{};
  call.set("function", Json::Object{{"name", name}, {"arguments", arguments}});
  expect_look(call);
}

TEST(Tools, OneCallIsTheMostWhereCallsAreNotParallelAndOnlyAllowedOnesAreMade) {
  for (int seed = 0; seed < 4; ++seed) {
    const std::string with_seed = R"(,"seed":)" + std::to_string(seed);
    const Json one =
        json(chat(std::string(kRest), R"("tool_choice":"required","parallel_tool_calls":false)" + with_seed).body);
    EXPECT_EQ(at(one, "choices.0.message.tool_calls").array().size(), 1u);
    const Json some = json(chat(std::string(kLook) + "," + kRest,
                                R"("tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"required","tools":[
                                   {"type":"function","function":{"name":"re.st-1"}}]}})" +
                                    with_seed)
                               .body);
    for (const Json& call : at(some, "choices.0.message.tool_calls").array())
      EXPECT_EQ(at(call, "function.name").string(), "re.st-1");
  }
}

TEST(Tools, AStrictFunctionsArgumentsAreValidAlsoWhenTheModelCallsByItself) {
  const std::string read =
      R"({"type":"function","function":{"name":"read","description":"Reads a verse.","strict":true,"parameters":{"type":"object",
         "properties":{"book":{"enum":["Genesis","Exodus"]},"chapter":{"type":"integer","minimum":1,"maximum":3}},
         "required":["book","chapter"],"additionalProperties":false}}})";
  const Json r = json(
      shared()
          .post(
              "/v1/chat/completions",
              R"({"messages":[{"role":"user","content":"Read me Psalms 23:1."}],"temperature":0,"parallel_tool_calls":false,"tools":[)" +
                  read + "]}")
          .body);
  ASSERT_EQ(at(r, "choices.0.finish_reason").string(), "tool_calls") << json_text(r);
  const Json arguments = json(at(r, "choices.0.message.tool_calls.0.function.arguments").string());
  EXPECT_THAT(at(arguments, "book").string(), testing::AnyOf("Genesis", "Exodus"));
  EXPECT_LE(at(arguments, "chapter").integer(), 3);
}

// xtml has an element for that; without a schema the values are of what type they say.
TEST(Tools, ASchemaThatDoesNotNameAllMembersIsHeldToo) {
  const std::string combined =
      R"({"type":"function","function":{"name":"f","parameters":{"type":"object","anyOf":[
         {"properties":{"a":{"const":7}},"required":["a"],"additionalProperties":false},
         {"properties":{"b":{"const":"x"}},"required":["b"],"additionalProperties":false}]}}})";
  for (int seed = 0; seed < 4; ++seed) {
    const Json r = json(
        chat(combined, R"("tool_choice":"required","parallel_tool_calls":false,"seed":)" + std::to_string(seed)).body);
    EXPECT_EQ(at(r, "choices.0.finish_reason").string(), "tool_calls") << json_text(r);
    EXPECT_THAT(at(r, "choices.0.message.tool_calls.0.function.arguments").string(),
                testing::AnyOf(R"({"a":7})", R"({"b":"x"})"));
  }
}

TEST(Tools, WhatCannotBeAskedOfCallsIsRefusedByName) {
  const auto refusal = [](const std::string& tools, const std::string& more) {
    const Response r = chat(tools, more);
    EXPECT_EQ(r.status, 400) << r.body;
    const Json e = json(r.body);
    return (at(e, "error.param").is_null() ? "" : at(e, "error.param").string()) + " | " +
           at(e, "error.message").string();
  };
  EXPECT_THAT(refusal(kLook, named("gaze")),
              HasSubstr("tool_choice | request: tool_choice: 'gaze' is no function of tools"));
  EXPECT_THAT(refusal("", R"("tool_choice":"required")"), HasSubstr("there are no tools"));
  EXPECT_THAT(refusal(kLook, R"("tool_choice":"sometimes")"), HasSubstr("tool_choice | "));
  const auto with = [](const std::string& schema, const std::string& strict) {
    return R"({"type":"function","function":{"name":"f",)" + strict + R"("parameters":)" + schema + "}}";
  };
  const std::string odd = R"({"type":"object","properties":{"a":{"type":"string","unheard":1}}})";
  EXPECT_THAT(refusal(with(odd, ""), R"("tool_choice":"required")"),
              HasSubstr("tools[0].function.parameters | request: tools[0].function.parameters: #/properties/a/unheard: "
                        "this keyword is not supported"));
  EXPECT_THAT(refusal(with(odd, R"("strict":true,)"), ""), HasSubstr("#/properties/a/unheard"));
  EXPECT_EQ(chat(with(odd, ""), "").status, 200) << "nothing is asked";
  EXPECT_EQ(chat(with(odd, R"("strict":false,)"), R"("tool_choice":"required","max_tokens":3)").status, 200)
      << "an object is asked for";
  EXPECT_THAT(refusal(with(R"({"type":"array"})", ""), R"("tool_choice":"required")"), HasSubstr("arguments are one"));
}

// The format is the content's, and where a call must be made there is none.
TEST(Tools, AFormatIsOfTheContentAndACallThatMustBeMadeIsMadeAllTheSame) {
  const std::string format =
      R"("response_format":{"type":"json_schema","json_schema":{"schema":{"enum":["yes","no"]}}})";
  for (const std::string& choice : {std::string(R"("tool_choice":"required")"), named("look")}) {
    const Response r = chat(kLook, choice + "," + format);
    ASSERT_EQ(r.status, 200) << r.body;
    const Json choice_of = at(json(r.body), "choices.0");
    EXPECT_EQ(at(choice_of, "finish_reason").string(), "tool_calls");
    EXPECT_TRUE(at(choice_of, "message.content").is_null());
    expect_look(at(choice_of, "message.tool_calls.0"));
  }
  // Without a call that must be, whatever content there is has the format.
  for (const char* free : {R"("tool_choice":"auto")", R"("tool_choice":"none")"}) {
    const Json r = json(chat(kLook, free + ("," + format)).body);
    if (at(r, "choices.0.finish_reason").string() != "stop") continue;
    EXPECT_THAT(at(r, "choices.0.message.content").string(), testing::AnyOf(R"("yes")", R"("no")"));
  }
  const Response refused = chat(kLook, R"("tool_choice":"required","response_format":{"type":"json_schema",)"
                                       R"("json_schema":{"schema":{"unheard":1}}})");
  EXPECT_EQ(refused.status, 400) << "a format that cannot be is refused whether there is content or not";
}

// K3's template has words for the format of an answer: the model is told what the grammar sees to.
TEST(Tools, ThePromptTellsOfTheFormatInTheWordsOfTheChatFormat) {
  const Engine& engine = shared().engine();
  ChatSettings settings{.thinking = false};
  const std::vector<ChatMessage> messages{{.role = "user", .content = "What does light mean?"}};
  const auto tokens = [&] { return std::ssize(engine.chat_prompt(messages, settings)); };
  const auto asked = [&](const std::string& more) {
    const Response r = shared().post(
        "/v1/chat/completions", R"({"messages":[{"role":"user","content":"What does light mean?"}],"thinking":false,)"
                                R"("max_tokens":1)" +
                                    more + "}");
    EXPECT_EQ(r.status, 200) << r.body;
    return at(json(r.body), "usage.prompt_tokens").integer();
  };
  EXPECT_EQ(asked(""), tokens());
  settings.answer_format = "json_object";
  EXPECT_THAT(engine.detokenize(engine.chat_prompt(messages, settings), true),
              HasSubstr("The system is invoked with `response_format=json_object`."));
  EXPECT_EQ(asked(R"(,"response_format":{"type":"json_object"})"), tokens());
  settings.answer_format = "json_schema";
  settings.schema_json = R"({"enum":["yes","no"]})";
  EXPECT_THAT(engine.detokenize(engine.chat_prompt(messages, settings), true),
              HasSubstr("must match the following schema:\n```json\n{\"enum\""));
  EXPECT_EQ(asked(R"(,"response_format":{"type":"json_schema","json_schema":{"schema":{"enum":["yes","no"]}}})"),
            tokens());
}

}  // namespace
}  // namespace kdelta
