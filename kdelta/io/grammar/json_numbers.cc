#include "kdelta/io/grammar/json_numbers.h"

#include <algorithm>
#include <map>

namespace kdelta::grammar {
namespace {

constexpr uint64_t kLargest = 9'999'999'999'999'999'999u;  // of kMostDigits digits

ExprId digit(Grammar& g, char low, char high) {
  return g.bytes(static_cast<uint8_t>(low), static_cast<uint8_t>(high));
}
ExprId digits(Grammar& g, int64_t least, int64_t most) {
  return g.repeat(digit(g, '0', '9'), least, most);
}

// Texts of digits as long as `bound`, from `at` on, that are no less (no more) than its rest.
ExprId from_bound(Grammar& g, const std::string& bound, size_t at, bool upwards) {
  if (at == bound.size()) return g.empty();
  const char d = bound[at];
  const auto rest = std::ssize(bound) - static_cast<int64_t>(at) - 1;
  std::vector<ExprId> all{g.sequence({digit(g, d, d), from_bound(g, bound, at + 1, upwards)})};
  if (upwards && d < '9') all.push_back(g.sequence({digit(g, static_cast<char>(d + 1), '9'), digits(g, rest, rest)}));
  if (!upwards && d > '0') all.push_back(g.sequence({digit(g, '0', static_cast<char>(d - 1)), digits(g, rest, rest)}));
  return g.choice(std::move(all));
}

// Between two bounds of one length.
ExprId between(Grammar& g, const std::string& low, const std::string& high, size_t at) {
  if (at == low.size()) return g.empty();
  const char a = low[at], b = high[at];
  if (a == b) return g.sequence({digit(g, a, a), between(g, low, high, at + 1)});
  const auto rest = std::ssize(low) - static_cast<int64_t>(at) - 1;
  std::vector<ExprId> all{g.sequence({digit(g, a, a), from_bound(g, low, at + 1, true)}),
                          g.sequence({digit(g, b, b), from_bound(g, high, at + 1, false)})};
  if (b - a > 1)
    all.push_back(g.sequence({digit(g, static_cast<char>(a + 1), static_cast<char>(b - 1)), digits(g, rest, rest)}));
  return g.choice(std::move(all));
}

ExprId magnitudes(Grammar& g, uint64_t low, uint64_t high) {
  std::vector<ExprId> all;
  if (low == 0) all.push_back(g.literal("0"));
  uint64_t first = 1;  // of the numbers of as many digits
  for (int64_t length = 1; length <= kMostDigits; ++length) {
    const uint64_t last = length == kMostDigits ? kLargest : first * 10 - 1;
    const uint64_t a = std::max(low, first), b = std::min(high, last);
    if (a <= b) all.push_back(between(g, std::to_string(a), std::to_string(b), 0));
    first = last + 1;
  }
  return g.choice(std::move(all));
}

uint64_t magnitude(int64_t x) {
  return x < 0 ? 0 - static_cast<uint64_t>(x) : static_cast<uint64_t>(x);
}

// The bounds as magnitudes of the numbers of one sign; no value when there are none.
struct Magnitudes {
  uint64_t low = 0, high = kLargest;
  bool above_low = false, below_high = false;
};
std::optional<Magnitudes> of_sign(const NumberBounds& b, bool negative) {
  const std::optional<int64_t> near = negative ? b.high : b.low, far = negative ? b.low : b.high;
  Magnitudes m{.above_low = negative ? b.below_high : b.above_low, .below_high = negative ? b.above_low : b.below_high};
  const auto beyond_zero = [&](int64_t x) { return negative ? x < 0 : x > 0; };
  if (far && !beyond_zero(*far) && *far != 0) return std::nullopt;
  if (far) m.high = magnitude(*far);
  if (near && (beyond_zero(*near) || *near == 0))
    m.low = magnitude(*near);
  else
    m.above_low = false;
  if (!far) m.below_high = false;
  if (m.low > m.high) return std::nullopt;
  return m;
}

template <class Of>
ExprId signed_numbers(Grammar& g, const NumberBounds& bounds, const Of& of) {
  std::vector<ExprId> all;
  if (const auto m = of_sign(bounds, false)) all.push_back(of(g, *m));
  if (const auto m = of_sign(bounds, true)) all.push_back(g.sequence({g.literal("-"), of(g, *m)}));
  return g.choice(std::move(all));
}

ExprId whole(Grammar& g, const Magnitudes& m) {
  const uint64_t low = m.low + (m.above_low ? 1 : 0), high = m.high - (m.below_high && m.high > 0 ? 1 : 0);
  if (low > high || (m.below_high && m.high == 0)) return g.choice({});
  return magnitudes(g, low, high);
}

// n.f of n in [low, high) with any fraction but 0 at an excluded low; the bound itself with .0.
ExprId with_fraction(Grammar& g, const Magnitudes& m) {
  const ExprId point = g.literal("."), any = digits(g, 1, kMostFraction);
  const ExprId zeros = g.repeat(g.literal("0"), 1, kMostFraction);
  const ExprId some = g.sequence(
      {g.repeat(g.literal("0"), 0, kMostFraction / 2 - 1), digit(g, '1', '9'), digits(g, 0, kMostFraction / 2)});
  std::vector<ExprId> all{whole(g, m)};
  if (m.low < m.high) {
    const uint64_t inner = m.low + (m.above_low ? 1 : 0);
    if (m.above_low) all.push_back(g.sequence({magnitudes(g, m.low, m.low), point, some}));
    if (inner < m.high) all.push_back(g.sequence({magnitudes(g, inner, m.high - 1), point, any}));
  }
  const bool high_is_in = !m.below_high && !(m.low == m.high && m.above_low);
  if (high_is_in) all.push_back(g.sequence({magnitudes(g, m.high, m.high), point, zeros}));
  return g.choice(std::move(all));
}

// Digits behind those of which the number so far is known but for multiples of the divisor.
class Multiples {
 public:
  Multiples(Grammar& g, uint64_t divisor) : g_(g), divisor_(divisor) {}

