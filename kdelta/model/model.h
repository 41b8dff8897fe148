// A loaded model as the runtime sees it: what it needs, what it remembers, one step forward.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "kdelta/layers/forward.h"
#include "kdelta/model/bind.h"
#include "kdelta/model/config.h"

namespace kdelta {

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
  // Enqueues Mixer::replay of every layer.
  virtual void replay(const Exec& ex, const View<const int32_t>& slot, const View<const int32_t>& accepted,
                      std::span<const std::vector<AnyView>> states) const = 0;
};

// The only list of models: config.kind -> object without weights. Throws Error(unsupported) naming the config's field,
// its value and the number of ranks when they cannot have equal parts.
std::unique_ptr<Model> make_model(const ModelConfig& config, const Shard& shard = {});

}  // namespace kdelta
