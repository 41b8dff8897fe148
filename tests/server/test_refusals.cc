// What is refused, and by which name: the JSON path that the caller wrote, at every door.
#include <gmock/gmock.h>

#include "frontends/server/field_names.h"
#include "tests/server/server.h"

namespace kdelta {
namespace {

using test::at;
using test::json;
using test::Response;
using test::Server;
using testing::HasSubstr;

Server& shared() {
  static Server server;
  return server;
}

// The Anthropic API has no `param`: its message begins with the path.
void expect_refused(const std::string& path, const std::string& body, const std::string& field) {
  const Response r = shared().post(path, body);
  EXPECT_EQ(r.status, 400) << body << r.body;
  if (r.status != 400) return;
  const Json error = json(r.body);
  EXPECT_THAT(at(error, "error.message").string(), HasSubstr("request: " + field + ": ")) << body;
  if (path.starts_with("/v1/messages")) return;
  EXPECT_EQ(at(error, "error.param"), Json(field)) << body << r.body;
}

struct Case {
  const char *members, *field;
};

std::string joined(const std::string& base, const std::string& more) {
  return "{" + base + (base.empty() ? "" : ",") + more + "}";
}

constexpr char kHi[] = R"("messages":[{"role":"user","content":"Hi"}])";

TEST(Refusals, OfAChatNameTheFieldAsItWasWritten) {
  const Case cases[] = {
      {R"("temperature":-1)", "temperature"},
      {R"("top_p":2)", "top_p"},
      {R"("top_k":-2)", "top_k"},
      {R"("max_tokens":0)", "max_tokens"},
      {R"("max_completion_tokens":0)", "max_completion_tokens"},
      {R"("min_tokens":-1)", "min_tokens"},
      {R"("min_tokens":9,"max_tokens":3)", "min_tokens"},
      {R"("stop":[""])", "stop"},
      {R"("stop":[1])", "stop[0]"},
      {R"("stop_token_ids":[999999])", "stop_token_ids"},
      {R"("logit_bias":{"99999":1})", "logit_bias"},
      {R"("reasoning_effort":"extreme")", "reasoning_effort"},
      {R"("response_format":{"type":"yaml"})", "response_format.type"},
      {R"("response_format":{"type":"json_schema"})", "response_format.json_schema"},
      {R"("response_format":{"type":"json_schema","json_schema":{"schema":{"unknown":1}}})",
       "response_format.json_schema.schema"},
      {R"("structured_outputs":{"json":{"unknown":1}})", "structured_outputs.json"},
      {R"("structured_outputs":{"regex":"("})", "structured_outputs.regex"},
      {R"("structured_outputs":{"grammar":"root"})", "structured_outputs.grammar"},
      {R"("structured_outputs":{"choice":[]})", "structured_outputs.choice"},
      {R"("tools":{"a":1})", "tools"},
      {R"("tools":[null])", "tools[0]"},
      {R"("tools":[{"type":"function"}])", "tools[0].function"},
      {R"("tools":[{"function":{"name":"f"}}])", "tools[0].type"},
      {R"("tools":[{"type":"search","function":{"name":"f"}}])", "tools[0].type"},
      {R"("tools":[{"type":"function","function":{"name":""}}])", "tools[0].function.name"},
      {R"("tools":[{"type":"function","function":{"name":"a\nb"}}])", "tools[0].function.name"},
      {R"("tools":[{"type":"function","function":{"name":3}}])", "tools[0].function.name"},
      {R"("tools":[{"type":"function","function":{"name":"f","parameters":[]}}])", "tools[0].function.parameters"},
      {R"("tools":[{"type":"function","function":{"name":"f","strict":true,"parameters":{"unknown":1}}}])",
       "tools[0].function.parameters"},
      {R"("tools":[{"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"f"}}])", "tools"},
      {R"("tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":{"type":"function","function":{"name":"g"}})",
       "tool_choice"},
      {R"("tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":{"type":"tool"})", "tool_choice.type"},
      {R"("tool_choice":"required")", "tool_choice"},
  };
  for (const Case& c : cases) expect_refused("/v1/chat/completions", joined(kHi, c.members), c.field);
  const Case conversations[] = {
      {R"("messages":[])", "messages"},
      {R"("messages":[3])", "messages[0]"},
      {R"("messages":[{"content":"a"}])", "messages[0].role"},
      {R"("messages":[{"role":"robot","content":"a"}])", "messages[0].role"},
      {R"("messages":[{"role":"user"}])", "messages[0].content"},
      {R"("messages":[{"role":"user","content":null}])", "messages[0].content"},
      {R"("messages":[{"role":"system"},{"role":"user","content":"a"}])", "messages[0].content"},
      {R"("messages":[{"role":"user","content":"a"},{"role":"assistant"}])", "messages[1].content"},
      {R"("messages":[{"role":"user","content":"a"},{"role":"assistant","tool_calls":[]}])", "messages[1].content"},
      {R"("messages":[{"role":"user","content":[{"type":"image_url"}]}])", "messages[0].content[0].type"},
      {R"("messages":[{"role":"user","content":"a"},{"role":"tool","content":"b"}])", "messages[1]"},
      {R"("messages":[{"role":"assistant","tool_calls":[{"function":{"name":"","arguments":"{}"}}]}])",
       "messages[0].tool_calls[0].function.name"},
      {R"("messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"[]"}}]}])",
       "messages[0].tool_calls[0].function.arguments"},
  };
  for (const Case& c : conversations)
    for (const char* path : {"/v1/chat/completions", "/apply-template", "/tokenize"})
      expect_refused(path, joined("", c.members), c.field);
  std::string words;
  for (int i = 0; i < 400; ++i) words += "light ";
  expect_refused("/v1/chat/completions", R"({"messages":[{"role":"user","content":")" + words + R"("}]})", "messages");
}