  ExprId of(const Magnitudes& m) {
    std::vector<ExprId> all;
    if (m.low == 0) all.push_back(g_.literal("0"));
    uint64_t first = 1;  // of the numbers of as many digits
    for (int64_t length = 1; length <= kMostDigits; ++length) {
      const uint64_t last = length == kMostDigits ? kLargest : first * 10 - 1;
      const uint64_t a = std::max(m.low, first), b = std::min(m.high, last);
      if (a <= b) all.push_back(between(std::to_string(a), std::to_string(b), 0, 0, true, true));
      first = last + 1;
    }
    return g_.choice(std::move(all));
  }

 private:
  uint64_t next(uint64_t remainder, char digit) const {
    return (remainder * 10 + static_cast<uint64_t>(digit - '0')) % divisor_;
  }

  ExprId between(const std::string& low, const std::string& high, size_t at, uint64_t remainder, bool at_low,
                 bool at_high) {
    if (!at_low && !at_high) return tail(low.size() - at, remainder);
    if (at == low.size()) return remainder == 0 ? g_.empty() : g_.choice({});
    std::vector<ExprId> all;
    for (char d = at_low ? low[at] : '0'; d <= (at_high ? high[at] : '9'); ++d)
      all.push_back(g_.sequence({digit(g_, d, d), between(low, high, at + 1, next(remainder, d), at_low && d == low[at],
                                                          at_high && d == high[at])}));
    return g_.choice(std::move(all));
  }

  ExprId tail(size_t digits, uint64_t remainder) {
    if (digits == 0) return remainder == 0 ? g_.empty() : g_.choice({});
    const auto known = tails_.find({digits, remainder});
    if (known != tails_.end()) return g_.call(known->second);
    const RuleId rule = g_.rule("digits");
    tails_.emplace(std::pair{digits, remainder}, rule);
    std::vector<ExprId> all;
    for (char d = '0'; d <= '9'; ++d)
      all.push_back(g_.sequence({digit(g_, d, d), tail(digits - 1, next(remainder, d))}));
    g_.define(rule, g_.choice(std::move(all)));
    return g_.call(rule);
  }

  Grammar& g_;
  uint64_t divisor_;
  std::map<std::pair<size_t, uint64_t>, RuleId> tails_;
};

}  // namespace

ExprId multiples(Grammar& g, const NumberBounds& bounds, int64_t divisor) {
  if (divisor == 1) return integers(g, bounds);
  Multiples all(g, static_cast<uint64_t>(divisor));
  return signed_numbers(g, bounds, [&](Grammar&, const Magnitudes& m) { return all.of(m); });
}

ExprId integers(Grammar& g, const NumberBounds& bounds) {
  return signed_numbers(g, bounds, whole);
}

ExprId decimals(Grammar& g, const NumberBounds& bounds) {
  return signed_numbers(g, bounds, with_fraction);
}

}  // namespace kdelta::grammar
