// Token ids to text while they are being generated. A character may be spread over several tokens, so the bytes of an
// unfinished one are held back: every delta is valid UTF-8, and the deltas joined are the text of the whole.
#pragma once

#include <string>
#include <string_view>

#include "kdelta/io/tokenizer.h"

namespace kdelta {

// Bytes to valid UTF-8, for a stream. Each maximal ill-formed sequence becomes one U+FFFD, at once: only a beginning
// that the next byte may still complete (at most 3 bytes) is held.
class Utf8Stream {
 public:
  std::string feed(std::string_view bytes);
  // The end: a beginning that is still held becomes U+FFFD. The object is then as new.
  std::string finish();

 private:
  std::string held_;
};

class Detokenizer {
 public:
  // `tokenizer` must outlive this.
  explicit Detokenizer(const Tokenizer& tokenizer, Specials specials = Specials::skip)
      : tokenizer_(&tokenizer), specials_(specials) {}

  // What the id adds to the text; may be empty. A skipped special adds nothing, and an unfinished character in front of
  // it ends there. Throws Error(invalid_argument) on an id outside the vocabulary; nothing has changed then.
  std::string feed(int id);
  std::string finish() { return stream_.finish(); }

 private:
  const Tokenizer* tokenizer_;
  Specials specials_;
  Utf8Stream stream_;
};

}  // namespace kdelta
