// The pre-tokenizer of the Kimi vocabularies: where a text is cut into pieces before byte-pair encoding. Hand-written
// for one pattern, exact (backtracking included), linear in the text, without recursion. Pattern, first matching
// alternative first, with P = [^\r\n\p{L}\p{N}], U = [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}] and W = [\p{Ll}\p{Lm}\p{Lo}\p{M}]
// both without Script=Han:
//   1  \p{Han}+
//   2  P? U* W+ (?i:'s|'t|'re|'ve|'m|'ll|'d)?
//   3  P? U+ W* (?i:'s|'t|'re|'ve|'m|'ll|'d)?
//   4  \p{N}{1,3}
//   5  ' '? [^\s\p{L}\p{N}]+ [\r\n]*
//   6  \s*[\r\n]+       7  \s+(?!\S)       8  \s+
// Text that is not UTF-8: a maximal ill-formed subsequence counts as one character that is no letter, number, space or
// newline, and its bytes go to the byte tokens, so decoding gives them back.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

namespace kdelta {

// The vendor's tokenizer cuts long input before it applies the pattern; the ids depend on it. Counted in characters.
inline constexpr int kMaxChunkChars = 400'000;
inline constexpr int kMaxRunChars = 25'000;  // of consecutive white space, or of consecutive non-space

// Ends (byte offsets, ascending, the last is text.size()) of the chunks that are split independently. Empty for an
// empty text.
std::vector<size_t> chunk_ends(std::string_view text);

// End of the piece that starts at begin < chunk.size().
size_t piece_end(std::string_view chunk, size_t begin);

}  // namespace kdelta
