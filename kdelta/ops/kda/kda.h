// Kimi Delta Attention, the gated delta rule with a decay per key channel. For each sequence and head, token by token:
//   qn = q / sqrt(sum q^2 + 1e-6),  kn likewise                        (l2; otherwise taken as they are)
//   g  = lower_bound * sigmoid(exp(a_log) * (gate + dt_bias))          (bounded; lower_bound in [-5, 0))
//      = -exp(a_log) * softplus(gate + dt_bias)                        (softplus, stable form, no lower bound)
//   b  = sigmoid(beta)                                                 (raw; otherwise taken as it is)
//   S <- S diag(exp(g));  u = b (v - S kn);  S <- S + u kn^T;  o = S (scale * qn)
// with S stored [V, K] (papers write its transpose). Source: Kimi Linear report (arXiv 2510.26692) and Kimi K3 report.
// Letters: T tokens, N sequences, H heads, K key width, V value width.
// Prefill sequences run in chunks of 64 tokens counted from the first token of this call, decode rows token by token:
// two schedules of one equation. Gate, cumulative gate, beta and state accumulate in fp32; exact for every gate value.
#pragma once

#include "kdelta/core/exec.h"
#include "kdelta/ops/common/sequences.h"

namespace kdelta {

inline constexpr int kKdaChunk = 64;

enum class KdaGate : uint8_t { softplus, bounded };
enum class KdaBeta : uint8_t { raw, preprocessed };
enum class KdaNorm : uint8_t { l2, none };

struct KdaArgs {
  AnyConstView q, k;          // [T, H, K] f32 or bf16; token and head strides free (views of the merged conv output)
  AnyConstView v;             // [T, H, V], same dtype
  AnyConstView gate;          // [T, H, K] raw decay input, f32 or bf16
  AnyConstView beta;          // [T, H] f32 or bf16, token stride free
  View<const float> a_log;    // [H]
  View<const float> dt_bias;  // [H, K]
  KdaGate gate_kind = KdaGate::bounded;
  float lower_bound = -5.0f;  // bounded only
  KdaBeta beta_kind = KdaBeta::raw;
  KdaNorm norm_kind = KdaNorm::l2;
  float scale = 0;  // usually K^-0.5
  Sequences seq;
  AnyView state;  // [slots, H, V, K] f32 or bf16, slot stride free, inner three axes dense; updated in place
  // What drafts did, [slots, columns-1, H, 2K + V], slot stride free, the rest dense; null: each draft column has a
  // slot of its own. See below.
  View<float> records;
  AnyView out;  // [T, H, V] in v's dtype, token and head strides free; may not overlap an input
};

// Rows of out that no live sequence covers are written as zeros. Length 0 touches nothing; slot -1 writes zeros to its
// rows of out and touches no state. Slot 0 is never read or written. A snapshot (n, i, s) stores the state after the
// first i tokens of prefill sequence n in slot s. A decode row continues from the state it stored, rounded to the
// pool's dtype: verifying len tokens has the bits of len single steps. A prefill rounds its state to the pool's dtype
// after every 64 tokens and at its end, so a prefill cut at a multiple of 64 has the bits of the whole.
//
// What a verification may be taken back to is kept in one of two ways. Outputs, and every state that is read again,
// have the same bits in both.
// - Slots (records null): a sequence starts from column accepted-1 of its slots (zero when fresh) and writes column 0
//   (prefill) or column i after its token i, counted from 0 (decode).
// - Records: a sequence has one slot, column 0; the other columns are not looked at. Token i of a decode row is a draft
//   for i > 0: it leaves record i-1 of that slot, exp(g) [K] | kn [K] | u [V] for each head, and the slot keeps the
//   state after token 0. A sequence starts from the state that kda_replay would leave: records 0..accepted-2 applied in
//   order, S <- S diag(exp(g)) + u kn^T, each rounded to the pool's dtype. Other records are never read. A prefill
//   writes none. exp(g) and kn of a record serve all value channels: a kernel that splits a head among blocks reads
//   what it replays in all of them before one writes.
//
// Throws Error(invalid_argument) naming the argument for wrong shapes, dtypes, strides, lower_bound outside [-5, 0),
// and for the faults that validate_sequences lists, before anything is written. f16 inputs, more value than key heads
// and negative eigenvalues (beta doubled) are refused by shape or dtype.
void kda(const Exec& ex, const KdaArgs& args);

Cost kda_cost(const KdaArgs& args);

// Commits drafts: brings the state in each row's slot to where accepted = 1 starts from it, to the bit that kda with
// records would start from. Slot -1 is skipped, accepted 1 changes nothing; no two rows may name one slot. Only
// enqueues. Runs the kernel of the instruction set that kda would run. Throws Error(invalid_argument) naming the
// argument for wrong shapes, dtypes and strides, accepted outside 1..columns, slots outside 1..slots-1 or named twice,
// before anything is written; on CUDA a row whose slot or accepted is such is skipped whole and raises its Fault.
struct KdaReplayArgs {
  AnyView state;  // as above
  View<float> records;
  View<const int32_t> slot, accepted;  // [N]; accepted in 1..columns
};
void kda_replay(const Exec& ex, const KdaReplayArgs& args);

}  // namespace kdelta
