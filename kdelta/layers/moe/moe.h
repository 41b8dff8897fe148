// The mixture-of-experts sublayer, plain (experts read the hidden vector) or latent (K3: experts work in a narrower
// space between a down and an up projection, with a norm on the weighted sum). The router and the shared experts always
// read the full width.
#pragma once

#include <memory>

#include "kdelta/layers/forward.h"
#include "kdelta/layers/mlp/mlp.h"

namespace kdelta {

struct MoeConfig {
  int64_t hidden = 0, experts = 0, chosen = 0;
  int64_t first = 0, held = 0;  // experts of this rank, from `first` on; held 0: all
  int64_t width = 0;            // of an expert, this rank's part of it
  bool width_dealt = false;     // there are other parts
  int64_t latent = 0;           // 0: plain
  int64_t latent_held = 0;      // this rank's inputs of the up projection; 0: all
  bool latent_norm = false;
  int64_t groups = 1, topk_groups = 1;
  bool renormalize = true;
  float scaling = 1;
  int64_t shared_width = 0;  // of this rank; 0: no shared experts
  ActivationKind activation = ActivationKind::swiglu;
  float beta = 1, linear_beta = 0;
  float norm_eps = 0;
};

class Moe final : public Ffn {
 public:
  explicit Moe(const MoeConfig& config);
  std::vector<WeightSpec> weights() override;
  void forward(const Exec& ex, const Batch& b, const AnyConstView& x, const AnyConstView& addend,
               const AnyView& out) const override;

 private:
  struct Routing;
  int64_t held() const { return c_.held > 0 ? c_.held : c_.experts; }
  // The weighted sum over the experts of this rank, in out's dtype.
  // `addend` may still be made on the queue of `beside`, which is joined before it is read; null: it is there.
  void sum_routed(const Exec& ex, const Batch& b, const AnyConstView& x, const AnyConstView& z,
                  const AnyConstView& addend, const AnyView& out, Fork* beside = nullptr) const;
  void forward_over_ranks(const Exec& ex, const Batch& b, const AnyConstView& x, const AnyConstView& addend,
                          const AnyView& out) const;
  Routing route(const Exec& ex, const Batch& b, const AnyConstView& x) const;
  AnyView run_experts(const Exec& ex, const Routing& r, const AnyConstView& z) const;

  MoeConfig c_;
  std::unique_ptr<Mlp> shared_;
  Matrix gate_, latent_down_, latent_up_;
  View<const float> bias_, latent_norm_;
  std::vector<Matrix> w1_, w2_, w3_;
};

}  // namespace kdelta
