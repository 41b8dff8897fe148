// Multi-head latent attention without positions (NoPE), causal, over paged latents. Per token the cache holds c (the
// normed latent, width L) and kr (width R, shared by all heads). Per head h, with kv_b rows h*(Nn+V)..: W_UK [Nn, L]
// then W_UV [V, L]:
//   score[t, s] = (q[t,h,:Nn] . W_UK c_s + q[t,h,Nn:] . kr_s) * scale   for positions s <= position of t
//   out[t, h]   = W_UV (sum_s softmax(score)_s c_s)
// Letters: T tokens, N sequences, H heads (any number), Nn nope width, R rope width (never rotated), L latent width, V
// value width, G tokens per page. Two schedules of one equation: prefill expands k and v per page, decode absorbs W_UK
// into q. Exact: a row's sum over the past runs page by page in absolute order, so cuts, company and padding do not
// change its bits.
#pragma once

#include "kdelta/core/exec.h"
#include "kdelta/core/matrix.h"

namespace kdelta {

// Which tokens belong to whom, and where their latents lie.
struct PagedSequences {
  View<const int32_t> cu;       // [N+1], as in ops/common/sequences.h
  View<const int32_t> context;  // [N] tokens of the sequence before this step
  View<const int32_t> pages;    // [N, P] page numbers in order; page 0 is nobody's, -1 unused
  int n_prefill = 0, n_decode = 0;
  int64_t max_len = 0;      // upper bound of a length this step
  int64_t max_context = 0;  // upper bound of context + length
};

// Stores this step's latents: token i of sequence n goes to position context[n] + i.
struct MlaAppendArgs {
  AnyConstView latent;  // [T, L] normed, f32 or bf16, row stride free
  AnyConstView rope;    // [T, R], same dtype
  PagedSequences seq;
  AnyView cache;  // [page count, G, L+R] in the same dtype, dense
};
void mla_append(const Exec& ex, const MlaAppendArgs& args);

struct MlaArgs {
  AnyConstView q;      // [T, H, Nn+R] f32 or bf16; token and head strides free
  AnyConstView cache;  // [page count, G, L+R], holds this step's tokens already; past the last token it may hold
                       // anything (NaN too)
  Matrix kv_b;         // [H*(Nn+V), L] f32, bf16 or MX
  PagedSequences seq;
  int64_t nope = 0, rope = 0, value = 0, latent = 0;
  float scale = 0;  // (Nn+R)^-0.5
  AnyView out;      // [T, H, V] in q's dtype; rows past cu[N] are written as zeros
};
// Both throw Error(invalid_argument) naming the argument; on the CPU also for boundaries or page numbers out of range
// (a needed page that is < 1, >= page count or missing), before anything is written.
// On CUDA a row with such a fault is skipped whole: nothing stored, its outputs zero, Fault::boundaries, ::length (more
// tokens than max_len or max_context allow) or ::page raised, nobody else touched.
void mla(const Exec& ex, const MlaArgs& args);

Cost mla_cost(const MlaArgs& args);

}  // namespace kdelta
