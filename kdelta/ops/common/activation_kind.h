// The two-branch activations of feed-forward layers; ops/activation/activation.h has their equations.
#pragma once

#include <cstdint>

namespace kdelta {

enum class ActivationKind : uint8_t { swiglu, situ, sigmoid_gate };

}  // namespace kdelta
