// Wrong usage: what makes the program end with exit code 2, in the words of its flags.
#pragma once

#include <cstdint>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

namespace kdelta::cli {

// Thrown for a value that a flag does not take. The message begins with the flag.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The library names options by their fields ("top_p: 2, expected 0..1"); people know the flag ("--top-p: 2, ...").
std::string in_words_of_flags(const std::string& message);

// Where a command's engine has its size from: the flags that make it smaller. "": nothing of that command does.
struct LengthFlags {
  std::string max_length = "--max-model-len", max_sequences = {};
};
// A refusal for want of memory, naming what the command has and nothing else.
std::string want_of_memory(std::string message, const LengthFlags& flags);

// What to say of a command line whose first word, `words[0]`, is none of `commands`.
std::string no_command(const std::vector<std::string>& words, const std::vector<std::string>& commands);

// The one of `known` that `word` is a slip of: two letters at most, and fewer than half of them. "": none is.
std::string nearest(const std::string& word, const std::vector<std::string>& known);

// Throws UsageError naming the flag and the first id that is outside 0..vocabulary-1.
void check_ids(const char* flag, const std::vector<int32_t>& ids, int64_t vocabulary);

}  // namespace kdelta::cli
