#include "kdelta/io/stop_strings.h"

#include <algorithm>
#include <utility>

#include "kdelta/core/error.h"
#include "kdelta/io/json.h"

namespace kdelta {

StopStrings::StopStrings(std::vector<std::string> stops) {
  for (size_t i = 0; i < stops.size(); ++i) {
    if (stops[i].empty()) fail(ErrorCode::invalid_argument, "stop[", i, "]: empty string");
    if (!is_utf8(stops[i]))
      fail(ErrorCode::invalid_argument, "stop[", i, "]: '", printable(stops[i]), "' is not UTF-8");
    patterns_.push_back(make_pattern(std::move(stops[i])));
  }
}

StopStrings::Pattern StopStrings::make_pattern(std::string text) {
  Pattern p{std::move(text), {0, 0}, 0};
  for (size_t i = 1; i < p.text.size(); ++i) {
    size_t k = p.border[i];
    while (k > 0 && p.text[k] != p.text[i]) k = p.border[k];
    p.border.push_back(p.text[k] == p.text[i] ? k + 1 : 0);
  }
  return p;
}

void StopStrings::advance(Pattern& p, char c) {
  while (p.matched > 0 && p.text[p.matched] != c) p.matched = p.border[p.matched];
  if (p.text[p.matched] == c) ++p.matched;
}

std::string StopStrings::feed(std::string_view delta) {
  if (stopped()) return {};
  for (const char c : delta) {
    held_.push_back(c);
    size_t stop_bytes = 0;
    for (size_t i = 0; i < patterns_.size(); ++i) {
      Pattern& p = patterns_[i];
      advance(p, c);
      if (p.matched == p.text.size() && p.matched > stop_bytes) {
        stop_bytes = p.matched;
        stopped_by_ = static_cast<int>(i);
      }
    }
    if (stop_bytes > 0) {
      held_.resize(held_.size() - stop_bytes);
      return std::exchange(held_, {});
    }
  }
  size_t keep = 0;
  for (const Pattern& p : patterns_) keep = std::max(keep, p.matched);
  std::string out = held_.substr(0, held_.size() - keep);
  held_.erase(0, out.size());
  return out;
}

std::string StopStrings::finish() {
  return std::exchange(held_, {});
}

}  // namespace kdelta