TEST(Refusals, OfAResponseNameTheFieldAsItWasWritten) {
  const Case cases[] = {
      {R"("max_output_tokens":0)", "max_output_tokens"},
      {R"("temperature":-1)", "temperature"},
      {R"("top_k":-2)", "top_k"},
      {R"("reasoning":{"effort":"extreme"})", "reasoning.effort"},
      {R"("text":{"format":{"type":"json_schema","name":"a","schema":{"unknown":1}}})", "text.format.schema"},
      {R"("text":{"format":{"type":"json_schema","name":"a"}})", "text.format.schema"},
      {R"("tools":[{"type":"function","name":""}])", "tools[0].name"},
      {R"("tools":[{"type":"web_search"}])", "tools[0].type"},
      {R"("tools":[{"type":"function","name":"f","strict":true,"parameters":{"unknown":1}}])", "tools[0].parameters"},
      {R"("tools":[{"type":"function","name":"f"},{"type":"function","name":"f"}])", "tools"},
      {R"("tool_choice":"required")", "tool_choice"},
  };
  for (const Case& c : cases) expect_refused("/v1/responses", joined(R"("input":"Hi")", c.members), c.field);
  const Case inputs[] = {
      {R"("input":[{"role":"robot","content":"a"}])", "input[0].role"},
      {R"("instructions":"b","input":[{"role":"user","content":"a"},{"type":"reasoning","summary":[]},
           {"type":"function_call","call_id":"c","name":"f","arguments":"{}"},
           {"type":"function_call","call_id":"d","name":"f","arguments":"[]"}])",
       "input[3].arguments"},
      {R"("input":[{"type":"function_call","call_id":"c","name":"","arguments":"{}"}])", "input[0].name"},
      {R"("instructions":"b","input":[{"role":"user","content":"a"},{"type":"function_call_output","call_id":"x","output":"y"}])",
       "input[1]"},
  };
  for (const Case& c : inputs) expect_refused("/v1/responses", joined("", c.members), c.field);
  std::string words;
  for (int i = 0; i < 400; ++i) words += "light ";
  expect_refused("/v1/responses", R"({"input":")" + words + R"("})", "input");
}

