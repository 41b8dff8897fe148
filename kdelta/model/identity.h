// Tells models apart without reading them: a number that is the same wherever the same weights are loaded, however
// files are cut, tensors are prefixed and ranks share them, and another one for other weights or another config.
// Whoever keeps what a model computed (a saved state) keeps it beside.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "kdelta/io/checkpoint.h"
#include "kdelta/model/config.h"

namespace kdelta {

// Of what the config says about the computation, of the names, dtypes and shapes of all tensors that the model uses,
// and of samples of their contents: 128 bytes of each of up to 32 tensors per kind (names that differ in numbers
// alone), so that 10^5 experts cost no more than 32. Null: a model of random weights. `unused`: names to leave out.
uint64_t model_identity(const ModelConfig& config, const Checkpoint* checkpoint, std::span<const std::string> unused);

}  // namespace kdelta
