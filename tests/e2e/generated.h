// Checkpoints made on the spot, in the releases' names and shapes, for what the stored ones are too small for: any
// number of heads, layers of every kind, any layout of precisions.
#pragma once

#include <cstdint>
#include <string>

namespace kdelta::test {

struct Generated {
  bool k3 = false;  // else Kimi-Linear
  int64_t heads = 12;
  bool mixed = false;  // q, k and v of the first KDA layer W8A8 MXFP8, of the second MXFP4 like experts; else all bf16
  bool tied = false;   // no lm_head
  // Others are as small as the ops allow and divisible by 1, 2, 3, 4, 6, 8 and 16; experts of a mixed model are wide
  // enough that 16 ranks can have whole MX blocks of them.
  static constexpr int64_t kVocabulary = 480, kHidden = 64, kExperts = 48, kLayers = 4;
};

// Writes config.json and model.safetensors into `directory`. Same model, same bytes.
void write_checkpoint(const Generated& model, const std::string& directory);

}  // namespace kdelta::test
