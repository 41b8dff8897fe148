// Token embedding: out[t, :] = table[token[t], :].  Letters: T tokens, D width. token -1 (padding) gives zeros, and so
// does a token whose row another rank holds: the sum over the ranks is the embedding.
#pragma once

#include "kdelta/core/exec.h"
#include "kdelta/core/matrix.h"

namespace kdelta {

struct EmbedArgs {
  View<const int32_t> token;  // [T]
  Matrix table;               // [vocabulary, D] f32 or bf16; or the rows from `first` on of `vocabulary`
  AnyView out;                // [T, D] f32 or bf16
  int64_t first = 0;          // token of the table's first row
  int64_t vocabulary = 0;     // 0: the table has them all
};

// T = 0 is legal; the table may start at any byte of a mapped file. Throws Error(invalid_argument) naming the argument.
// On the CPU a token outside -1..vocabulary-1 throws Error(invalid_argument) naming it, before anything is written.
void embed(const Exec& ex, const EmbedArgs& args);

Cost embed_cost(const EmbedArgs& args);

}  // namespace kdelta
