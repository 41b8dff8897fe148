// The KDA layer: projections, short convolution, gated delta rule, gated norm, output projection (Kimi Linear report,
// section 4).
#pragma once

#include "kdelta/layers/forward.h"

namespace kdelta {

// The decay gate is f_b(f_a(x)), of rank head_dim: either in these two steps, or as one matrix F = f_b f_a, which saves
// a dependent projection and costs the bytes of F.
enum class KdaGateForm : uint8_t { factored, composed };

struct KdaLayerConfig {
  int64_t hidden = 0, heads = 0, head_dim = 0, conv_width = 0;  // heads: of this rank
  KdaGateForm gate_form = KdaGateForm::factored;
  bool full_rank_gate = false;  // g_proj, else g_b(g_a(x)) of rank head_dim, always in two steps
  bool bounded_gate = false;    // lower_bound * sigmoid, else softplus
  float lower_bound = 0;
  float norm_eps = 0;  // of the gated output norm
};

class KdaLayer final : public Mixer {
 public:
  explicit KdaLayer(const KdaLayerConfig& config) : c_(config) {}
  std::vector<WeightSpec> weights() override;
  // recurrent [H, V, K], then the convolution window [W-1 + columns-1, 3 H K], then, when drafts leave records, those
  // [columns-1, H, 2 K + V].
  std::vector<StateSpec> states(const StateParams& params) const override;
  void forward(const Exec& ex, const Batch& b, StateView state, const AnyConstView& x, const AnyConstView& addend,
               const AnyView& out) const override;
  void replay(const Exec& ex, const View<const int32_t>& slot, const View<const int32_t>& accepted,
              StateView state) const override;

 private:
  // Where the projections of x go.
  struct Inputs {
    AnyView qkv, gate, decay;
    View<float> beta;
    AnyView low_gate, low_decay;  // what g_b and f_b take; of a gate of full rank, or composed, the values themselves
  };
  DType decay_dtype(const AnyConstView& x) const;
  Inputs take_inputs(const Exec& ex, const AnyConstView& x) const;
  void project_on_one_queue(const Exec& ex, const AnyConstView& x, const Inputs& in) const;
  void expand_decay(const Exec& ex, const Inputs& in) const;
  void expand_both(const Exec& ex, const Inputs& in) const;
  void expand_gate(const Exec& ex, const Inputs& in) const;

  KdaLayerConfig c_;
  Matrix q_, k_, v_, b_, o_;
  Matrix g_, g_b_;  // g_: g_proj or g_a
  Matrix f_, f_b_;  // f_: f_a or F
  View<const float> conv_, a_log_, dt_bias_, o_norm_;
};

}  // namespace kdelta
