// Sets of Unicode scalar values, and the byte sequences that spell them in UTF-8.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace kdelta::grammar {

inline constexpr uint32_t kLastChar = 0x10FFFF;

struct CharRange {
  uint32_t low, high;  // both included
  bool operator==(const CharRange&) const = default;
};

class CharSet {
 public:
  CharSet() = default;
  // In any order, overlapping or not. Surrogates are no characters and fall out.
  CharSet(std::vector<CharRange> ranges);
  static CharSet all() { return CharSet({{0, kLastChar}}); }

  // Sorted, apart from each other by one character at least.
  const std::vector<CharRange>& ranges() const { return ranges_; }
  bool empty() const { return ranges_.empty(); }
  bool contains(uint32_t code) const;

  CharSet complement() const;
  CharSet operator|(const CharSet& other) const;
  CharSet operator&(const CharSet& other) const;
  CharSet operator-(const CharSet& other) const { return *this & other.complement(); }
  bool operator==(const CharSet&) const = default;

 private:
  std::vector<CharRange> ranges_;
};

struct ByteRange {
  uint8_t low, high;  // both included
};

// One byte of each range in turn.
struct ByteSequence {
  int size = 0;
  std::array<ByteRange, 4> bytes{};
};

// Sequences that together spell exactly the characters of the set; no spelling is in two of them.
std::vector<ByteSequence> utf8_sequences(const CharSet& set);

void append_utf8(std::string& out, uint32_t code);

}  // namespace kdelta::grammar
