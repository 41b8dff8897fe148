// Any bytes as a vocabulary file: refused with an Error whose message is UTF-8, or its tokens encode. Any bytes as
// text: the pieces cover it, the tokens give it back, each piece is merged as the definition says, and a stream of
// deltas equals the whole.
#include "kdelta/core/check.h"
#include "kdelta/io/detokenizer.h"
#include "kdelta/io/json.h"
#include "kdelta/io/split.h"
#include "kdelta/io/stop_strings.h"
#include "kdelta/io/tokenizer.h"
#include "kdelta/io/tokenizer_file.h"

namespace {

using namespace kdelta;

const std::string& single_byte_lines() {
  static const std::string lines = [] {
    constexpr char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::string text;
    for (int b = 0; b < 256; ++b) text += str(digits[b >> 2], digits[(b & 3) << 4], "== ", b, "\n");
    return text;
  }();
  return lines;
}

// Bytes, and merges that overlap in many ways and cut characters.
const Tokenizer& small_tokenizer() {
  static const Tokenizer tokenizer = [] {
    std::vector<std::string> tokens = parse_tiktoken(single_byte_lines(), "bytes");
    for (const char* t : {"ab", "bc",       "aa",       "aaaa",         "abc",      "ca",       "bcab",
                          "  ", "\n\n",     "\xE5\xAD", "\xE5\xAD\x97", "\x98\x80", "\xF0\x9F", "'s",
                          "11", "\xCC\x81", "a\xCC",    "!!",           "abcabc",   "<|",       "|>"})
      tokens.emplace_back(t);
    const std::vector<NamedSpecial> named{
        {std::ssize(tokens), "<|open|>"}, {std::ssize(tokens) + 1, "<|"}, {std::ssize(tokens) + 2, "[EOS]"}};
    return Tokenizer(tokens, named, "fuzz");
  }();
  return tokenizer;
}

std::string joined_bytes(const Tokenizer& t, const std::vector<int32_t>& ids) {
  std::string bytes;
  for (const int32_t id : ids) bytes += t.token_bytes(id);
  return bytes;
}

void check_vocabulary(std::string_view file) {
  try {
    const std::vector<std::string> tokens = parse_tiktoken(file, "fuzz");
    const Tokenizer t(tokens, {}, "fuzz");
    std::string all;
    for (const std::string& token : tokens) all += token;
    KDELTA_CHECK(joined_bytes(t, t.encode(all)) == all);
    for (int id = 0; id < t.vocab_size(); ++id) KDELTA_CHECK(!t.token_bytes(id).empty());
  } catch (const Error& e) {
    KDELTA_CHECK(e.code() == ErrorCode::bad_file && is_utf8(e.what()), e.what());
  }
}

void check_pieces(std::string_view text) {
  size_t begin = 0;
  for (const size_t end : chunk_ends(text)) {
    KDELTA_CHECK(end > begin && end <= text.size());
    const std::string_view chunk = text.substr(begin, end - begin);
    for (size_t at = 0; at < chunk.size();) {
      const size_t next = piece_end(chunk, at);
      KDELTA_CHECK(next > at && next <= chunk.size());
      at = next;
    }
    begin = end;
  }
  KDELTA_CHECK(begin == text.size());
}

void check_stream(const std::vector<int32_t>& ids) {
  for (const Specials specials : {Specials::skip, Specials::show}) {
    Detokenizer stream(small_tokenizer(), specials);
    std::string all;
    for (const int32_t id : ids) {
      const std::string delta = stream.feed(id);
      KDELTA_CHECK(is_utf8(delta));
      all += delta;
    }
    KDELTA_CHECK(all + stream.finish() == small_tokenizer().decode(ids, specials));
  }
}

// Stop strings from the text itself: the result must not depend on how the answer is cut.
void check_stops(std::string_view text) {
  const std::vector<std::string> stops{"ab", "abcabc", "bca", "\n"};
  StopStrings whole(stops), bytes(stops);
  const std::string want = whole.feed(text) + whole.finish();
  std::string got;
  for (const char c : text) got += bytes.feed({&c, 1});
  KDELTA_CHECK(got + bytes.finish() == want && whole.stopped_by() == bytes.stopped_by());
  KDELTA_CHECK(text.starts_with(want) && (whole.stopped() || want == text));
}

void check_encoding(std::string_view text) {
  const Tokenizer& t = small_tokenizer();
  check_pieces(text);
  const std::vector<int32_t> ids = t.encode(text);
  for (const int32_t id : ids) KDELTA_CHECK(!t.is_special(id));
  KDELTA_CHECK(joined_bytes(t, ids) == text);
  if (is_utf8(text)) KDELTA_CHECK(t.decode(ids) == text);
}

void check_text(std::string_view text) {
  const Tokenizer& t = small_tokenizer();
  check_encoding(text);
  const std::vector<int32_t> with_specials = t.encode_with_specials(text);
  KDELTA_CHECK(joined_bytes(t, with_specials) == text);
  check_stream(with_specials);
  check_stops(text);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const int mode = data[0] % 16;
  if (mode == 0) {
    check_vocabulary(text);
  } else if (mode < 5) {
    check_vocabulary(single_byte_lines() + std::string(text));
  } else if (mode < 15) {
    check_text(text);
  } else {  // past the longest run, which a piece of text repeated reaches
    std::string repeated;
    while (!text.empty() && repeated.size() < 30000) repeated += text;
    check_encoding(repeated);
  }
  return 0;
}
