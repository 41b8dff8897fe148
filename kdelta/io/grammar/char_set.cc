#include "kdelta/io/grammar/char_set.h"

#include <algorithm>

namespace kdelta::grammar {
namespace {

constexpr uint32_t kSurrogates = 0xD800, kBehindSurrogates = 0xE000;

void add_scalars(std::vector<CharRange>& out, CharRange r) {
  r.high = std::min(r.high, kLastChar);
  if (r.low > r.high) return;
  if (r.high < kSurrogates || r.low >= kBehindSurrogates) return out.push_back(r);
  if (r.low < kSurrogates) out.push_back({r.low, kSurrogates - 1});
  if (r.high >= kBehindSurrogates) out.push_back({kBehindSurrogates, r.high});
}

std::string utf8_of(uint32_t code) {
  std::string out;
  append_utf8(out, code);
  return out;
}

// A range whose two ends are spelled in as many bytes, cut until each byte's choice does not depend on the others.
void split(CharRange r, std::vector<ByteSequence>& out) {
  for (int shift = 6; shift <= 18; shift += 6) {
    const uint32_t tail = (uint32_t{1} << shift) - 1;
    if ((r.low & ~tail) == (r.high & ~tail)) break;
    if ((r.low & tail) != 0) {
      split({r.low, r.low | tail}, out);
      return split({(r.low | tail) + 1, r.high}, out);
    }
    if ((r.high & tail) != tail) {
      split({r.low, (r.high & ~tail) - 1}, out);
      return split({r.high & ~tail, r.high}, out);
    }
  }
  const std::string low = utf8_of(r.low), high = utf8_of(r.high);
  ByteSequence s{.size = static_cast<int>(low.size())};
  for (size_t i = 0; i < low.size(); ++i) s.bytes[i] = {static_cast<uint8_t>(low[i]), static_cast<uint8_t>(high[i])};
  out.push_back(s);
}

}  // namespace

CharSet::CharSet(std::vector<CharRange> ranges) {
  std::vector<CharRange> scalars;
  for (const CharRange r : ranges) add_scalars(scalars, r);
  std::sort(scalars.begin(), scalars.end(), [](CharRange a, CharRange b) { return a.low < b.low; });
  for (const CharRange r : scalars) {
    if (!ranges_.empty() && r.low <= ranges_.back().high + 1)
      ranges_.back().high = std::max(ranges_.back().high, r.high);
    else
      ranges_.push_back(r);
  }
}

bool CharSet::contains(uint32_t code) const {
  return std::any_of(ranges_.begin(), ranges_.end(), [&](CharRange r) { return r.low <= code && code <= r.high; });
}

CharSet CharSet::complement() const {
  std::vector<CharRange> out;
  uint32_t next = 0;
  for (const CharRange r : ranges_) {
    if (r.low > next) out.push_back({next, r.low - 1});
    next = r.high + 1;
  }
  if (next <= kLastChar) out.push_back({next, kLastChar});
  return CharSet(std::move(out));
}

CharSet CharSet::operator|(const CharSet& other) const {
  std::vector<CharRange> both = ranges_;
  both.insert(both.end(), other.ranges_.begin(), other.ranges_.end());
  return CharSet(std::move(both));
}

CharSet CharSet::operator&(const CharSet& other) const {
  std::vector<CharRange> out;
  auto a = ranges_.begin();
  for (auto b = other.ranges_.begin(); a != ranges_.end() && b != other.ranges_.end();) {
    const CharRange common{std::max(a->low, b->low), std::min(a->high, b->high)};
    if (common.low <= common.high) out.push_back(common);
    if (a->high < b->high)
      ++a;
    else
      ++b;
  }
  return CharSet(std::move(out));
}

std::vector<ByteSequence> utf8_sequences(const CharSet& set) {
  std::vector<ByteSequence> out;
  for (const CharRange r : set.ranges())
    for (const CharRange length : {CharRange{0, 0x7F}, {0x80, 0x7FF}, {0x800, 0xFFFF}, {0x10000, kLastChar}}) {
      const CharRange part{std::max(r.low, length.low), std::min(r.high, length.high)};
      if (part.low <= part.high) split(part, out);
    }
  return out;
}

void append_utf8(std::string& out, uint32_t code) {
  const auto tail = [&](int shift) { out += static_cast<char>(0x80 | (code >> shift & 0x3F)); };
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xC0 | code >> 6);
    tail(0);
  } else if (code < 0x10000) {
    out += static_cast<char>(0xE0 | code >> 12);
    tail(6), tail(0);
  } else {
    out += static_cast<char>(0xF0 | code >> 18);
    tail(12), tail(6), tail(0);
  }
}

}  // namespace kdelta::grammar
