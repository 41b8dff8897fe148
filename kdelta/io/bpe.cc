#include "kdelta/io/bpe.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <queue>

#include "kdelta/core/check.h"

namespace kdelta {
namespace {

// Up to this many bytes the quadratic merge, whose inner loop is a scan of a few cache lines, beats the heap.
constexpr size_t kShortPiece = 96;
constexpr int kNone = std::numeric_limits<int>::max();  // rank of a pair that is no token

template <class T>
uint64_t load(const char* p) {
  T v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}

// Up to 8 bytes in one word; n and the word together tell all such strings apart.
uint64_t load_short(const char* p, size_t n) {
  if (n == 8) return load<uint64_t>(p);
  if (n >= 4) return load<uint32_t>(p) | load<uint32_t>(p + n - 4) << 32;
  if (n == 0) return 0;
  return load<uint8_t>(p) | load<uint8_t>(p + n / 2) << 8 | load<uint8_t>(p + n - 1) << 16;
}

uint64_t hash_of(std::string_view s) {
  constexpr uint64_t kMultiplier = 0x9E3779B97F4A7C15u;
  uint64_t h = s.size() * kMultiplier;
  const char* p = s.data();
  size_t n = s.size();
  for (; n > 8; p += 8, n -= 8) h = std::rotl((h ^ load<uint64_t>(p)) * kMultiplier, 29);
  h = (h ^ load_short(p, n)) * kMultiplier;
  return h ^ h >> 32;
}

uint8_t tag_of(uint64_t hash) {
  return static_cast<uint8_t>(hash >> 56 | 1);
}

size_t byte_pair(std::string_view two) {
  return static_cast<uint8_t>(two[0]) * 256u + static_cast<uint8_t>(two[1]);
}

}  // namespace

Bpe::Bpe(std::span<const std::string> tokens)
    : tag_(std::bit_ceil(2 * tokens.size() + 1)), rank_(tag_.size()), byte_rank_(256, -1), byte_pair_rank_(65536, -1) {
  begin_.reserve(tokens.size() + 1);
  for (const std::string& t : tokens) {
    begin_.push_back(static_cast<uint32_t>(bytes_.size()));
    bytes_ += t;
    KDELTA_CHECK(!t.empty() && bytes_.size() <= std::numeric_limits<uint32_t>::max());
    longest_ = std::max(longest_, t.size());
  }
  begin_.push_back(static_cast<uint32_t>(bytes_.size()));
  for (int rank = 0; rank < size(); ++rank) insert(rank);
  for (int b = 0; b < 256; ++b) KDELTA_CHECK(byte_rank_[static_cast<size_t>(b)] >= 0, "no token for byte ", b);
}

void Bpe::insert(int rank) {
  const std::string_view t = token(rank);
  KDELTA_CHECK(find(t) < 0, "rank ", rank, " repeats a token");
  const uint64_t h = hash_of(t);
  const size_t mask = tag_.size() - 1;
  size_t i = h & mask;
  while (tag_[i]) i = (i + 1) & mask;
  tag_[i] = tag_of(h);
  rank_[i] = rank;
  if (t.size() == 1) byte_rank_[static_cast<uint8_t>(t[0])] = rank;
  if (t.size() == 2) byte_pair_rank_[byte_pair(t)] = rank;
}

std::string_view Bpe::token(int rank) const {
  const auto r = static_cast<size_t>(rank);
  return std::string_view(bytes_).substr(begin_[r], begin_[r + 1] - begin_[r]);
}

int Bpe::find(std::string_view bytes) const {
  if (bytes.size() == 2) return byte_pair_rank_[byte_pair(bytes)];
  if (bytes.size() > longest_) return -1;
  const uint64_t h = hash_of(bytes);
  const uint8_t tag = tag_of(h);
  const size_t mask = tag_.size() - 1;
  for (size_t i = h & mask; tag_[i]; i = (i + 1) & mask)
    if (tag_[i] == tag && token(rank_[i]) == bytes) return rank_[i];
  return -1;
}

void Bpe::encode(std::string_view piece, std::vector<int32_t>& ids) const {
  const int whole = find(piece);
  if (whole >= 0) {
    ids.push_back(whole);
  } else if (piece.size() <= kShortPiece) {
    merge_short(piece, ids);
  } else {
    merge_long(piece, ids);
  }
}

void Bpe::merge_short(std::string_view piece, std::vector<int32_t>& ids) const {
  // Part i is piece[start[i], start[i+1]); pair[i] is the rank of parts i and i+1 together.
  std::array<size_t, kShortPiece + 1> start;
  std::array<int, kShortPiece + 1> pair, id;
  size_t parts = piece.size();
  for (size_t i = 0; i < parts; ++i) id[i] = byte_rank_[static_cast<uint8_t>(piece[i])];
  for (size_t i = 0; i <= parts; ++i) start[i] = i;
  const auto rank_of = [&](size_t i) {
    if (i + 2 > parts) return kNone;
    const int rank = find(piece.substr(start[i], start[i + 2] - start[i]));
    return rank < 0 ? kNone : rank;
  };
  for (size_t i = 0; i < parts; ++i) pair[i] = rank_of(i);
  while (parts > 1) {
    const size_t best = static_cast<size_t>(std::min_element(pair.begin(), pair.begin() + parts - 1) - pair.begin());
    if (pair[best] == kNone) break;
    std::copy(start.begin() + best + 2, start.begin() + parts + 1, start.begin() + best + 1);
    std::copy(pair.begin() + best + 2, pair.begin() + parts, pair.begin() + best + 1);
    std::copy(id.begin() + best + 2, id.begin() + parts, id.begin() + best + 1);
    --parts;
    id[best] = pair[best];
    pair[best] = rank_of(best);
    if (best > 0) pair[best - 1] = rank_of(best - 1);
  }
  ids.insert(ids.end(), id.begin(), id.begin() + parts);
}

void Bpe::merge_long(std::string_view piece, std::vector<int32_t>& ids) const {
  // Part i begins at byte i; next[i] is where the part behind it begins, 0 in a part that was merged away.
  const size_t n = piece.size();
  std::vector<size_t> next(n + 1), previous(n + 1);
  std::vector<int> pair(n);
  using Entry = std::pair<int, size_t>;  // rank, first byte: the order of merging
  std::vector<Entry> entries;
  for (size_t i = 0; i < n; ++i) {
    next[i] = i + 1;
    previous[i + 1] = i;
  }
  const auto update = [&](size_t i) {
    const size_t j = next[i];
    const int rank = j < n ? find(piece.substr(i, next[j] - i)) : -1;
    pair[i] = rank < 0 ? kNone : rank;
    return rank >= 0;
  };
  for (size_t i = 0; i < n; ++i)
    if (update(i)) entries.emplace_back(pair[i], i);
  std::priority_queue heap(std::greater<Entry>(), std::move(entries));
  while (!heap.empty()) {
    const auto [rank, i] = heap.top();
    heap.pop();
    if (next[i] == 0 || pair[i] != rank) continue;  // one of the two parts has changed since
    const size_t gone = next[i];
    next[i] = next[gone];
    previous[next[i]] = i;
    next[gone] = 0;
    if (update(i)) heap.emplace(pair[i], i);
    if (i > 0 && update(previous[i])) heap.emplace(pair[previous[i]], previous[i]);
  }
  for (size_t i = 0; i < n; i = next[i]) ids.push_back(find(piece.substr(i, next[i] - i)));
}

}  // namespace kdelta
