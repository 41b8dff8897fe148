// Answers under a constraint, from a real model: what they may be, how they end, and that nothing else changes them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

// g++ 12 with sanitizers takes members of std::regex's own states for uninitialised.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <regex>
#pragma GCC diagnostic pop

#include "kdelta/api/engine.h"
#include "tests/support/op_test.h"

namespace kdelta {
namespace {

using test::error_of;
using testing::HasSubstr;

LoadOptions tiny(int64_t sequences = 1, int64_t drafts = 0) {
  LoadOptions o{.model = "models/tiny-k3"};
  o.threads = 2;
  o.max_length = 256;
  o.max_sequences = sequences;
  o.drafts = drafts;
  return o;
}

GenerateOptions under(Constraint::Kind kind, const std::string& text) {
  GenerateOptions o;
  o.temperature = 1;
  o.max_tokens = 30;
  o.constraint = Constraint{.kind = kind, .text = text};
  return o;
}

GenerateOptions choosing(std::vector<std::string> choices) {
  GenerateOptions o = under(Constraint::Kind::choice, "");
  o.constraint->choices = std::move(choices);
  return o;
}

constexpr char kDate[] = "[0-9]{4}-[0-9]{2}-[0-9]{2}( [a-z]{1,8})?";

TEST(Constraint, AnswersAreTextsOfItAndEndWhereTheyAreWhole) {
  Engine engine = Engine::load(tiny());
  const std::vector<int32_t> prompt = engine.tokenize("In the beginning ");
  for (uint64_t seed = 0; seed < 3; ++seed) {
    GenerateOptions o = under(Constraint::Kind::regex, kDate);
    o.seed = seed;
    const Generation date = engine.generate(prompt, o);
    EXPECT_EQ(date.finish_reason, "stop");
    EXPECT_TRUE(std::regex_match(date.text, std::regex(kDate))) << date.text;
    o = choosing({"yes", "yes, but", "no"});
    o.seed = seed;
    EXPECT_THAT(engine.generate(prompt, o).text, testing::AnyOf("yes", "yes, but", "no"));
    o = under(Constraint::Kind::grammar, "root ::= \"(\" root \")\" | [\u4e00-\u4e20]");
    o.seed = seed;
    const Generation nested = engine.generate(prompt, o);
    EXPECT_TRUE(nested.finish_reason == "length" || nested.text.back() != '(') << nested.text;
  }
}

TEST(Constraint, InAChatItIsOneOfTheContentAndThoughtIsFree) {
  Engine engine = Engine::load(tiny());
  for (const bool thinking : {false, true}) {
    GenerateOptions o = choosing({"good", "very good"});
    o.max_tokens = 200;
    o.temperature = 0.7f;
    int whole = 0;
    for (o.seed = 0; o.seed < 3; ++o.seed) {
      const ChatReply reply = engine.chat({{.role = "user", .content = "How was it?"}}, {.thinking = thinking}, o);
      EXPECT_TRUE(reply.calls.empty());
      if (reply.generation.finish_reason == "length") {  // lost in thought
        EXPECT_THAT(reply.content, testing::AnyOf("", "good", "very good"));
        continue;
      }
      ++whole;
      EXPECT_THAT(reply.content, testing::AnyOf("good", "very good"));
      EXPECT_TRUE(thinking || reply.reasoning.empty()) << reply.reasoning;
    }
    EXPECT_TRUE(whole > 0 || thinking);
  }
}

TEST(Constraint, AJsonAnswerIsValidUnderItsSchema) {
  Engine engine = Engine::load(tiny());
  GenerateOptions o =
      under(Constraint::Kind::json_schema,
            R"({"type":"object","properties":{"name":{"type":"string","maxLength":5},"age":{"type":"integer",
                               "minimum":0,"maximum":120},"tags":{"type":"array","items":{"enum":["a","b"]},"maxItems":3}},
                               "required":["name","age","tags"],"additionalProperties":false})");
  o.max_tokens = 100;
  const std::regex shape(
      R"(\{\s*"name":\s*"([^"\\]|\\.|\\u....){0,5}",\s*"age":\s*(-?0|[1-9][0-9]?|1[01][0-9]|120),\s*"tags":\s*\[\s*("[ab]"(,\s*"[ab]"){0,2})?\s*\]\s*\})");
  for (o.seed = 0; o.seed < 2; ++o.seed) {
    const Generation g = engine.generate(engine.tokenize("Who was it? "), o);
    EXPECT_EQ(g.finish_reason, "stop") << g.text;
    EXPECT_TRUE(std::regex_match(g.text, shape)) << g.text;
  }
}

