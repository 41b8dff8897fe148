// What a mask costs, by grammar, over a whole vocabulary: grammar_bench TIKTOKEN_MODEL_FILE. Every answer follows
// random tokens that the mask allows; the second pass over the same answers finds every mask kept. Times in
// microseconds.
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <random>

#include "kdelta/core/error.h"
#include "kdelta/io/grammar/gbnf.h"
#include "kdelta/io/grammar/json_schema.h"
#include "kdelta/io/grammar/matcher.h"
#include "kdelta/io/grammar/regex.h"

namespace {

using namespace kdelta;
using namespace kdelta::grammar;

double now() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e6 + static_cast<double>(t.tv_nsec) / 1e3;
}
double microseconds(double since) {
  return now() - since;
}

// Lines of base64 and a rank.
std::vector<std::string> read_ranks(const char* path) {
  std::vector<std::string> out;
  std::ifstream in(path);
  for (std::string text, rank; in >> text >> rank;) {
    std::string bytes;
    uint32_t bits = 0;
    int have = 0;
    for (const char c : text) {
      constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
      if (c == '=') break;
      bits = bits << 6 | static_cast<uint32_t>(kDigits.find(c));
      if ((have += 6) >= 8) bytes += static_cast<char>(bits >> (have -= 8) & 0xFF);
    }
    out.push_back(bytes);
  }
  return out;
}

struct Case {
  const char* name;
  Grammar (*make)();
};

Grammar of_schema(const char* text) {
  Grammar g("json_schema");
  const RuleId root = g.rule("");
  g.define(root, g.call(read_json_schema(g, text)));
  return g;
}

const Case kCases[] = {
    {"json_object",
     [] {
       Grammar g("json_object");
       const RuleId root = g.rule("");
       g.define(root, g.call(json_object_rule(g)));
       return g;
     }},
    {"person",
     [] {
       return of_schema(
           R"({"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer","minimum":0,"maximum":150},
         "email":{"type":"string","format":"email"},"tags":{"type":"array","items":{"type":"string"}},
         "address":{"type":"object","properties":{"street":{"type":"string"},"city":{"type":"string"},"zip":{"type":"string","pattern":"^[0-9]{5}$"}},
         "required":["street","city","zip"],"additionalProperties":false},"kind":{"enum":["customer","supplier","other"]}},
         "required":["name","age","email","tags","address","kind"],"additionalProperties":false})");
     }},
    {"tree",
     [] {
       return of_schema(
           R"({"$defs":{"n":{"type":"object","properties":{"value":{"type":"number"},"children":{"type":"array","items":{"$ref":"#/$defs/n"}}},
         "required":["value","children"],"additionalProperties":false}},"$ref":"#/$defs/n"})");
     }},
    {"string of 200", [] { return of_schema(R"({"type":"string","minLength":100,"maxLength":200})"); }},
    {"regex date",
     [] {
       Grammar g("regex");
       const RuleId root = g.rule("");
       g.define(root, read_regex(g, "regex", "(\\d{4}-\\d{2}-\\d{2}, )*end", Anchors::whole,
                                 [&](const CharSet& set) { return g.chars(set); }));
       return g;
     }},
    {"gbnf arithmetic",
     [] {
       return parse_gbnf(
           "root ::= expr \"=\" num\nexpr ::= term ([-+*/] term)*\nterm ::= num | \"(\" expr \")\"\nnum ::= [0-9]+");
     }},
};

void print(const char* pass, std::vector<double>& times) {
  std::sort(times.begin(), times.end());
  const auto at = [&](double q) { return times[static_cast<size_t>(q * static_cast<double>(times.size() - 1))]; };
  double sum = 0;
  for (const double t : times) sum += t;
  std::printf("  %-7s masks %6zu  mean %8.2f  median %8.2f  p99 %8.2f  most %8.2f\n", pass, times.size(),
              sum / static_cast<double>(times.size()), at(0.5), at(0.99), times.back());
}

void run(const Case& c, const std::shared_ptr<const TokenTrie>& trie) {
  auto start = now();
  const auto program = std::make_shared<const Program>(c.make());
  std::printf("%s: compiled in %.0f us, %d positions\n", c.name, microseconds(start), program->nodes());
  const auto masker = std::make_shared<Masker>(program, trie);
  std::vector<uint32_t> bits(static_cast<size_t>(mask_words(trie->tokens())));
  std::vector<double> fresh, kept;
  std::mt19937_64 rng(1);
  std::vector<std::vector<int32_t>> answers;
  for (int a = 0; a < 30; ++a) {
    Matcher m(masker);
    std::vector<int32_t>& tokens = answers.emplace_back();
    while (tokens.size() < 60) {
      const int64_t made = masker->masks_made();
      start = now();
      m.follow(tokens);
      const bool some = m.mask(bits);
      const double t = microseconds(start);
      (masker->masks_made() > made ? fresh : kept).push_back(t);
      if (!some || (m.accepts() && rng() % 2 == 0)) break;
      std::vector<int32_t> allowed;
      for (int32_t t2 = 0; t2 < trie->tokens(); ++t2)
        if ((bits[static_cast<size_t>(t2) / 32] >> t2 % 32 & 1) != 0) allowed.push_back(t2);
      // Half the time something short, so that strings end.
      int32_t token = allowed[rng() % allowed.size()];
      for (int i = 0; i < 40 && rng() % 2 == 0 && trie->text(token)[0] != '"'; ++i)
        token = allowed[rng() % allowed.size()];
      tokens.push_back(token);
    }
  }
  for (const std::vector<int32_t>& answer : answers) {
    Matcher m(masker);
    for (size_t n = 0; n <= answer.size(); ++n) {
      start = now();
      m.follow(std::span(answer).first(n));
      (void)m.mask(bits);
      kept.push_back(microseconds(start));
    }
  }
  print("made", fresh);
  print("kept", kept);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: grammar_bench TIKTOKEN_MODEL_FILE\n");
    return 2;
  }
  try {
    const std::vector<std::string> texts = read_ranks(argv[1]);
    const std::vector<std::string_view> views(texts.begin(), texts.end());
    const auto start = now();
    const auto trie = std::make_shared<const TokenTrie>(views, std::span<const int32_t>());
    std::printf("%zu tokens, tree of %zu nodes made in %.0f ms, %.1f MB\n", texts.size(), trie->tree().nodes.size(),
                microseconds(start) / 1000, static_cast<double>(trie->bytes()) / 1e6);
    for (const Case& c : kCases) run(c, trie);
  } catch (const Error& e) {
    std::fprintf(stderr, "grammar_bench: %s\n", e.what());
    return 1;
  }
}
