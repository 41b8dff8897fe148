// Kimi-Linear: the decoder with an ordinary residual stream.
#pragma once

#include "kdelta/model/model.h"

namespace kdelta {

std::unique_ptr<Model> make_kimi_linear(const ModelConfig& config, const Shard& shard);

}  // namespace kdelta
