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
  virtual const ModelConfig& config() const = 0;
  // Every weight with the full prefix of its names; targets live inside this object.
  virtual std::vector<PlacedSpec> weights() = 0;
  // Per layer, in the order in which forward() expects the pools. An empty row is legal.
  virtual std::vector<std::vector<StateSpec>> states(const StateParams& params) const = 0;
  // Enqueues one step. states[layer] are that layer's pools. Activations have dtype `activation`; logits [M,
  // vocabulary] fp32 receives the rows that b.logit_row names (zeros for -1).
  virtual void forward(const Exec& ex, const Batch& b, std::span<const std::vector<AnyView>> states, DType activation,
                       const View<float>& logits) const = 0;
  // Enqueues Mixer::replay of every layer.
  virtual void replay(const Exec& ex, const View<const int32_t>& slot, const View<const int32_t>& accepted,
                      std::span<const std::vector<AnyView>> states) const = 0;
};

// The only list of models: config.kind -> object without weights.
std::unique_ptr<Model> make_model(const ModelConfig& config);

}  // namespace kdelta
