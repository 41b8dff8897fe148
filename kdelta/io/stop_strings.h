// Ends an answer at a stop string, also when the string comes in several pieces, and never lets a part of it out. Only
// the answer is fed, so a match across prompt and answer cannot happen.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kdelta {

class StopStrings {
 public:
  // No stop strings: everything passes at once. Throws Error(invalid_argument) on an empty one or one that is not
  // UTF-8, naming its position.
  explicit StopStrings(std::vector<std::string> stops);

  // The part of the text so far that may be sent now: all but the longest tail that could still become a stop string.
  // The answer ends where the first stop string is complete, before the longest of those complete there; what follows
  // is dropped. This depends on the text alone, never on how it was cut into deltas.
  std::string feed(std::string_view delta);
  // The end of the answer: the tail that was held, empty after a stop.
  std::string finish();

  // Position in the constructor's list of the string that ended the answer, -1 when none has.
  int stopped_by() const { return stopped_by_; }
  bool stopped() const { return stopped_by_ >= 0; }

 private:
  struct Pattern {
    std::string text;
    std::vector<size_t>
        border;  // [size+1] of each prefix: its longest proper prefix that is also its suffix (Knuth-Morris-Pratt)
    size_t matched = 0;  // longest prefix that ends the text so far
  };
  static Pattern make_pattern(std::string text);
  static void advance(Pattern& pattern, char c);

  std::vector<Pattern> patterns_;
  std::string held_;
  int stopped_by_ = -1;
};

}  // namespace kdelta
