#include <gtest/gtest.h>
#include <time.h>

#include <algorithm>
#include <set>

#include "kdelta/core/error.h"
#include "kdelta/io/bpe.h"
#include "tests/support/op_test.h"

namespace kdelta {
namespace {

std::vector<std::string> byte_tokens() {
  std::vector<std::string> tokens;
  for (int b = 0; b < 256; ++b) tokens.emplace_back(1, static_cast<char>(b));
  return tokens;
}

// A vocabulary of `count` tokens over `letters`, each a join of two earlier ones, in a random order of ranks.
std::vector<std::string> random_tokens(test::Rng& rng, const std::string& letters, size_t count) {
  std::vector<std::string> made;
  std::set<std::string> seen;
  for (char c : letters) made.emplace_back(1, c);
  const size_t bytes = made.size();
  while (made.size() < bytes + count) {
    const std::string joined = made[rng() % made.size()] + made[rng() % made.size()];
    if (joined.size() <= 24 && seen.insert(joined).second) made.push_back(joined);
  }
  made.erase(made.begin(), made.begin() + static_cast<std::ptrdiff_t>(bytes));
  std::shuffle(made.begin(), made.end(), rng);
  std::vector<std::string> tokens = byte_tokens();
  tokens.insert(tokens.end(), made.begin(), made.end());
  return tokens;
}

// The definition, word for word.
std::vector<int32_t> merged_by_definition(const Bpe& bpe, const std::string& piece) {
  if (bpe.find(piece) >= 0) return {bpe.find(piece)};
  std::vector<std::string> parts;
  for (char c : piece) parts.emplace_back(1, c);
  while (true) {
    int best = -1;
    size_t at = 0;
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const int rank = bpe.find(parts[i] + parts[i + 1]);
      if (rank >= 0 && (best < 0 || rank < best)) best = rank, at = i;
    }
    if (best < 0) break;
    parts[at] += parts[at + 1];
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
  std::vector<int32_t> ids;
  for (const std::string& part : parts) ids.push_back(bpe.find(part));
  return ids;
}

double cpu_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

TEST(Bpe, FindsEveryTokenAndNothingElse) {
  test::Rng rng(1);
  const std::vector<std::string> tokens = random_tokens(rng, "abc\xE5", 3000);
  const Bpe bpe(tokens);
  const std::set<std::string> all(tokens.begin(), tokens.end());
  for (size_t rank = 0; rank < tokens.size(); ++rank) {
    EXPECT_EQ(bpe.find(tokens[rank]), static_cast<int>(rank));
    EXPECT_EQ(bpe.token(static_cast<int>(rank)), tokens[rank]);
    const std::string other = tokens[rank] + "b";
    EXPECT_EQ(bpe.find(other) >= 0, all.contains(other));
  }
  EXPECT_EQ(bpe.find(""), -1);
}

TEST(Bpe, MergesLikeTheDefinitionAtEveryLength) {
  test::Rng rng(2);
  for (const char* letters : {"a", "ab", "abc", "abcdefgh"}) {
    for (size_t count : {3, 40}) {
      if (letters[1] == '\0' && count == 40) continue;  // one letter has at most 24 tokens
      const Bpe bpe(random_tokens(rng, letters, count));
      for (size_t length = 1; length < 320; length += length < 130 ? 1 : 29) {
        std::string piece;
        for (size_t i = 0; i < length; ++i) piece += letters[rng() % std::string_view(letters).size()];
        std::vector<int32_t> ids;
        bpe.encode(piece, ids);
        ASSERT_EQ(ids, merged_by_definition(bpe, piece)) << piece;
      }
    }
  }
}

TEST(Bpe, AWholePieceThatIsATokenWinsOverItsMerges) {
  std::vector<std::string> tokens = byte_tokens();
  for (const char* t : {"bc", "ab", "abc", "abcd"})
    tokens.emplace_back(t);  // "abcd" cannot be merged: bc takes b and c first
  const Bpe bpe(tokens);
  std::vector<int32_t> ids;
  bpe.encode("abcd", ids);
  EXPECT_EQ(ids, std::vector<int32_t>{259});
}

TEST(Bpe, TimeOfOneLongPieceGrowsLikeItsLength) {
  test::Rng rng(3);
  const Bpe bpe(random_tokens(rng, "ab", 60));
  const auto seconds = [&](size_t bytes) {
    std::string piece;
    for (size_t i = 0; i < bytes; ++i) piece += "ab"[i % 3 == 0];
    double best = 1e9;
    for (int repeat = 0; repeat < 3; ++repeat) {
      std::vector<int32_t> ids;
      const double start = cpu_seconds();
      bpe.encode(piece, ids);
      best = std::min(best, cpu_seconds() - start);
    }
    return best;
  };
  // 64 times the bytes: about 90 times the time by n log n, more where a cache is left behind, 4096 times if quadratic.
  EXPECT_LT(seconds(1 << 20), 800 * seconds(1 << 14));
}

}  // namespace
}  // namespace kdelta
