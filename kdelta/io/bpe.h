// Byte-pair encoding of one piece: the whole piece when it is a token, else single bytes of which the adjacent pair
// with the lowest rank is merged again and again, leftmost first on equal rank.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kdelta {

class Bpe {
 public:
  // tokens[rank]. Distinct, none empty, and every single byte is among them: the reader of the file has checked it, and
  // this checks again (KDELTA_CHECK).
  explicit Bpe(std::span<const std::string> tokens);

  int size() const { return static_cast<int>(begin_.size()) - 1; }
  std::string_view token(int rank) const;
  // -1 when the bytes are no token.
  int find(std::string_view bytes) const;
  // Appends the ranks of `piece`. O(n log n) in its length.
  void encode(std::string_view piece, std::vector<int32_t>& ids) const;

 private:
  void insert(int rank);
  void merge_short(std::string_view piece, std::vector<int32_t>& ids) const;
  void merge_long(std::string_view piece, std::vector<int32_t>& ids) const;

  std::string bytes_;            // all tokens, by rank
  std::vector<uint32_t> begin_;  // [size+1] offsets into bytes_
  size_t longest_ = 0;
  // Open addressing, a power of two, at most half full. Nearly all questions of a merge are answered by "no such
  // token", and by the tags alone, which lie in the second-level cache.
  std::vector<uint8_t> tag_;  // 0: free
  std::vector<int32_t> rank_;
  std::vector<int32_t> byte_rank_;       // [256]
  std::vector<int32_t> byte_pair_rank_;  // [65536] by first byte * 256 + second, -1: no token
};

}  // namespace kdelta
