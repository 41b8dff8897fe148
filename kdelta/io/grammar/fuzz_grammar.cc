// Any text as GBNF, regex or JSON Schema: refused with an Error whose message is UTF-8, or a grammar whose masks are
// what reading token by token says, in bounded work: a token of the mask leads to a state that is not dead, any other
// to a dead one.
#include "kdelta/core/check.h"
#include "kdelta/io/fuzz_input.h"
#include "kdelta/io/grammar/json_schema.h"
#include "kdelta/io/grammar/regex.h"
#include "kdelta/io/grammar/test_vocabulary.h"
#include "kdelta/io/json.h"

namespace {

using namespace kdelta;
using namespace kdelta::grammar;

const TestVocabulary& vocabulary() {
  static const TestVocabulary v = [] {
    std::vector<std::string> texts = TestVocabulary::all_bytes();
    for (const char* more : {"ab", "abc", "\": ", "{\"", "\"}", "12", "\\u", "\u00e9", "\"a\":", "aaaa", "]]"})
      texts.push_back(more);
    return TestVocabulary(texts, 2);
  }();
  return v;
}

Grammar grammar_of(size_t kind, std::string_view text) {
  if (kind == 0) return parse_gbnf(text);
  Grammar g(kind == 1 ? "regex" : "json_schema");
  const RuleId root = g.rule("");
  const auto write = [&](const CharSet& set) { return g.chars(set); };
  if (kind == 2) {
    g.define(root, g.call(read_json_schema(g, text)));
  } else {
    const Anchors anchors = text.size() % 2 == 0 ? Anchors::whole : Anchors::search;
    g.define(root, read_regex(g, "regex", text, anchors, write));
  }
  return g;
}

void follow(Masker& masker, fuzz::Input& choices) {
  const auto tokens = static_cast<int32_t>(vocabulary().texts.size());
  std::vector<uint32_t> bits = vocabulary().bits();
  Masker::State s = masker.start();
  for (int step = 0; step < 12; ++step) {
    const bool some = masker.mask(s, bits);
    std::vector<int32_t> allowed;
    for (int32_t t = 0; t < tokens; ++t) {
      const bool want = masker.next(s, t) != Automaton::kDead;
      KDELTA_CHECK(has(bits, t) == want, "token ", t, " at step ", step);
      if (want) allowed.push_back(t);
    }
    KDELTA_CHECK(some == !allowed.empty());
    KDELTA_CHECK(some || masker.accepts(s), "a dead end with every byte a token");
    if (!some) return;
    s = masker.next(s, allowed[choices.pick(allowed.size())]);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input in(data, size);
  const size_t kind = in.pick(3);
  const std::string_view choices = in.bytes(12);
  try {
    const Grammar g = grammar_of(kind, in.rest());
    Masker masker(std::make_shared<const Program>(g), vocabulary().trie, {.kept_bytes = 8 << 20, .work = 1'000'000});
    fuzz::Input picks(reinterpret_cast<const uint8_t*>(choices.data()), choices.size());
    follow(masker, picks);
  } catch (const Error& e) {
    KDELTA_CHECK(e.code() == ErrorCode::invalid_argument || e.code() == ErrorCode::failed, e.what());
    KDELTA_CHECK(is_utf8(e.what()), e.what());
  }
  return 0;
}