TEST(Refusals, OfAMessageBeginWithTheFieldAsItWasWritten) {
  const std::string base = std::string(kHi) + R"(,"max_tokens":5)";
  const Case cases[] = {
      {R"("temperature":-1)", "temperature"},
      {R"("stop_sequences":[""])", "stop_sequences"},
      {R"("output_config":{"effort":"extreme"})", "output_config.effort"},
      {R"("output_config":{"format":{"type":"json_schema","schema":{"unknown":1}}})", "output_config.format.schema"},
      {R"("tools":[{"name":"","input_schema":{}}])", "tools[0].name"},
      {R"("tools":[{"name":"f","strict":true,"input_schema":{"unknown":1}}])", "tools[0].input_schema"},
      {R"("tool_choice":{"type":"any"})", "tool_choice"},
  };
  for (const Case& c : cases) expect_refused("/v1/messages", joined(base, c.members), c.field);
  const Case conversations[] = {
      {R"("max_tokens":0,"messages":[{"role":"user","content":"a"}])", "max_tokens"},
      {R"("max_tokens":5,"system":"s","messages":[{"role":"user","content":"a"},{"role":"user","content":[{"type":"text","text":"b"},
           {"type":"tool_result","tool_use_id":"x","content":"y"}]}])",
       "messages[1].content[1]"},
      {R"("max_tokens":5,"messages":[{"role":"user"}])", "messages[0].content"},
      {R"("max_tokens":5,"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"x","name":"f","input":[]}]}])",
       "messages[0].content[0].input"},
  };
  for (const Case& c : conversations) expect_refused("/v1/messages", joined("", c.members), c.field);
}

TEST(Refusals, WhatNamesNoFieldHasNone) {
  EXPECT_EQ(server::field_of("request: a.b[0].c: missing"), "a.b[0].c");
  for (const char* none :
       {"request: byte 3: no JSON", "request: null, expected an object", "other: x: y", "request: a", ""})
    EXPECT_EQ(server::field_of(none), "") << none;
  const server::FieldNames names{.fields = {{"stop", "stop_sequences"}},
                                 .messages = {{"system"}, {"input[4]"}},
                                 .tools = {{"f: g", "tools[0].parameters"}}};
  EXPECT_EQ(names.of("stop: an empty string"), "request: stop_sequences: an empty string");
  EXPECT_EQ(names.of("sampling: stop: x"), "request: stop_sequences: x");
  EXPECT_EQ(names.of("messages[1].role: x"), "request: input[4].role: x");
  EXPECT_EQ(names.of("messages[2].role: x"), "messages[2].role: x") << "there is none";
  EXPECT_EQ(names.of("tools: f: g: #/a: x"), "request: tools[0].parameters: #/a: x");
  EXPECT_EQ(names.of("stopped for good"), "stopped for good");
  EXPECT_EQ(names.of("request: stop: x"), "request: stop: x");
}

// What is odd and yet has its place.
TEST(Refusals, DotsSlashesQuotesAndAnAssistantThatOnlyCalledOrThoughtAreTaken) {
  for (const char* name : {"a.b", "a/b", "a-b_c", "\\\"q\\\"", "\u00fcber"}) {
    const std::string tool = std::string(R"({"type":"function","function":{"name":")") + name + "\"}}";
    const Response r = shared().post("/v1/chat/completions", joined(kHi, R"("max_tokens":2,"tools":[)" + tool + "]"));
    EXPECT_EQ(r.status, 200) << name << r.body;
  }
  for (const char* said : {R"("tool_calls":[{"function":{"name":"f","arguments":"{}"}}])",
                           R"("content":null,"reasoning":"hm")", R"("content":"")"}) {
    const std::string messages = std::string(R"("messages":[{"role":"user","content":"a"},{"role":"assistant",)") +
                                 said + R"(},{"role":"user","content":""}])";
    EXPECT_EQ(shared().post("/apply-template", "{" + messages + "}").status, 200) << said;
  }
}

}  // namespace
}  // namespace kdelta
