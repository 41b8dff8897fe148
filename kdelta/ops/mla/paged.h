// Finding a position's latent row, and the checks that make it safe. Shared by mla and mla_append.
#pragma once

#include "kdelta/ops/mla/mla.h"

namespace kdelta {

// Shapes only; reads no array. Throws Error(invalid_argument) prefixed with `op`.
void expect_paged(const PagedSequences& s, const char* op);

// CPU backend, before any work: throws Error(invalid_argument) when cu does not start at 0, decreases or ends past
// `tokens`; when rows past n_prefill + n_decode hold tokens; when a live sequence's context is negative, its sizes pass
// max_len or max_context, or a page it needs is missing, < 1 or >= page_count.
void validate_paged(const PagedSequences& s, int64_t tokens, int64_t page_count, int64_t page_tokens, const char* op);

// Row of position `s` of sequence `n` in a dense cache [page count, G, width].
template <class T>
KDELTA_INLINE T* cache_row(T* cache, const PagedSequences& seq, int64_t G, int64_t width, int64_t n, int64_t s) {
  return cache + (static_cast<int64_t>(*seq.pages.at(n, s / G)) * G + s % G) * width;
}

}  // namespace kdelta
