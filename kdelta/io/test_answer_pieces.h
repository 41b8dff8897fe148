// What pieces of calls promise, for the tests of both parsers.
#pragma once

#include <gtest/gtest.h>

#include <map>

#include "kdelta/io/answer.h"

namespace kdelta {

// The calls that pieces tell when they are joined; checks that each has its name once, in front, that nothing follows
// its end, and that what is told of a failed one, or has not ended, is no JSON.
inline std::vector<ToolCall> joined(const std::vector<CallPiece>& pieces) {
  std::map<int64_t, CallPiece> calls;
  for (const CallPiece& p : pieces) {
    const bool first = calls.emplace(p.index, CallPiece{}).second;
    CallPiece& c = calls[p.index];
    EXPECT_EQ(first, !p.name.empty());
    EXPECT_FALSE(c.ended);
    c.id += p.id;
    c.name += p.name;
    c.arguments += p.arguments;
    c.ended = p.ended;
    c.failed = p.failed;
    EXPECT_TRUE(is_utf8(p.arguments));
  }
  std::vector<ToolCall> out;
  for (const auto& [index, c] : calls) {
    EXPECT_TRUE(c.ended) << "an answer that ended has no open call";
    if (c.failed)
      EXPECT_THROW(parse_json(c.arguments, {.name = "told"}), Error) << c.arguments;
    else
      out.push_back({c.id, c.name, c.arguments});
  }
  return out;
}

}  // namespace kdelta
