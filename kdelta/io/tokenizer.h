// Text to token ids and back, for the byte-pair vocabularies of the Kimi models: tiktoken.model holds the ranks, 256
// special tokens follow the last rank, tokenizer_config.json names some of them. Ids equal those of the vendor's
// tokenizer (tiktoken with the pattern of split.h). Immutable after loading: any number of threads may use one object.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kdelta/io/bpe.h"

namespace kdelta {

struct NamedSpecial {
  int64_t id;
  std::string content;
};

// Are special tokens part of decoded text, by their names?
enum class Specials : uint8_t { skip, show };

class Tokenizer {
 public:
  static constexpr int kSpecialCount = 256;

  // Reads directory/tiktoken.model and directory/tokenizer_config.json. Throws Error(bad_file) naming the file, the
  // line or member and the reason.
  static Tokenizer load(const std::string& directory);
  // The same from memory: tokens by rank, each single byte among them; specials that have names. A special without a
  // name is called <|reserved_token_ID|> by its absolute id. Throws Error(bad_file) when an id lies outside the special
  // ids or a name repeats; `name` begins the message.
  Tokenizer(std::span<const std::string> tokens, std::span<const NamedSpecial> named, const std::string& name);

  // Ids 0 .. vocab_size()-1; the specials are the last kSpecialCount of them.
  int vocab_size() const { return bpe_.size() + kSpecialCount; }
  bool is_special(int id) const { return id >= bpe_.size() && id < vocab_size(); }
  // -1 when no special token has that name.
  int special_id(std::string_view name) const;
  // The bytes of a token, the name of a special. Throws Error(invalid_argument) outside 0 .. vocab_size()-1. Valid as
  // long as this object.
  std::string_view token_bytes(int id) const;

  // Ordinary text: the name of a special token inside it is text like any other. Any bytes are accepted; those that are
  // not UTF-8 become single-byte tokens. Nothing is added in front or behind. The second form appends.
  std::vector<int32_t> encode(std::string_view text) const;
  void encode(std::string_view text, std::vector<int32_t>& ids) const;
  // For raw completion only: names of special tokens in the text become these tokens. Never for text of a chat message.
  std::vector<int32_t> encode_with_specials(std::string_view text) const;

  // The bytes of the ids joined, as valid UTF-8: each maximal ill-formed sequence becomes one U+FFFD.
  std::string decode(std::span<const int32_t> ids, Specials specials = Specials::skip) const;

 private:
  void encode_chunk(std::string_view chunk, std::vector<int32_t>& ids) const;
  struct Match {
    size_t begin, end;
    int32_t id;
  };
  // The first special token named at or behind `begin`, the longest of that place; begin = npos when there is none.
  Match find_special(std::string_view text, size_t begin) const;

  Bpe bpe_;
  std::vector<std::string> special_name_;  // by id - bpe_.size()
  struct Hash : std::hash<std::string_view> {
    using is_transparent = void;
  };
  std::unordered_map<std::string, int32_t, Hash, std::equal_to<>> special_id_;
  std::vector<size_t> special_lengths_;  // of the names, distinct, longest first
  std::string special_leads_;            // first bytes of the names, distinct
};

}  // namespace kdelta
