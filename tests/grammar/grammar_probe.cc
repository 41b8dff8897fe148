// For oracle.py: reads lines {"schema", "seed", "samples", "accept": [TEXT, ...]}, answers each with {"samples",
// "accepts", "unfinished"}: texts made by choosing at random among the tokens that the mask allows, and which texts of
// `accept` the schema's grammar reads, or with {"error"}.
#include <algorithm>
#include <iostream>
#include <random>

#include "kdelta/core/error.h"
#include "kdelta/io/grammar/json_schema.h"
#include "kdelta/io/grammar/test_vocabulary.h"
#include "kdelta/io/json_reader.h"

namespace {

using namespace kdelta;
using namespace kdelta::grammar;

constexpr size_t kLong = 200, kMostTokens = 2000;  // from kLong bytes on a text is led to its end

std::vector<std::string> vocabulary() {
  std::vector<std::string> all = TestVocabulary::all_bytes();
  for (const char* more : {"\": ", "\": \"", "\", \"", "{\"",    "\"}",        "],",  "}, ", "[[", "[]",
                           "{}",   "true",   "false",  "null",   "ab",         "0.",  "12",  "-1", "\\u00",
                           "\\\"", "\n  ",   ", ",     "\u00e9", "\U0001F600", "a\"", "\"a", "k0", "k1\""})
    all.push_back(more);
  return all;
}

// Whatever closes something, and digits, of which numbers are done.
bool leads_to_the_end(const std::string& t) {
  return t == "\"" || t == "}" || t == "]" || t == "null" || t == "[]" || t == "{}" ||
         (t.size() == 1 && t[0] >= '0' && t[0] <= '9');
}

// Empty when the text did not end.
std::string sample(const TestVocabulary& v, const std::shared_ptr<Masker>& masker, std::mt19937_64& rng) {
  Matcher matcher(masker);
  std::vector<int32_t> tokens, allowed, closing;
  std::vector<uint32_t> bits = v.bits();
  std::string text;
  while (tokens.size() < kMostTokens) {
    matcher.follow(tokens);
    const bool some = matcher.mask(bits);
    if (matcher.accepts() && (!some || rng() % 3 == 0)) return text;
    if (!some) return "a dead end behind " + text;
    allowed.clear(), closing.clear();
    for (int32_t t = 0; t < static_cast<int32_t>(v.texts.size()); ++t) {
      if (!has(bits, t)) continue;
      allowed.push_back(t);
      if (leads_to_the_end(v.texts[static_cast<size_t>(t)])) closing.push_back(t);
    }
    // Bytes of many characters would crowd out all others.
    const bool close = !closing.empty() && (text.size() > kLong ? rng() % 8 != 0 : rng() % 6 == 0);
    const std::vector<int32_t>& of = close ? closing : allowed;
    tokens.push_back(of[rng() % of.size()]);
    text += v.texts[static_cast<size_t>(tokens.back())];
  }
  return "";
}

Json answer(const JsonReader& asked, const TestVocabulary& v) {
  Grammar g("json_schema");
  const RuleId root = g.rule("");
  g.define(root, g.call(read_json_schema(g, json_text(*asked.raw("schema")))));
  const auto program = std::make_shared<const Program>(g);
  const auto masker = std::make_shared<Masker>(program, v.trie);
  std::mt19937_64 rng(static_cast<uint64_t>(asked.get<int64_t>("seed")));
  Json::Array samples, accepts;
  int64_t unfinished = 0;
  for (int64_t i = asked.get<int64_t>("samples"); i > 0; --i) {
    const std::string text = sample(v, masker, rng);
    if (text.empty())
      ++unfinished;
    else
      samples.push_back(text);
  }
  Automaton automaton(program);
  for (const std::string& text : asked.get<std::vector<std::string>>("accept")) {
    Automaton::State s = automaton.start();
    for (const char c : text) s = automaton.next(s, static_cast<uint8_t>(c));
    accepts.push_back(automaton.accepts(s));
  }
  return Json::Object{{"samples", std::move(samples)}, {"accepts", std::move(accepts)}, {"unfinished", unfinished}};
}

}  // namespace

int main() {
  const TestVocabulary v(vocabulary());
  for (std::string line; std::getline(std::cin, line);) {
    Json out;
    try {
      out = answer(JsonReader(parse_json(line, {"line"}), {"line"}), v);
    } catch (const Error& e) {
      out = Json::Object{{"error", std::string(e.what())}};
    }
    std::cout << json_text(out) << std::endl;
  }
}