TEST(Constraint, WithoutAnIdThatEndsItAnAnswerStopsWhereItIsWhole) {
  Engine engine = Engine::load(tiny());
  GenerateOptions o = choosing({"good"});
  o.ignore_eos = true;
  const Generation g = engine.generate(engine.tokenize("And God saw that it was"), o);
  EXPECT_EQ(g.finish_reason, "stop");
  EXPECT_EQ(g.text, "good");
}

TEST(Constraint, NoDraftAndNoCompanyChangesAnAnswer) {
  const std::vector<GenerateOptions> asked = {
      under(Constraint::Kind::regex, "(the [a-z]+, ){2,6}end"), choosing({"the end", "the earth", "the"}),
      under(Constraint::Kind::grammar, "root ::= (\"the earth was \" [a-z]+ \". \")+"), GenerateOptions{}};
  std::vector<Generation> alone;
  std::vector<GenerateTask> tasks;
  {
    Engine engine = Engine::load(tiny());
    for (size_t i = 0; i < 8; ++i) {
      tasks.push_back(
          {engine.tokenize("the earth was the earth was the earth was " + std::to_string(i)), asked[i % 4]});
      tasks.back().options.seed = i;
      tasks.back().options.temperature = i < 4 ? 0.0f : 0.8f;
      tasks.back().options.max_tokens = 24;
      alone.push_back(engine.generate(tasks.back().prompt, tasks.back().options));
    }
  }
  Engine engine = Engine::load(tiny(4, 4));
  size_t next = 0;
  engine.generate_many(
      [&](GenerateTask* task) {
        if (next == tasks.size()) return false;
        *task = tasks[next++];
        return true;
      },
      [&](int64_t n, Generation g) {
        EXPECT_EQ(g.error, "");
        EXPECT_EQ(g.tokens, alone[static_cast<size_t>(n)].tokens) << n << ": " << g.text;
        EXPECT_EQ(g.finish_reason, alone[static_cast<size_t>(n)].finish_reason) << n;
      });
  EXPECT_GT(engine.work().accepted_drafts, 0);
}

TEST(Constraint, ADeadEndEndsItsRequestAloneAndSaysSo) {
  Engine engine = Engine::load(tiny(2));
  const std::vector<int32_t> prompt = engine.tokenize("And the ");
  GenerateOptions banned = choosing({"z"});
  for (int32_t id = 0; id < engine.vocab_size(); ++id)
    if (engine.detokenize({id}) == "z") banned.logit_bias[id] = -INFINITY;
  std::vector<GenerateTask> tasks = {{prompt, banned}, {prompt, choosing({"waters"})}};
  size_t next = 0;
  std::vector<Generation> ended(2);
  engine.generate_many(
      [&](GenerateTask* task) {
        if (next == tasks.size()) return false;
        *task = tasks[next++];
        return true;
      },
      [&](int64_t n, Generation g) { ended[static_cast<size_t>(n)] = std::move(g); });
  EXPECT_EQ(ended[0].finish_reason, "error");
  EXPECT_EQ(ended[0].error, "no usable logit among the tokens that its constraint allows");
  EXPECT_EQ(ended[1].text, "waters");
}

TEST(Constraint, IsRefusedByItsFieldBeforeAnythingRuns) {
  EXPECT_EQ(error_of([] { check_options(under(Constraint::Kind::regex, "a(?=b)")); }),
            "regex: column 2: look-ahead is not supported");
  EXPECT_EQ(error_of([] { check_options(under(Constraint::Kind::grammar, "root ::= x")); }),
            "grammar: column 10: rule 'x' is not defined");
  EXPECT_EQ(error_of([] { check_options(under(Constraint::Kind::json_schema, R"({"items":{"contains":{}}})")); }),
            "json_schema: #/items/contains: this keyword is not supported");
  EXPECT_EQ(error_of([] { check_options(choosing({})); }), "choice: no texts to choose from");
  EXPECT_EQ(error_of([] { check_options(choosing({"a", "\xFF"})); }), "choice[1]: '\\xff' is not UTF-8");
  Engine engine = Engine::load(tiny());
  EXPECT_EQ(error_of([&] {
              (void)engine.start({1, 2}, choosing({"a"}), 1);
            }),
            "constraint: a request with one cannot be handed out");
  EXPECT_THAT(error_of([&] {
                (void)engine.generate({1, 2}, under(Constraint::Kind::regex, "("));
              }),
              HasSubstr("regex: column 2"));
}

}  // namespace
}  // namespace kdelta
