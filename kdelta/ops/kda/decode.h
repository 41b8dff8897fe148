// A decode step of a KDA layer between its projections, one token a sequence: short_conv() with SiLU on q | k | v,
// kda() on what comes of it, gated_norm() of its output, each rounded to the activations' dtype as by itself. A fused
// row has the bits of the three ops' rows on its device.
// Letters: T tokens, N sequences, H heads, K key width, V value width, W taps, C = H (2 K + V).
#pragma once

#include "kdelta/ops/kda/kda.h"

namespace kdelta {

struct KdaDecodeArgs {
  AnyConstView qkv;               // [T, C] raw q | k | v of the projections, f32 or bf16, row stride free
  View<const float> conv_weight;  // [W, C]
  AnyConstView decay;             // [T, H, K], the `gate` of kda()
  AnyConstView beta;              // [T, H]
  View<const float> a_log;        // [H]
  View<const float> dt_bias;      // [H, K]
  KdaGate gate_kind = KdaGate::bounded;
  float lower_bound = -5.0f;
  KdaBeta beta_kind = KdaBeta::raw;
  KdaNorm norm_kind = KdaNorm::l2;
  float scale = 0;
  AnyConstView gate;              // [T, H, V], the `gate` of gated_norm(), raw; its activation is the sigmoid
  View<const float> norm_weight;  // [V]
  float norm_eps = 0;
  Sequences seq;   // decode rows alone, of one column, so of at most one token
  AnyView state;   // [slots, H, V, K]
  AnyView window;  // [slots, R, C] in qkv's dtype, R >= W-1
  AnyView out;     // [T, H, V] in qkv's dtype, token and head strides free; may not overlap an input
};

// The rules of the three ops for strides, faults, slot -1 and length 0; a slot is one of both pools. Rows of out that
// no live sequence covers are zeros. Snapshots, which name prompts, are not looked at. Throws Error(invalid_argument)
// naming the argument, before anything is written.
void kda_decode(const Exec& ex, const KdaDecodeArgs& args);

// Whether one kernel takes the call: where none does the ops one behind the other are faster than kda_decode(), whose
// only other row is the reference. An op of the three whose row is forced is not fused, unless one of kda_decode is.
bool kda_decode_fuses(const Exec& ex, const KdaDecodeArgs& args);

Cost kda_decode_cost(const KdaDecodeArgs& args);

}  // namespace kdelta
