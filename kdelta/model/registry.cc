#include "kdelta/core/check.h"
#include "kdelta/model/kimi_k3.h"
#include "kdelta/model/kimi_linear.h"
#include "kdelta/model/model.h"

namespace kdelta {

std::unique_ptr<Model> make_model(const ModelConfig& config, const Shard& shard) {
  check_shard(shard);
  switch (config.kind) {
    case ModelKind::kimi_linear:
      return make_kimi_linear(config, shard);
    case ModelKind::kimi_k3:
      return make_kimi_k3(config, shard);
  }
  KDELTA_UNREACHABLE("model kind", config.kind);
}

}  // namespace kdelta
