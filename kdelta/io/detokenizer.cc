#include "kdelta/io/detokenizer.h"

#include "kdelta/io/unicode.h"

namespace kdelta {
namespace {

constexpr std::string_view kReplacement = "\uFFFD";

}  // namespace

std::string Utf8Stream::feed(std::string_view bytes) {
  const std::string text = held_ + std::string(bytes);
  std::string out;
  size_t pos = 0;
  while (pos < text.size()) {
    const Char c = decode_char(text, pos);
    if (c.state == Utf8::incomplete) break;
    if (c.state == Utf8::valid)
      out.append(text, pos, static_cast<size_t>(c.bytes));
    else
      out += kReplacement;
    pos += static_cast<size_t>(c.bytes);
  }
  held_ = text.substr(pos);
  return out;
}

std::string Utf8Stream::finish() {
  const bool cut = !held_.empty();
  held_.clear();
  return cut ? std::string(kReplacement) : std::string();
}

std::string Detokenizer::feed(int id) {
  const std::string_view bytes = tokenizer_->token_bytes(id);
  if (!tokenizer_->is_special(id)) return stream_.feed(bytes);
  std::string out = stream_.finish();
  if (specials_ == Specials::show) out += bytes;
  return out;
}

}  // namespace kdelta
