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
// and of samples of their contents: 128 bytes of each tensor, or, of a model with more than 4,096 of them, of as many
// as that allows in each kind (names that differ in layer and expert numbers alone), at least 32, evenly spread: 10^5
// experts cost no more than a small model. Null: a model of random weights. `unused`: names to leave out.
uint64_t model_identity(const ModelConfig& config, const Checkpoint* checkpoint, std::span<const std::string> unused);

// The identity of a model of identity `before` with one tensor replaced: the same for the same replacements in the same
// order, and not that of a checkpoint which holds them.
uint64_t replaced_identity(uint64_t before, const std::string& name, std::span<const uint8_t> data);

}  // namespace kdelta
