// Kimi K3 (text): the decoder with block attention residuals.
#pragma once

#include "kdelta/model/model.h"

namespace kdelta {

std::unique_ptr<Model> make_kimi_k3(const ModelConfig& config, const Shard& shard);

}  // namespace kdelta
