// A loaded model as the runtime sees it: what it needs, what it remembers, one step forward.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kdelta/layers/forward.h"
#include "kdelta/model/bind.h"
#include "kdelta/model/config.h"

namespace kdelta {

// A sublayer of a model, in the order in which a step goes through them.
struct Sublayer {
  std::string name;  // as its tensors begin: "model.layers.3.self_attn"
  // What it enqueues follows from which rows are prompts and how long they are, so that a recording of it would serve
  // one mix of them alone: every mixer.
  bool breaks = false;
};

// Where a step of mixed rows is broken into pieces: true for each sublayer that runs op by op, those that ask for it
// and those of `also`. Throws Error(invalid_argument) for a name that is none of `all`.
std::vector<bool> break_list(std::span<const Sublayer> all, std::span<const std::string> also);

// What becomes of the pieces of a step between its breaks. A piece is the same work whatever rows a step has, as long
// as it has as many token rows and sequence rows.
class Pieces {
 public:
  virtual ~Pieces() = default;
  // Either calls `enqueue`, or enqueues what an earlier call for this piece did. Pieces are numbered from 0 on, in
  // order.
  virtual void run(const Exec& ex, size_t piece, const std::function<void()>& enqueue) = 0;
};

class Model {
 public:
  virtual ~Model() = default;
  virtual const ModelConfig& config() const = 0;  // of the whole model
  virtual const Shard& shard() const = 0;         // what of it this object is
  // Every weight with the full prefix of its names; targets live inside this object.
  virtual std::vector<PlacedSpec> weights() = 0;
  // Per layer, in the order in which forward() expects the pools. An empty row is legal.
  virtual std::vector<std::vector<StateSpec>> states(const StateParams& params) const = 0;
  // Enqueues one step; of one rank of several, together with the same step of all others in ex.comm. states[layer] are
  // that layer's pools. Activations have dtype `activation`; logits [M, vocabulary] fp32 receives the rows that
  // b.logit_row names (zeros for -1).
  virtual void forward(const Exec& ex, const Batch& b, std::span<const std::vector<AnyView>> states, DType activation,
                       const View<float>& logits) const = 0;
  virtual std::span<const Sublayer> sublayers() const = 0;
  // The same step, broken: sublayers that `broken` (a break list) names are enqueued here, and so is what makes the
  // logits; the rest is left to `pieces`.
  virtual void forward_in_pieces(const Exec& ex, const Batch& b, std::span<const std::vector<AnyView>> states,
                                 DType activation, const View<float>& logits, const std::vector<bool>& broken,
                                 Pieces& pieces) const = 0;
  // Enqueues Mixer::replay of every layer.
  virtual void replay(const Exec& ex, const View<const int32_t>& slot, const View<const int32_t>& accepted,
                      std::span<const std::vector<AnyView>> states) const = 0;
};

// The only list of models: config.kind -> object without weights. Throws Error(unsupported) naming the config's field,
// its value and the number of ranks when they cannot have equal parts.
std::unique_ptr<Model> make_model(const ModelConfig& config, const Shard& shard = {});

}  // namespace kdelta
