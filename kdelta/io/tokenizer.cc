#include "kdelta/io/tokenizer.h"

#include <algorithm>
#include <charconv>
#include <set>

#include "kdelta/core/error.h"
#include "kdelta/io/detokenizer.h"
#include "kdelta/io/json.h"
#include "kdelta/io/mapped_file.h"
#include "kdelta/io/split.h"
#include "kdelta/io/tokenizer_file.h"

namespace kdelta {
namespace {

// The released vocabulary file has 2.8 MB.
constexpr int64_t kMaxVocabularyFile = int64_t{64} << 20;

int64_t parse_id(const std::string& key, const std::string& path) {
  int64_t id = -1;
  const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
  if (error != std::errc() || end != key.data() + key.size() || id < 0)
    fail(ErrorCode::bad_file, path, ": added_tokens_decoder: key '", printable(key), "', expected a token id");
  return id;
}

std::vector<NamedSpecial> read_named_specials(const std::string& path) {
  const Json config = parse_json_file(path);
  const Json* table = config.find("added_tokens_decoder");
  if (!table || table->kind() != Json::Kind::object)
    fail(ErrorCode::bad_file, path, ": added_tokens_decoder: ", table ? describe(*table) : "missing",
         ", expected an object of token id to {\"content\": name}");
  std::vector<NamedSpecial> named;
  for (const JsonMember& member : table->object()) {
    const Json* content = member.value.find("content");
    if (!content || content->kind() != Json::Kind::string)
      fail(ErrorCode::bad_file, path, ": added_tokens_decoder.", printable(member.key),
           ".content: ", content ? describe(*content) : "missing", ", expected a string");
    named.push_back({parse_id(member.key, path), content->string()});
  }
  return named;
}

}  // namespace

Tokenizer Tokenizer::load(const std::string& directory) {
  const std::string ranks = directory + "/tiktoken.model", config = directory + "/tokenizer_config.json";
  const std::vector<std::string> tokens = parse_tiktoken(read_text_file(ranks, kMaxVocabularyFile), ranks);
  return Tokenizer(tokens, read_named_specials(config), config);
}

Tokenizer::Tokenizer(std::span<const std::string> tokens, std::span<const NamedSpecial> named, const std::string& name)
    : bpe_(tokens), special_name_(kSpecialCount) {
  for (const NamedSpecial& s : named) {
    if (s.id < bpe_.size() || s.id >= vocab_size())
      fail(ErrorCode::bad_file, name, ": added_tokens_decoder.", s.id, ": '", printable(s.content),
           "' is no special id, those are ", bpe_.size(), " to ", vocab_size() - 1);
    if (s.content.empty()) fail(ErrorCode::bad_file, name, ": added_tokens_decoder.", s.id, ".content: empty");
    std::string& slot = special_name_[static_cast<size_t>(s.id - bpe_.size())];
    if (!slot.empty()) fail(ErrorCode::bad_file, name, ": added_tokens_decoder.", s.id, ": twice");
    slot = s.content;
  }
  std::set<size_t, std::greater<>> lengths;
  std::set<char> leads;
  for (int id = bpe_.size(); id < vocab_size(); ++id) {
    std::string& content = special_name_[static_cast<size_t>(id - bpe_.size())];
    if (content.empty()) content = str("<|reserved_token_", id, "|>");
    const auto [first, is_new] = special_id_.emplace(content, id);
    if (!is_new)
      fail(ErrorCode::bad_file, name, ": added_tokens_decoder.", id, ": '", printable(content), "' is the name of ",
           first->second);
    lengths.insert(content.size());
    leads.insert(content[0]);
  }
  special_lengths_.assign(lengths.begin(), lengths.end());
  special_leads_.assign(leads.begin(), leads.end());
}

int Tokenizer::special_id(std::string_view name) const {
  const auto found = special_id_.find(name);
  return found == special_id_.end() ? -1 : found->second;
}

std::string_view Tokenizer::token_bytes(int id) const {
  if (id < 0 || id >= vocab_size())
    fail(ErrorCode::invalid_argument, "token id ", id, ", expected 0 to ", vocab_size() - 1);
  return is_special(id) ? special_name_[static_cast<size_t>(id - bpe_.size())] : bpe_.token(id);
}

std::vector<int32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<int32_t> ids;
  encode(text, ids);
  return ids;
}

void Tokenizer::encode(std::string_view text, std::vector<int32_t>& ids) const {
  size_t begin = 0;
  for (const size_t end : chunk_ends(text)) {
    encode_chunk(text.substr(begin, end - begin), ids);
    begin = end;
  }
}

void Tokenizer::encode_chunk(std::string_view chunk, std::vector<int32_t>& ids) const {
  for (size_t begin = 0; begin < chunk.size();) {
    const size_t end = piece_end(chunk, begin);
    bpe_.encode(chunk.substr(begin, end - begin), ids);
    begin = end;
  }
}

std::vector<int32_t> Tokenizer::encode_with_specials(std::string_view text) const {
  std::vector<int32_t> ids;
  size_t chunk_begin = 0;
  // The vendor cuts chunks first: a name that lies across a cut stays text there, and here.
  for (const size_t chunk_end : chunk_ends(text)) {
    const std::string_view chunk = text.substr(chunk_begin, chunk_end - chunk_begin);
    chunk_begin = chunk_end;
    for (size_t begin = 0; begin < chunk.size();) {
      const Match match = find_special(chunk, begin);
      encode_chunk(chunk.substr(begin, match.begin - begin), ids);
      if (match.begin == std::string_view::npos) break;
      ids.push_back(match.id);
      begin = match.end;
    }
  }
  return ids;
}

Tokenizer::Match Tokenizer::find_special(std::string_view text, size_t begin) const {
  for (size_t pos = text.find_first_of(special_leads_, begin); pos != std::string_view::npos;
       pos = text.find_first_of(special_leads_, pos + 1)) {
    for (const size_t length : special_lengths_) {
      if (length > text.size() - pos) continue;
      const int id = special_id(text.substr(pos, length));
      if (id >= 0) return {pos, pos + length, id};
    }
  }
  return {std::string_view::npos, std::string_view::npos, -1};
}

std::string Tokenizer::decode(std::span<const int32_t> ids, Specials specials) const {
  Detokenizer detokenizer(*this, specials);
  std::string text;
  for (const int32_t id : ids) text += detokenizer.feed(id);
  return text + detokenizer.finish();
}

}  // namespace kdelta
