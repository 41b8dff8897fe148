// The KDA layer: projections, short convolution, gated delta rule, gated norm, output projection (Kimi Linear report,
// section 4).
#pragma once

#include "kdelta/layers/forward.h"

namespace kdelta {

struct KdaLayerConfig {
  int64_t hidden = 0, heads = 0, head_dim = 0, conv_width = 0;
  bool full_rank_gate = false;  // g_proj, else g_b(g_a(x)) of rank head_dim
  bool bounded_gate = false;    // lower_bound * sigmoid, else softplus
  float lower_bound = 0;
  float norm_eps = 0;  // of the gated output norm
};

class KdaLayer final : public Mixer {
 public:
  explicit KdaLayer(const KdaLayerConfig& config) : c_(config) {}
  std::vector<WeightSpec> weights() override;
  // recurrent [H, V, K] per column, then the convolution window [W-1 + columns-1, 3 H K].
  std::vector<StateSpec> states(const StateParams& params) const override;
  void forward(const Exec& ex, const Batch& b, StateView state, const AnyConstView& x, const AnyConstView& addend,
               const AnyView& out) const override;

 private:
  KdaLayerConfig c_;
  Matrix q_, k_, v_, f_a_, f_b_, b_, g_, g_a_, g_b_, o_;
  View<const float> conv_, a_log_, dt_bias_, o_norm_;
};

}  // namespace kdelta
