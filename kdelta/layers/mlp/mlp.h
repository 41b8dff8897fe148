// The dense feed-forward sublayer: down(act(gate(x), up(x))).
#pragma once

#include "kdelta/layers/forward.h"
#include "kdelta/ops/activation/activation.h"

namespace kdelta {

struct MlpConfig {
  int64_t hidden = 0, width = 0;  // width: of this rank
  ActivationKind activation = ActivationKind::swiglu;
  float beta = 1, linear_beta = 0;  // SiTU
  std::string prefix;               // of its tensor names: "" or "shared_experts."
};

class Mlp final : public Ffn {
 public:
  explicit Mlp(const MlpConfig& config) : c_(config) {}
  std::vector<WeightSpec> weights() override;
  void forward(const Exec& ex, const Batch& b, const AnyConstView& x, const AnyConstView& addend,
               const AnyView& out) const override;

 private:
  MlpConfig c_;
  Matrix gate_, up_, down_;
};

}  // namespace kdelta
