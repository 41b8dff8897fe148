#include "kdelta/io/unicode.h"

namespace kdelta {

#include "kdelta/io/unicode_tables.inc"

namespace {

struct Lead {
  int bytes;          // of the whole character; 0: never a lead byte
  uint8_t low, high;  // range of the second byte (Unicode table 3-7)
};

Lead lead_of(uint8_t b) {
  if (b < 0xC2) return {0, 0, 0};
  if (b < 0xE0) return {2, 0x80, 0xBF};
  if (b < 0xF0)
    return {3, static_cast<uint8_t>(b == 0xE0 ? 0xA0 : 0x80), static_cast<uint8_t>(b == 0xED ? 0x9F : 0xBF)};
  if (b < 0xF5)
    return {4, static_cast<uint8_t>(b == 0xF0 ? 0x90 : 0x80), static_cast<uint8_t>(b == 0xF4 ? 0x8F : 0xBF)};
  return {0, 0, 0};
}

}  // namespace

Char decode_multibyte(std::string_view text, size_t pos) {
  const auto first = static_cast<uint8_t>(text[pos]);
  const Lead lead = lead_of(first);
  if (lead.bytes == 0) return {0, 1, Utf8::invalid};
  uint32_t code = first & (0x7Fu >> lead.bytes);
  for (int i = 1; i < lead.bytes; ++i) {
    if (pos + static_cast<size_t>(i) == text.size()) return {0, i, Utf8::incomplete};
    const auto b = static_cast<uint8_t>(text[pos + static_cast<size_t>(i)]);
    const uint8_t low = i == 1 ? lead.low : 0x80, high = i == 1 ? lead.high : 0xBF;
    if (b < low || b > high) return {0, i, Utf8::invalid};
    code = code << 6 | (b & 0x3Fu);
  }
  return {code, lead.bytes, Utf8::valid};
}

}  // namespace kdelta
