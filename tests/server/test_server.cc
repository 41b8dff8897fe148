// The endpoints of the OpenAI API, with the small model: what a client sees, streaming and not.
#include <gmock/gmock.h>

#include "frontends/server/answer_format.h"
#include "tests/server/server.h"

namespace kdelta {
namespace {

using namespace std::chrono_literals;
using test::at;
using test::Client;
using test::events;
using test::json;
using test::Response;
using test::Server;
using testing::ElementsAre;
using testing::HasSubstr;

// One server for the tests that ask and change nothing.
Server& shared() {
  static Server server;
  return server;
}

std::string completion(const std::string& more, bool stream = false) {
  return R"({"prompt":"In the beginning","temperature":0)" + std::string(stream ? R"(,"stream":true)" : "") +
         (more.empty() ? "" : ",") + more + "}";
}

std::string chat(const std::string& more, bool stream = false) {
  return R"({"messages":[{"role":"user","content":"What does light mean?"}],"temperature":0)" +
         std::string(stream ? R"(,"stream":true)" : "") + (more.empty() ? "" : ",") + more + "}";
}

// The choices of a stream joined into one reply of the form that comes without a stream; checks what every stream
// promises.
struct Joined {
  std::map<int64_t, std::string> text, reasoning, finish;
  std::map<int64_t, Json> logprobs;
  Json usage;
};

void join_logprobs(Json& all, const Json& more) {
  if (all.is_null()) {
    all = more;
    return;
  }
  for (const JsonMember& m : more.object())
    if (m.value.kind() == Json::Kind::array)
      for (Json& list = *const_cast<Json*>(all.find(m.key)); const Json& item : m.value.array())
        list.array().push_back(item);
}

Joined join(const Response& r, bool is_chat) {
  Joined out;
  EXPECT_EQ(r.status, 200) << r.body;
  EXPECT_TRUE(r.whole);
  std::vector<std::string> all = events(r.body);
  EXPECT_EQ(all.back(), "[DONE]");
  all.pop_back();
  for (const std::string& e : all) {
    const Json chunk = json(e);
    if (const Json* usage = chunk.find("usage"); usage != nullptr && !usage->is_null()) out.usage = *usage;
    for (const Json& choice : at(chunk, "choices").array()) {
      const int64_t i = at(choice, "index").integer();
      EXPECT_FALSE(out.finish.contains(i)) << "the last chunk of a choice has its finish_reason";
      if (is_chat) {
        const Json& delta = at(choice, "delta");
        if (const Json* t = delta.find("content")) out.text[i] += t->string();
        if (const Json* t = delta.find("reasoning_content")) out.reasoning[i] += t->string();
      } else {
        out.text[i] += at(choice, "text").string();
      }
      if (!at(choice, "logprobs").is_null()) join_logprobs(out.logprobs[i], at(choice, "logprobs"));
      if (!at(choice, "finish_reason").is_null()) out.finish[i] = at(choice, "finish_reason").string();
    }
  }
  return out;
}

TEST(Server, ACompletionIsWhatTheEngineGenerates) {
  GenerateOptions o;
  o.temperature = 0;
  o.max_tokens = 12;
  Engine alone = Engine::load(test::tiny_model(1));
  const Generation want = alone.generate(alone.tokenize("In the beginning"), o);
  const Json got = json(shared().post("/v1/completions", completion(R"("max_tokens":12)")).body);
  EXPECT_EQ(at(got, "choices.0.text").string(), want.text);
  EXPECT_EQ(at(got, "choices.0.finish_reason").string(), "length");
  EXPECT_EQ(at(got, "object").string(), "text_completion");
  EXPECT_EQ(at(got, "model").string(), "tiny");
  EXPECT_EQ(at(got, "usage.prompt_tokens").integer(), want.prompt_tokens);
  EXPECT_EQ(at(got, "usage.completion_tokens").integer(), 12);
  EXPECT_EQ(at(got, "usage.total_tokens").integer(), want.prompt_tokens + 12);
}

// The lesson of many reports: one path, so a stream cannot say otherwise.
TEST(Server, AStreamJoinedIsTheAnswerWithoutAStreamInEveryCombination) {
  for (const bool is_chat : {false, true})
    for (const char* logprobs : {"", "with"})
      for (const char* n : {"", R"("n":2,"temperature":0.9,"seed":5)"})
        for (const std::string stop : {"", R"("stop":["e","zzz"])"}) {
          std::string more = R"("max_tokens":14)";
          if (*logprobs) more += is_chat ? R"(,"logprobs":true,"top_logprobs":2)" : R"(,"logprobs":2)";
          std::string body = is_chat ? chat(more) : completion(more);
          if (*n) body = body.replace(body.find(R"("temperature":0)"), 15, n);
          if (!stop.empty()) body.insert(1, stop + ",");
          const std::string path = is_chat ? "/v1/chat/completions" : "/v1/completions";
          const Response whole = shared().post(path, body);
          ASSERT_EQ(whole.status, 200) << whole.body;
          const Json want = json(whole.body);
          body.insert(1, R"("stream":true,"stream_options":{"include_usage":true},)");
          Joined got = join(shared().post(path, body), is_chat);
          const auto& choices = at(want, "choices").array();
          ASSERT_EQ(choices.size(), *n ? 2u : 1u);
          for (size_t i = 0; i < choices.size(); ++i) {
            const auto k = static_cast<int64_t>(i);
            EXPECT_EQ(got.text[k], at(choices[i], is_chat ? "message.content" : "text").string()) << body;
            EXPECT_EQ(got.finish[k], at(choices[i], "finish_reason").string()) << body;
            EXPECT_EQ(got.logprobs[k], at(choices[i], "logprobs")) << body;
            EXPECT_EQ(at(choices[i], "logprobs").is_null(), !*logprobs);
            const Json* reasoning = is_chat ? at(choices[i], "message").find("reasoning_content") : nullptr;
            EXPECT_EQ(got.reasoning[k], reasoning == nullptr ? "" : reasoning->string()) << body;
          }
          for (const char* field : {"prompt_tokens", "completion_tokens", "total_tokens"})
            EXPECT_EQ(at(got.usage, field), at(want, std::string("usage.") + field)) << body;
        }
}

TEST(Server, ALogprobIsOfEveryGeneratedToken) {
  const Json c = json(shared().post("/v1/completions", completion(R"("max_tokens":5,"logprobs":0)")).body);
  EXPECT_EQ(at(c, "choices.0.logprobs.tokens").array().size(), 5u);
  std::string text;
  for (const Json& t : at(c, "choices.0.logprobs.tokens").array()) text += t.string();
  EXPECT_EQ(text, at(c, "choices.0.text").string());
  const Json k =
      json(shared().post("/v1/chat/completions", chat(R"("max_tokens":5,"logprobs":true,"top_logprobs":3)")).body);
  ASSERT_EQ(at(k, "choices.0.logprobs.content").array().size(), 5u);
  EXPECT_EQ(at(k, "choices.0.logprobs.content.0.top_logprobs").array().size(), 3u);
  EXPECT_EQ(at(k, "choices.0.logprobs.content.0.token"), at(k, "choices.0.logprobs.content.0.top_logprobs.0.token"))
      << "greedy";
}

// F1 over HTTP: nothing of a stop string is sent, whatever pieces the text comes in.
TEST(Server, AStopStringIsNeverSentAndEndsTheAnswer) {
  const std::string text =
      at(json(shared().post("/v1/completions", completion(R"("max_tokens":20)")).body), "choices.0.text").string();
  ASSERT_GT(text.size(), 30u);
  for (size_t begin = 5; begin < 25; begin += 5)
    for (const size_t length : {size_t{1}, size_t{3}, size_t{7}}) {
      const std::string stop = text.substr(begin, length);
      std::string quoted;
      append_json_string(quoted, stop);
      for (const bool stream : {false, true}) {
        const Response r = shared().post("/v1/completions", completion(R"("max_tokens":20,"stop":)" + quoted, stream));
        const Json whole = stream ? Json() : json(r.body);
        Joined joined = stream ? join(r, false) : Joined{};
        EXPECT_EQ(stream ? joined.text[0] : at(whole, "choices.0.text").string(), text.substr(0, text.find(stop)));
        EXPECT_EQ(stream ? joined.finish[0] : at(whole, "choices.0.finish_reason").string(), "stop");
      }
    }
  EXPECT_EQ(shared().post("/v1/completions", completion(R"("max_tokens":2,"stop":[])")).status, 200);
  EXPECT_EQ(shared().post("/v1/completions", completion(R"("max_tokens":2,"stop":["1","2","3","4","5"])")).status, 200);
  EXPECT_EQ(shared().post("/v1/completions", completion(R"("max_tokens":2,"stop":[""])")).status, 400);
}

// F3.
TEST(Server, LimitsAreHonouredAndWhatExceedsThemIsRefusedBeforeAnyStream) {
  const auto tokens = [](const std::string& more) {
    const Response r = shared().post("/v1/completions", completion(more));
    return r.status == 200 ? at(json(r.body), "usage.completion_tokens").integer() : -r.status;
  };
  EXPECT_EQ(tokens(R"("max_tokens":1)"), 1);
  EXPECT_EQ(tokens(R"("max_completion_tokens":3)"), 3);
  EXPECT_EQ(tokens(R"("max_tokens":4,"max_completion_tokens":2)"), 2);
  EXPECT_EQ(tokens(R"("max_tokens":2,"max_completion_tokens":4)"), 2);
  EXPECT_EQ(tokens(R"("max_tokens":null)"), 16);
  EXPECT_EQ(tokens(""), 16);
  EXPECT_EQ(tokens(R"("max_tokens":0)"), -400);
  EXPECT_EQ(tokens(R"("max_tokens":-1)"), -400);
  const auto ids = [](int64_t n) {
    std::string list = "[3";
    for (int64_t i = 1; i < n; ++i) list += ",3";
    return R"({"prompt":)" + list + R"(],"max_tokens":1000000000,"ignore_eos":true)";
  };
  for (const std::string stream : {"}", R"(,"stream":true})"}) {
    EXPECT_EQ(shared().post("/v1/completions", ids(255) + stream).status, 200);
    for (const int64_t n : {256, 257, 2000}) {
      const Response r = shared().post("/v1/completions", ids(n) + stream);
      EXPECT_EQ(r.status, 400) << n;
      EXPECT_EQ(at(json(r.body), "error.param").string(), "prompt");
    }
  }
  const Json last = json(shared().post("/v1/completions", ids(250) + "}").body);
  EXPECT_EQ(at(last, "usage.completion_tokens").integer(), 6);
  EXPECT_EQ(at(last, "choices.0.finish_reason").string(), "length");
}

TEST(Server, WhatItDoesNotHonourIsRefusedByName) {
  const std::pair<std::string, std::string> completions[] = {
      {R"("prompt":"")", "prompt"},
      {R"("prompt":[5000000])", "prompt"},
      {R"("prompt":[-1])", "prompt"},
      {R"("prompt":{"a":1})", "prompt"},
      {R"("prompt":[])", "prompt"},
      {R"("temperature":"hot")", "temperature"},
      {R"("temperature":-1)", "temperature"},
      {R"("top_p":2)", "top_p"},
      {R"("logit_bias":{"x":1})", "logit_bias"},
      {R"("logit_bias":{"99999":1})", "logit_bias"},
      {R"("logprobs":99)", "logprobs"},
      {R"("n":0)", "n"},
      {R"("n":1000)", "n"},
      {R"("best_of":3)", "best_of"},
      {R"("suffix":"x")", "suffix"},
      {R"("response_format":{"type":"yaml"})", "response_format.type"},
      {R"("structured_outputs":{"regex":"a","choice":["b"]})", "structured_outputs"},
      {R"("guided_json":{})", "guided_json"},
      {R"("unheard_of":1)", "unheard_of"},
      {R"("stream_options":{"include_usage":true})", "stream_options"},
  };
  for (const auto& [field, name] : completions) {
    const std::string body = field.starts_with(R"("prompt")")
                                 ? "{" + field + "}"
                                 : completion(field).replace(completion("").size() - 1, 1, ",");
    const Response r = shared().post("/v1/completions", body);
    EXPECT_EQ(r.status, 400) << field;
    const Json error = json(r.body);
    EXPECT_EQ(at(error, "error.type").string(), "invalid_request_error");
    EXPECT_EQ(at(error, "error.param"), Json(name)) << r.body;
  }
  for (const std::string field : {R"("tool_choice":"required")", R"("tool_choice":{"type":"function"})",
                                  R"("top_logprobs":2)", R"("messages":[])", R"("tools":[null])", R"("tools":[[1]])",
                                  R"("tools":{"a":1})", R"("reasoning_effort":"extreme")", R"("functions":[])",
                                  R"("messages":[{"role":"user","content":[{"type":"image_url"}]}])"}) {
    const std::string body = field.starts_with(R"("messages")") ? "{" + field + "}" : chat(field);
    EXPECT_EQ(shared().post("/v1/chat/completions", body).status, 400) << field;
  }
  for (const std::string broken :
       {"", "{", "[]", "nonsense", "{\"prompt\":\"\xff\"}", "{\"prompt\":\"a\",\"prompt\":\"b\"}"})
    EXPECT_EQ(shared().post("/v1/completions", broken).status, 400) << broken;
  std::string deep;
  for (int i = 0; i < 100'000; ++i) deep += "[";
  EXPECT_EQ(shared().post("/v1/completions", deep).status, 400);
  const Response model = shared().post("/v1/completions", completion(R"("model":"another")"));
  EXPECT_EQ(model.status, 404);
  EXPECT_EQ(at(json(model.body), "error.code").string(), "model_not_found");
}

TEST(Server, AnAnswerMustBeWhatItsFormatSays) {
  const std::string schema =
      R"("max_tokens":60,"response_format":{"type":"json_schema","json_schema":{"name":"n","strict":true,"schema":)"
      R"({"type":"object","properties":{"ok":{"type":"boolean"}},"required":["ok"],"additionalProperties":false}}})";
  for (const bool is_chat : {false, true}) {
    const Json r = json(shared()
                            .post(is_chat ? "/v1/chat/completions" : "/v1/completions",
                                  is_chat ? chat(R"("thinking":false,)" + schema) : completion(schema))
                            .body);
    EXPECT_EQ(at(r, "choices.0.finish_reason").string(), "stop");
    const Json answer = json(at(r, is_chat ? "choices.0.message.content" : "choices.0.text").string());
    EXPECT_EQ(at(answer, "ok").kind(), Json::Kind::boolean);
  }
  const Json c =
      json(shared().post("/v1/completions", completion(R"("structured_outputs":{"choice":["yes","no"]})")).body);
  EXPECT_THAT(at(c, "choices.0.text").string(), testing::AnyOf("yes", "no"));
  const Response unknown = shared().post(
      "/v1/completions",
      completion(
          R"("response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{"type":"object","unheard":1}}})"));
  EXPECT_EQ(unknown.status, 400);
  EXPECT_THAT(unknown.body, HasSubstr("unheard"));
}

TEST(Server, SeveralPromptsAreAnsweredEachAsAlone) {
  const auto text = [](const std::string& prompt, int64_t i) {
    const Json r =
        json(shared().post("/v1/completions", R"({"prompt":)" + prompt + R"(,"max_tokens":6,"seed":3,"n":2})").body);
    return at(r, "choices." + std::to_string(i) + ".text").string();
  };
  const std::string both = R"(["In the beginning","The light of"])";
  EXPECT_EQ(text(both, 0), text(R"("In the beginning")", 0));
  EXPECT_EQ(text(both, 1), text(R"("In the beginning")", 1));
  EXPECT_EQ(text(both, 2), text(R"("The light of")", 0));
  EXPECT_EQ(text(both, 3), text(R"(["The light of"])", 1));
  const Json r =
      json(shared()
               .post("/v1/completions", R"({"prompt":"In the beginning","max_tokens":3,"echo":true,"temperature":0})")
               .body);
  EXPECT_THAT(at(r, "choices.0.text").string(), testing::StartsWith("In the beginning "));
}

TEST(Server, TheNextTurnOfAChatReusesTheOneBefore) {
  std::string long_text;
  for (int i = 0; i < 40; ++i) long_text += "light and word ";
  const std::string first =
      R"({"messages":[{"role":"system","content":")" + long_text + R"("},{"role":"user","content":"Hi"})";
  const std::string rest = R"(],"max_tokens":2,"temperature":0})";
  const Json a = json(shared().post("/v1/chat/completions", first + rest).body);
  const Json b =
      json(shared()
               .post("/v1/chat/completions",
                     first + R"(,{"role":"assistant","content":"Yes"},{"role":"user","content":"Go on"})" + rest)
               .body);
  EXPECT_EQ(at(a, "usage.prompt_tokens_details.cached_tokens").integer(), 0);
  EXPECT_GT(at(b, "usage.prompt_tokens_details.cached_tokens").integer(), 63);
}

TEST(Server, TextBecomesTokensAndBack) {
  const Json t = json(shared().post("/tokenize", R"({"prompt":"In the beginning","with_pieces":true})").body);
  EXPECT_EQ(at(t, "count").integer(), std::ssize(shared().engine().tokenize("In the beginning")));
  EXPECT_EQ(at(t, "tokens").array().size(), at(t, "pieces").array().size());
  const Json back = json(shared().post("/detokenize", R"({"tokens":)" + json_text(at(t, "tokens")) + "}").body);
  EXPECT_EQ(at(back, "prompt").string(), "In the beginning");
  const std::string messages = R"({"messages":[{"role":"user","content":"<|open|> is text"}]})";
  const Json prompt = json(shared().post("/apply-template", messages).body);
  EXPECT_THAT(at(prompt, "prompt").string(), HasSubstr("<|open|> is text"));
  EXPECT_EQ(at(prompt, "tokens"), at(json(shared().post("/tokenize", messages).body), "tokens"));
}

TEST(Server, AModelIsFoundByEachOfItsNames) {
  Server server({.names = {"tiny", "a/b c"}});
  const Json all = json(server.get("/v1/models").body);
  EXPECT_EQ(json(server.get("/v1/models/tiny").body), at(all, "data.0"));
  EXPECT_EQ(json(server.get("/v1/models/a%2Fb%20c").body), at(all, "data.1"));
  EXPECT_EQ(json(server.get("/v1/models/a/b%20c").body), at(all, "data.1"));
  const Response other = server.get("/v1/models/other");
  EXPECT_EQ(other.status, 404);
  EXPECT_EQ(at(json(other.body), "error.code").string(), "model_not_found");
}

TEST(Server, WhatIsNotThereIsSaid) {
  EXPECT_EQ(shared().get("/nothing").status, 404);
  EXPECT_EQ(shared().get("/v1/completions").status, 405);
  EXPECT_EQ(shared().get("/v1/completions").headers["allow"], "POST, OPTIONS");
  EXPECT_EQ(shared().post("/health", "").status, 405);
  EXPECT_EQ(shared().post("/v1/requests/unknown/cancel", "").status, 404);
  EXPECT_EQ(at(json(shared().get("/v1/models").body), "data.0.id").string(), "tiny");
  EXPECT_THAT(shared().get("/version").body, HasSubstr("version"));
}

// Found by fuzz_requests: it was said to be the server's fault.
TEST(Server, AnEndThatMinTokensBarsAndItsFormatAsksForIsTheRequestsFault) {
  for (const std::string stream : {"", R"("stream":true,)"}) {
    const Response r = shared().post("/v1/completions", "{" + stream +
                                                            R"("prompt":"In","max_tokens":40,"min_tokens":30,)"
                                                            R"("structured_outputs":{"choice":["a"]}})");
    EXPECT_EQ(r.status, stream.empty() ? 400 : 200) << r.body;
    const Json error = json(stream.empty() ? r.body : events(r.body).back());
    EXPECT_EQ(at(error, "error.param"), Json("min_tokens")) << r.body;
    EXPECT_EQ(at(error, "error.type"), Json("invalid_request_error"));
  }
}

TEST(Server, NumbersAreThoseThatWereMeant) {
  for (const float f : {0.7F, 0.95F, 1.F, 1e-7F, 3.4e38F}) {
    EXPECT_EQ(static_cast<float>(server::plain_number(f).number()), f);
    EXPECT_LE(json_text(server::plain_number(f)).size(), 8u) << json_text(server::plain_number(f));
  }
  const Json r = json(shared().post("/v1/completions", completion(R"("max_tokens":9)")).body);
  for (const JsonMember& m : at(r, "timings").object()) {
    const std::string text = json_text(m.value);
    const size_t dot = text.find('.');
    EXPECT_TRUE(dot == std::string::npos || text.size() - dot <= 4) << m.key << text;
  }
}

}  // namespace
}  // namespace kdelta
