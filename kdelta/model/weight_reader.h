// From stored tensors to what a spec asks for: a matrix is a view of the stored bytes, a vector is converted. Names,
// shapes and dtypes are checked here, and a rank of a sharded model takes its part here. A tensor may be stored whole
// or already as the part of this rank.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "kdelta/io/checkpoint.h"
#include "kdelta/layers/spec.h"
#include "kdelta/model/quantization.h"
#include "kdelta/model/shard.h"

namespace kdelta {

// A spec and the full prefix of its tensor names.
struct PlacedSpec {
  std::string prefix;
  WeightSpec spec;
};

struct StoredTensor {
  const TensorInfo* info = nullptr;
  const uint8_t* data = nullptr;  // null: the header alone is known
  std::string_view origin;        // file, for messages
};

// Tensors by name, from wherever they come.
class TensorSource {
 public:
  virtual ~TensorSource() = default;
  virtual std::optional<StoredTensor> find(const std::string& name) const = 0;
  virtual std::string origin() const = 0;  // of what is missing, for messages
};

class WeightReader {
 public:
  // `described`: the schemes that tensors may be stored in; null: any.
  WeightReader(const TensorSource& source, const Shard& shard, const Quantization* described = nullptr)
      : source_(source), shard_(shard), described_(described) {}

  std::string origin() const { return source_.origin(); }

  // Every function throws Error(bad_file) naming origin, tensor and reason.

  // True when every tensor of the spec is there, scales included. Says nothing of shapes.
  bool complete(const PlacedSpec& placed) const;
  // Throws for the first tensor of the spec that is not there.
  void require(const PlacedSpec& placed) const;

  // The spec's matrix, or factor number i of its product: a view of the stored bytes, not always aligned to its
  // element.
  Matrix matrix(const PlacedSpec& placed, size_t i = 0) const;
  Precision precision(const PlacedSpec& placed, size_t i = 0) const;
  DType dtype(const PlacedSpec& placed, size_t i = 0) const;  // of its elements; FP4 codes come packed as U8
  // What that matrix takes its inputs in.
  MxInput input(const PlacedSpec& placed, size_t i = 0) const;
  // Throws unless the tensors of a vector kind have the right shapes and dtypes.
  void check_values(const PlacedSpec& placed) const;
  // The spec's vector in fp32, values_shape() elements; also throws for elements that are not finite.
  void values(const PlacedSpec& placed, float* out) const;
  // Full name of the one tensor that may stand for all of the spec; empty when there can be none.
  static std::string merged_name(const PlacedSpec& placed);
  static Shape values_shape(const WeightSpec& spec);

 private:
  [[noreturn]] void refuse(const StoredTensor& t, const std::string& reason) const;
  StoredTensor need(const std::string& name) const;
  // Throws for the codes of the matrix `base`, under the name that its scales, when they are there, belong to.
  [[noreturn]] void codes_missing(const std::string& base) const;
  // True when t is whole, false when it is this rank's part, whose shape is `part`.
  bool expect_whole_or_part(const StoredTensor& t, const std::vector<int64_t>& part, ShardRule rule) const;
  // The tensor, codes or scales, of a matrix with `cols` columns, `width` of them an element of the tensor.
  const uint8_t* begin_of(const StoredTensor& t, int64_t rows, int64_t cols, ShardRule rule, int64_t* row_bytes) const;
  Matrix mx_matrix(const StoredTensor& codes, const std::string& scale, DType dtype, const WeightSpec& spec) const;
  void expect_vector_dtype(const StoredTensor& t) const;
  // First of `n` elements of one part of a vector kind.
  int64_t first_element(const StoredTensor& t, const WeightSpec& spec) const;
  float element(const StoredTensor& t, int64_t i) const;
  float finite_element(const StoredTensor& t, int64_t i) const;
  // The one tensor of all parts of conv_taps, if there is one.
  std::optional<StoredTensor> find_merged(const PlacedSpec& placed) const;
  // Where the taps of a merged tensor lie: element of part p, channel c of this rank and tap j.
  struct MergedTaps {
    int64_t part, channel, tap, first;
    int64_t at(int64_t p, int64_t c, int64_t j) const { return first + p * part + c * channel + j * tap; }
  };
  MergedTaps merged_taps(const StoredTensor& t, const WeightSpec& spec) const;
  void transpose_taps(const PlacedSpec& placed, float* out) const;

  const TensorSource& source_;
  Shard shard_;
  const Quantization* described_;
};

}  // namespace kdelta
