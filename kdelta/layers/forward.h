// What runs (Batch), what is remembered (StateView), and the two kinds of sublayer (Mixer, Ffn).
#pragma once

#include <span>
#include <vector>

#include "kdelta/core/exec.h"
#include "kdelta/layers/spec.h"

namespace kdelta {

// One step, built once by runtime/batch_builder and the same for all layers. No optional fields: unused entries are
// filled. Sequences are laid out prefill | decode; a sequence is one or the other by how many tokens it has computed,
// never by its length. Letters: T token rows, N sequence rows, M rows of logits, P page columns, Q snapshots (all
// capacities of the step).
struct Batch {
  // Host part: capacities and upper bounds, all that choose() and launch shapes may read.
  int n_prefill = 0, n_decode = 0;  // sequences
  int64_t max_len = 0;              // tokens of one sequence in this step
  int64_t max_context = 0;          // tokens of one sequence after this step
  // Device part.
  View<const int32_t> token;      // [T], -1 for padded rows
  View<const int32_t> cu;         // [N+1]; cu[N] live tokens
  View<const int32_t> context;    // [N] tokens already in the state
  View<const int32_t> slot;       // [N, columns], -1 for padded rows
  View<const int32_t> accepted;   // [N] in 1..columns
  View<const uint8_t> fresh;      // [N]
  View<const int32_t> pages;      // [N, P], -1 unused
  View<const int32_t> logit_row;  // [M] token row whose logits are wanted, -1: zeros
  View<const int32_t> draft;      // [T] draft token that the row's prediction is compared with, -1: none
  View<const int32_t> snapshot;   // [Q, 3] (sequence, tokens of this step, slot), slot -1 unused

  int64_t tokens() const { return token.dim(0); }
  int64_t sequences() const { return context.dim(0); }
  // Live tokens as a one-element view, for ops that zero the rows past it.
  View<const int32_t> live() const { return View<const int32_t>(cu.data + sequences(), Shape{1}); }
};

// The pools of one layer, in the order of its StateSpecs: slot [slots, shape...], page [pages, shape...].
using StateView = std::span<const AnyView>;

// A sublayer that remembers: KDA, MLA. x is the normed input; out = f(x) (+ addend, which may be out itself).
class Mixer {
 public:
  virtual ~Mixer() = default;
  virtual std::vector<WeightSpec> weights() = 0;
  virtual std::vector<StateSpec> states(const StateParams& params) const = 0;
  virtual void forward(const Exec& ex, const Batch& b, StateView state, const AnyConstView& x,
                       const AnyConstView& addend, const AnyView& out) const = 0;
  // Brings states of SlotRule::replay to where accepted = 1 finds them, for sequences whose last step kept accepted[n]
  // tokens; slot[n] is column 0 of the sequence, -1: none. A mixer without such states has nothing to do.
  virtual void replay(const Exec&, const View<const int32_t>& /*slot*/, const View<const int32_t>& /*accepted*/,
                      StateView) const {}
};

// A sublayer without memory: MLP, MoE.
class Ffn {
 public:
  virtual ~Ffn() = default;
  virtual std::vector<WeightSpec> weights() = 0;
  virtual void forward(const Exec& ex, const Batch& b, const AnyConstView& x, const AnyConstView& addend,
                       const AnyView& out) const = 0;
};

}  // namespace kdelta
