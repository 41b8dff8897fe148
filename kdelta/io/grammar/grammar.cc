#include "kdelta/io/grammar/grammar.h"

#include <algorithm>

#include "kdelta/core/error.h"

namespace kdelta::grammar {

ExprId Grammar::add(Expr expr) {
  for (const ExprId part : expr.parts) expr.depth = std::max(expr.depth, 1 + this->expr(part).depth);
  if (expr.depth > kMostDepth) fail(ErrorCode::invalid_argument, name_, ": nested more than ", kMostDepth, " deep");
  if (std::ssize(exprs_) >= kMostExprs)
    fail(ErrorCode::invalid_argument, name_, ": more than ", kMostExprs, " expressions");
  exprs_.push_back(std::move(expr));
  return static_cast<ExprId>(exprs_.size() - 1);
}

ExprId Grammar::bytes(uint8_t low, uint8_t high) {
  return add({.kind = Expr::Kind::bytes, .low = low, .high = high});
}

ExprId Grammar::literal(std::string_view text) {
  return add({.kind = Expr::Kind::literal, .text = std::string(text)});
}

ExprId Grammar::chars(const CharSet& set) {
  std::vector<ExprId> all;
  for (const ByteSequence& s : utf8_sequences(set)) {
    std::vector<ExprId> one;
    for (int i = 0; i < s.size; ++i) {
      const ByteRange b = s.bytes[static_cast<size_t>(i)];
      one.push_back(bytes(b.low, b.high));
    }
    all.push_back(sequence(std::move(one)));
  }
  return choice(std::move(all));
}

ExprId Grammar::strings(std::vector<std::string> texts) {
  return add({.kind = Expr::Kind::strings, .texts = std::move(texts)});
}

ExprId Grammar::token(int32_t id) {
  return add({.kind = Expr::Kind::token, .id = id});
}

ExprId Grammar::call(RuleId rule) {
  return add({.kind = Expr::Kind::call, .id = rule});
}

ExprId Grammar::sequence(std::vector<ExprId> parts) {
  if (parts.size() == 1) return parts[0];
  return add({.kind = Expr::Kind::sequence, .parts = std::move(parts)});
}

// Plain texts among the alternatives become one: a list of words costs no more than its longest word.
ExprId Grammar::choice(std::vector<ExprId> parts) {
  if (parts.size() == 1) return parts[0];
  const auto plain = [&](ExprId id) { return expr(id).kind == Expr::Kind::literal; };
  if (std::count_if(parts.begin(), parts.end(), plain) > 1) {
    std::vector<std::string> texts;
    for (const ExprId id : parts)
      if (plain(id)) texts.push_back(expr(id).text);
    std::erase_if(parts, plain);
    parts.push_back(strings(std::move(texts)));
    if (parts.size() == 1) return parts[0];
  }
  return add({.kind = Expr::Kind::choice, .parts = std::move(parts)});
}

ExprId Grammar::repeat(ExprId part, int64_t least, int64_t most) {
  if (least < 0 || std::max(least, most) > kMostRepeats)
    fail(ErrorCode::invalid_argument, name_, ": repeated ", std::max(least, most), " times, expected at most ",
         kMostRepeats);
  if (most != kNoEnd && most < least)
    fail(ErrorCode::invalid_argument, name_, ": repeated ", least, " to ", most, " times");
  return add({.kind = Expr::Kind::repeat, .least = least, .most = most, .parts = {part}});
}

RuleId Grammar::rule(std::string name) {
  if (std::ssize(rules_) >= kMostRules) fail(ErrorCode::invalid_argument, name_, ": more than ", kMostRules, " rules");
  rules_.push_back({std::move(name)});
  return static_cast<RuleId>(rules_.size() - 1);
}

void Grammar::define(RuleId rule, ExprId body) {
  rules_[static_cast<size_t>(rule)].body = body;
}

}  // namespace kdelta::grammar
