// Every switch of the library in one struct; frontends fill it, nothing else reads an environment variable or argv.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "kdelta/core/dtype.h"
#include "kdelta/core/isa.h"

namespace kdelta {

struct Options {
  IsaLevel isa = detect_isa();                            // upper limit for choose(); lower it to test older processors
  std::map<std::string, std::string, std::less<>> force;  // op name -> variant name
  // On CUDA too the bits of an answer depend on its own inputs alone, never on how many rows are computed beside it, at
  // some cost in time. The CPU is always exact.
  bool exact = false;
  int threads = 0;  // 0: every available CPU
  // CUDA: in steps of at most so many rows a layer puts projections that need not wait for one another on two queues;
  // in larger ones each fills the device alone. 0: never. No bit depends on it.
  int64_t overlap_rows = 64;

  // "kda:reference,linear:avx2"; adds to `force`. Throws Error(invalid_argument) on malformed text. Unknown ops and
  // variants are refused by the op that is asked for them, with its list.
  void parse_force(std::string_view text);
};

}  // namespace kdelta
