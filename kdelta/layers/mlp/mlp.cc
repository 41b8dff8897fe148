#include "kdelta/layers/mlp/mlp.h"

#include "kdelta/layers/over_ranks.h"
#include "kdelta/layers/project_runs.h"

namespace kdelta {

std::vector<WeightSpec> Mlp::weights() {
  return {
      {.names = {c_.prefix + "gate_proj"}, .shape = {c_.width, c_.hidden}, .shard = ShardRule::rows, .target = &gate_},
      {.names = {c_.prefix + "up_proj"}, .shape = {c_.width, c_.hidden}, .shard = ShardRule::rows, .target = &up_},
      {.names = {c_.prefix + "down_proj"},
       .shape = {c_.hidden, c_.width},
       .shard = ShardRule::columns,
       .target = &down_}};
}

void Mlp::forward(const Exec& ex, const Batch&, const AnyConstView& x, const AnyConstView& addend,
                  const AnyView& out) const {
  Arena::Scope scope(*ex.scratch);
  const AnyView gate = ex.scratch->take(x.dtype, {x.dim(0), c_.width}),
                up = ex.scratch->take(x.dtype, {x.dim(0), c_.width});
  const LinearPart parts[] = {{gate_, gate}, {up_, up}};
  project_runs(ex, x, parts);
  activation(
      ex, {.kind = c_.activation, .beta = c_.beta, .linear_beta = c_.linear_beta, .gate = gate, .up = up, .out = gate});
  linear_over_ranks(ex, gate, down_, addend, out);
}

}  // namespace kdelta
