// Weight specs meet a checkpoint: every spec finds its tensors, is checked and gets a view. Matrices stay where they
// lie in the mapped file, in file order; small vectors become fp32. Everything that does not fit is refused with the
// tensor's name before anything is computed; tensors that nobody asked for are listed.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kdelta/core/buffer.h"
#include "kdelta/io/checkpoint.h"
#include "kdelta/layers/spec.h"

namespace kdelta {

// A spec and the full prefix of its tensor names.
struct PlacedSpec {
  std::string prefix;
  WeightSpec spec;
};

struct BindReport {
  int64_t mapped_bytes = 0;     // used in place
  int64_t converted_bytes = 0;  // fp32 copies of vectors, and matrices whose address was not aligned to their element
  int64_t missing_alignment = 0;
  int64_t elements = 0;             // of all specs
  std::vector<std::string> unused;  // tensors of the checkpoint that no spec names
};

// Owns what binding had to convert; the checkpoint must stay alive beside it.
class BoundWeights {
 public:
  BoundWeights() = default;
  // Throws Error(bad_file) naming file, tensor and reason: missing, wrong shape, unknown dtype, a scale tensor that is
  // missing or misshapen, NaN scale bytes, non-finite vectors.
  static BoundWeights bind(const Checkpoint& checkpoint, const std::vector<PlacedSpec>& specs, BindReport* report);
  // Random weights of the specs' shapes for any config (--load-format dummy): bf16 matrices, small values, same seed
  // same weights.
  static BoundWeights dummy(const std::vector<PlacedSpec>& specs, uint64_t seed, BindReport* report);
  // Shapes only: targets get addresses that nobody may touch. For planning without reading a byte of data.
  static BoundWeights shapes(const Checkpoint& checkpoint, const std::vector<PlacedSpec>& specs, BindReport* report);
  // The same for the weights that dummy() would make; the report says what they would take.
  static BoundWeights dummy_shapes(const std::vector<PlacedSpec>& specs, BindReport* report);

 private:
  friend class Binder;
  std::vector<Buffer> owned_;
};

}  // namespace kdelta
