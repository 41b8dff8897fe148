// Random weights for any config.json (--load-format dummy): the format of each, as config.json describes it, and its
// values.
#pragma once

#include <map>
#include <span>
#include <string>
#include <utility>

#include "kdelta/model/device_weights.h"
#include "kdelta/model/weight_reader.h"

namespace kdelta {

// What a checkpoint of this quantization_config would hold. A scheme whose targets name a matrix by its own name or a
// pattern stores it; one that names any linear layer stores routed experts alone, as releases do; what "ignore" names
// is bf16. Matrices of one group have one format, that of the first.
class DummyFormats {
 public:
  explicit DummyFormats(const Quantization& described) : described_(described) {}

  // The target's value, without data and scales. Throws Error(bad_file) where blocks of the format do not divide its
  // columns.
  Matrix matrix(const PlacedSpec& placed);

 private:
  Precision precision(const PlacedSpec& placed);

  const Quantization& described_;
  std::map<std::pair<std::string, std::string>, Precision> groups_;  // by prefix and group
};

// A bf16 matrix, fp32 vector, or what the values of an MX matrix spread like.
DeviceWeights::Uniform dummy_values(const PlacedSpec& placed, uint64_t seed, const Shard& shard);

// Codes [begin, begin + out.size()) bytes of an MX matrix: finite values, the same for the same seed.
void dummy_codes(DType dtype, uint64_t seed, int64_t begin, std::span<uint8_t> out);
// The scale byte of all blocks, with which those codes spread like `values`.
uint8_t dummy_scale(DType dtype, const DeviceWeights::Uniform& values);

}  // namespace kdelta
