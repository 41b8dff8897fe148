// The description of the server against the server: every endpoint, every field, both ways.
#include <gmock/gmock.h>

#include "frontends/server/openapi.h"
#include "kdelta/core/error.h"
#include "tests/server/server.h"

namespace kdelta {
namespace {

using test::at;
using test::json;
using test::Response;
using test::Server;
using testing::HasSubstr;
using testing::Not;

Server& shared() {
  static Server server;
  return server;
}

const Json& description() {
  static const Json all = json(shared().get("/openapi.json").body);
  return all;
}

std::string request_of(const std::string& method, const std::string& path, const std::string& body) {
  return method + " " + path +
         " HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" +
         body;
}

// Each described operation: f(method, path, operation).
template <class F>
void each_operation(F f) {
  for (const JsonMember& path : at(description(), "paths").object())
    for (const JsonMember& operation : path.value.object()) {
      std::string method = operation.key;
      for (char& c : method) c = static_cast<char>(std::toupper(c));
      f(method, path.key, operation.value);
    }
}

const Json& schema_behind(const Json& schema) {
  const Json* to = schema.find("$ref");
  if (to == nullptr) return schema;
  return at(description(), "components.schemas." + to->string().substr(std::string("#/components/schemas/").size()));
}

// The forms of an operation's body; none when it takes none.
std::vector<const Json*> body_schemas(const Json& operation) {
  if (operation.find("requestBody") == nullptr) return {};
  const Json& schema = schema_behind(*at(operation, "requestBody.content").find("application/json")->find("schema"));
  std::vector<const Json*> out;
  if (const Json* forms = schema.find("anyOf"))
    for (const Json& form : forms->array()) out.push_back(&schema_behind(form));
  else
    out.push_back(&schema);
  return out;
}

// The required fields' examples, and nothing else.
Json least_body(const Json& schema) {
  Json out = Json::Object{};
  if (const Json* required = schema.find("required"))
    for (const Json& name : required->array())
      out.set(name.string(), at(*schema.find("properties"), name.string() + ".example"));
  return out;
}

TEST(OpenApi, NothingButWhatIsDescribedIsRouted) {
  int operations = 0;
  each_operation([&](const std::string& method, const std::string& path, const Json&) {
    ++operations;
    std::string there = path;
    if (const size_t id = there.find("{id}"); id != std::string::npos) there.replace(id, 4, "unheard-of");
    const Response r = test::ask(shared().port(), request_of(method, there, ""));
    EXPECT_NE(r.status, 405) << method << " " << path;
    EXPECT_THAT(r.body, Not(HasSubstr("no such path"))) << method << " " << path;
    Response other = test::ask(shared().port(), request_of("DELETE", there, ""));
    EXPECT_EQ(other.status, 405) << path;
    EXPECT_THAT(other.headers["allow"], HasSubstr(method));
  });
  EXPECT_GE(operations, 12);
  // The table is the router: a path that is not in it cannot be served.
  EXPECT_EQ(shared().get("/v1/embeddings").status, 404);
  EXPECT_EQ(shared().post("/v1/requests/a/b/cancel", "").status, 404);
  EXPECT_EQ(shared().post("/v1/requests//cancel", "").status, 404);
}

TEST(OpenApi, EveryDescribedFieldIsAcceptedAndNoOther) {
  int64_t fields = 0;
  each_operation([&](const std::string& method, const std::string& path, const Json& operation) {
    const auto send = [&](const Json& body) {
      return test::ask(shared().port(), request_of(method, path, json_text(body)));
    };
    for (const Json* schema : body_schemas(operation)) {
      const Json& properties = *schema->find("properties");
      for (const JsonMember& field : properties.object()) {
        ++fields;
        const Json* example = field.value.find("example");
        ASSERT_NE(example, nullptr) << path << " " << field.key;
        Json body = least_body(*schema);
        if (properties.find("max_tokens") != nullptr) body.set("max_tokens", 1);
        if (field.key == "top_logprobs" && schema->find("properties")->find("logprobs") != nullptr)
          body.set("logprobs", true);
        body.set(field.key, *example);
        const Response r = send(body);
        EXPECT_EQ(r.status, 200) << path << " " << json_text(body) << r.body;
      }
      Json other = least_body(*schema);
      other.set("unheard_of", 1);
      EXPECT_EQ(send(other).status, 400) << path;
    }
  });
  EXPECT_GT(fields, 80);
}

std::string refusal_of(const std::string& body) {
  try {
    server::refuse_undescribed(json(body), "ChatRequest");
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(OpenApi, AFieldThatIsNotDescribedIsRefusedWhereverItIs) {
  EXPECT_EQ(refusal_of(R"({"messages":[{"role":"user","content":"a"}],"logit_bias":{"5":1},"user":{"x":[{"y":1}]}})"),
            "");
  EXPECT_EQ(refusal_of(R"({"tools":[{"function":{"parameters":{"any":{"thing":1}}}}]})"), "");
  for (const auto& [body, field] :
       {std::pair{R"({"a":1})", "a:"},
        {R"({"messages":[{"role":"user"},{"b":1}]})", "messages[1].b:"},
        {R"({"messages":[{"content":[{"type":"text","c":1}]}]})", "messages[0].content[0].c:"},
        {R"({"messages":[{"tool_calls":[{"function":{"d":1}}]}]})", "messages[0].tool_calls[0].function.d:"},
        {R"({"stream_options":{"e":1}})", "stream_options.e:"},
        {R"({"response_format":{"json_schema":{"f":1}}})", "response_format.json_schema.f:"}})
    EXPECT_THAT(refusal_of(body), HasSubstr(std::string("request: ") + field)) << body;
}

TEST(OpenApi, EveryReferenceLeadsSomewhere) {
  const std::string text = json_text(description());
  const std::string begin = "\"$ref\":\"#/components/schemas/";
  int references = 0;
  for (size_t i = text.find(begin); i != std::string::npos; i = text.find(begin, i + 1)) {
    const size_t name = i + begin.size();
    EXPECT_NE(at(description(), "components.schemas").find(text.substr(name, text.find('"', name) - name)), nullptr);
    ++references;
  }
  EXPECT_GT(references, 20);
}

}  // namespace
}  // namespace kdelta
