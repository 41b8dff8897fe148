#include "kdelta/api/constraints.h"

#include <algorithm>

#include "kdelta/core/check.h"
#include "kdelta/io/grammar/chat_answer.h"
#include "kdelta/io/grammar/gbnf.h"
#include "kdelta/io/grammar/json_schema.h"
#include "kdelta/io/grammar/matcher.h"
#include "kdelta/io/grammar/regex.h"
#include "kdelta/io/json.h"

namespace kdelta {
namespace {

constexpr size_t kMostEntries = 64;
constexpr int64_t kMostBytes = int64_t{256} << 20;  // of what entries keep; those in use live on
constexpr size_t kMostChoices = 100'000;

const char* name_of(Constraint::Kind kind) {
  switch (kind) {
    case Constraint::Kind::text:
      return "tools";
    case Constraint::Kind::json_object:
      return "json_object";
    case Constraint::Kind::json_schema:
      return "json_schema";
    case Constraint::Kind::choice:
      return "choice";
    case Constraint::Kind::regex:
      return "regex";
    case Constraint::Kind::grammar:
      return "grammar";
  }
  KDELTA_UNREACHABLE("constraint", kind);
}

grammar::ExprId choice_of(grammar::Grammar& g, const std::vector<std::string>& choices) {
  if (choices.empty()) fail(ErrorCode::invalid_argument, "choice: no texts to choose from");
  if (choices.size() > kMostChoices)
    fail(ErrorCode::invalid_argument, "choice: ", choices.size(), " texts, expected at most ", kMostChoices);
  for (size_t i = 0; i < choices.size(); ++i)
    if (!is_utf8(choices[i]))
      fail(ErrorCode::invalid_argument, "choice[", i, "]: '", printable(choices[i]), "' is not UTF-8");
  return g.strings(choices);
}

grammar::ExprId text_of(grammar::Grammar& g, const Constraint& c) {
  const auto plain = [&](const grammar::CharSet& set) { return g.chars(set); };
  switch (c.kind) {
    case Constraint::Kind::text:
      return g.repeat(g.bytes(0, 255), 0, grammar::kNoEnd);
    case Constraint::Kind::json_object:
      return g.call(grammar::json_object_rule(g));
    case Constraint::Kind::json_schema:
      return g.call(grammar::read_json_schema(g, c.text));
    case Constraint::Kind::choice:
      return choice_of(g, c.choices);
    case Constraint::Kind::regex:
      return grammar::read_regex(g, g.name(), c.text, grammar::Anchors::whole, plain);
    case Constraint::Kind::grammar:
      return g.call(grammar::read_gbnf(g, c.text));
  }
  KDELTA_UNREACHABLE("constraint", c.kind);
}

// Everything that a compiled constraint depends on.
std::string key_of(const Constraint& c) {
  std::string key = str(static_cast<int>(c.kind), c.chat, c.thinking, c.calls, c.must_call, c.one_call, ":",
                        c.text.size(), ":", c.text);
  for (const Constraint::Tool& t : c.tools)
    key += str(":", t.name.size(), ":", t.name, ":", t.parameters.size(), ":", t.parameters);
  for (const std::string& choice : c.choices) key += str(":", choice.size(), ":", choice);
  return key;
}

class GrammarConstraint : public runtime::TokenConstraint {
 public:
  GrammarConstraint(std::shared_ptr<grammar::Masker> masker, std::vector<int32_t> ends)
      : matcher_(std::move(masker)), ends_(std::move(ends)) {}

  Next allow(std::span<const int32_t> output, std::span<uint32_t> bits) override {
    matcher_.follow(output);
    const bool some = matcher_.mask(bits), whole = matcher_.accepts();
    // An end is an end, whatever text it may spell.
    for (const int32_t id : ends_) {
      uint32_t& word = bits[static_cast<size_t>(id) / 32];
      const uint32_t bit = uint32_t{1} << id % 32;
      word = whole ? word | bit : word & ~bit;
    }
    if (whole && !ends_.empty()) return Next::some;
    if (some && std::ranges::any_of(bits, [](uint32_t w) { return w != 0; })) return Next::some;
    return whole ? Next::whole : Next::none;
  }

  int64_t accepted(std::span<const int32_t> output, std::span<const int32_t> drafts) override {
    const auto end = std::ranges::find_first_of(drafts, ends_);
    const auto text = drafts.first(static_cast<size_t>(end - drafts.begin()));
    const int64_t n = matcher_.accepted(output, text);
    if (n < std::ssize(text) || end == drafts.end()) return n;
    std::vector<int32_t> all(output.begin(), output.end());
    all.insert(all.end(), text.begin(), text.end());
    matcher_.follow(all);
    return matcher_.accepts() ? n + 1 : n;
  }

 private:
  grammar::Matcher matcher_;
  std::vector<int32_t> ends_;
};

}  // namespace

grammar::Grammar grammar_of(const Constraint& constraint, const Tokenizer* tokenizer) {
  grammar::Grammar g(name_of(constraint.kind));
  const grammar::RuleId root = g.rule(""), content = g.rule("");
  g.define(content, text_of(g, constraint));
  grammar::ExprId answer = g.call(content);
  if (constraint.chat && tokenizer != nullptr) {
    grammar::ChatAnswer chat{.thinking = constraint.thinking,
                             .calls = constraint.calls,
                             .must_call = constraint.must_call,
                             .one_call = constraint.one_call};
    for (const Constraint::Tool& t : constraint.tools) chat.tools.push_back({t.name, t.parameters});
    answer = grammar::chat_answer(g, *tokenizer, ChatEncoder(*tokenizer).format(), chat, answer);
  }
  g.define(root, answer);
  return g;
}

std::shared_ptr<runtime::TokenConstraint> Constraints::make(const Constraint& constraint, std::vector<int32_t> ends) {
  return std::make_shared<GrammarConstraint>(masker_of(constraint), std::move(ends));
}

std::shared_ptr<grammar::Masker> Constraints::masker_of(const Constraint& constraint) {
  const std::string key = key_of(constraint);
  const auto find = [&] {
    const auto it = std::ranges::find(entries_, key, &Entry::key);
    if (it != entries_.end()) entries_.splice(entries_.begin(), entries_, it);
    return it != entries_.end();
  };
  std::shared_ptr<const grammar::TokenTrie> trie;
  {
    const std::lock_guard lock(mutex_);
    if (find()) return entries_.front().masker;
    if (!trie_) trie_ = std::make_shared<const grammar::TokenTrie>(grammar::TokenTrie::of(tokenizer_));
    trie = trie_;
  }
  // Compiled without the lock: nobody waits for another one's grammar.
  const auto program = std::make_shared<const grammar::Program>(grammar_of(constraint, &tokenizer_));
  auto masker = std::make_shared<grammar::Masker>(program, std::move(trie));
  const std::lock_guard lock(mutex_);
  if (find()) return entries_.front().masker;
  entries_.push_front({key, masker});
  int64_t bytes = 0;
  for (auto it = entries_.begin(); it != entries_.end();) {
    bytes += it->masker->noted_bytes();
    const bool first = it == entries_.begin();
    const bool stays =
        first || (bytes <= kMostBytes && std::distance(entries_.begin(), it) < std::ptrdiff_t{kMostEntries});
    it = stays ? std::next(it) : entries_.erase(it);
  }
  return masker;
}

}  // namespace kdelta
