// The full-attention layer: latent attention without positions, optional low-rank query and sigmoid output gate.
#pragma once

#include "kdelta/layers/forward.h"

namespace kdelta {

struct MlaLayerConfig {
  int64_t hidden = 0, heads = 0 /* of this rank */, nope = 0, rope = 0, value = 0, latent = 0;
  int64_t query_rank = 0;    // 0: q_proj; else q_a -> norm -> q_b
  bool output_gate = false;  // g_proj
  // The vendor's code builds the two latent norms with its class default, whatever rms_norm_eps says.
  float latent_norm_eps = 1e-6f;
};

class MlaLayer final : public Mixer {
 public:
  explicit MlaLayer(const MlaLayerConfig& config) : c_(config) {}
  std::vector<WeightSpec> weights() override;
  // One page holds page_tokens x [latent | rope].
  std::vector<StateSpec> states(const StateParams& params) const override;
  void forward(const Exec& ex, const Batch& b, StateView state, const AnyConstView& x, const AnyConstView& addend,
               const AnyView& out) const override;

 private:
  AnyView query(const Exec& ex, const AnyConstView& x) const;

  MlaLayerConfig c_;
  Matrix q_, q_a_, q_b_, kv_a_, kv_b_, g_, o_;
  View<const float> q_norm_, kv_norm_;
};

}  // namespace kdelta
