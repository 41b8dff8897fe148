// Weight specs meet stored tensors: every spec finds its tensors, is checked and gets a view. Matrices stay where they
// lie in the mapped file, in file order; small vectors become fp32; products are composed. Everything that does not fit
// is refused with the tensor's name before anything is computed; tensors that nobody asked for are listed.
//
// Storage is of two kinds. What lies in a file (or in a caller's memory) is only pointed at: a newer tensor moves the
// pointer. What is made here - fp32 vectors, packed convolution taps, products - lives in memory of its own whose
// address never changes, so whatever remembers it sees new values after a reload.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kdelta/core/options.h"
#include "kdelta/io/prefault.h"
#include "kdelta/model/device_weights.h"
#include "kdelta/model/weight_reader.h"

namespace kdelta {

struct BindReport {
  int64_t mapped_bytes = 0;     // used in place
  int64_t converted_bytes = 0;  // fp32 copies of vectors, products, matrices whose address was not aligned
  int64_t missing_alignment = 0;
  int64_t composed_bytes = 0;       // of converted_bytes: products
  int64_t elements = 0;             // of all specs
  std::vector<std::string> unused;  // tensors of the checkpoint that no spec names
};

struct BindOptions {
  Shard shard;      // the specs' shapes are this rank's
  Options options;  // threads and instruction set of compositions
  // Schemes that tensors may be stored in; none given: any.
  std::optional<Quantization> quantization = {};
  bool compose_later = false;  // leaves products to BoundWeights::compose()
};

class BoundWeights {
 public:
  BoundWeights();
  ~BoundWeights();
  BoundWeights(BoundWeights&&) noexcept;
  BoundWeights& operator=(BoundWeights&&) noexcept;

  // Throws Error(bad_file) naming file, tensor and reason: missing, wrong shape, unknown dtype, a scale tensor that is
  // missing or misshapen, NaN scale bytes, non-finite vectors, one group in several precisions or with inputs in
  // several. Keeps the files mapped.
  static BoundWeights bind(const Checkpoint& checkpoint, const std::vector<PlacedSpec>& specs, BindReport* report,
                           const BindOptions& options = {});
  // Random weights of the specs' shapes for any config (--load-format dummy): matrices in the formats that `options`
  // describes (DummyFormats), else bf16; small values, same seed same weights, and what every rank holds whole is the
  // same on all. A product is one bf16 matrix.
  static BoundWeights dummy(const std::vector<PlacedSpec>& specs, uint64_t seed, BindReport* report,
                            const BindOptions& options = {});
  // Shapes only: targets get addresses that nobody may touch. For planning without reading a byte of data.
  static BoundWeights shapes(const Checkpoint& checkpoint, const std::vector<PlacedSpec>& specs, BindReport* report,
                             const BindOptions& options = {});
  // The same for the weights that dummy() would make; the report says what they would take.
  static BoundWeights dummy_shapes(const std::vector<PlacedSpec>& specs, BindReport* report,
                                   const BindOptions& options = {});

  // Nothing is there yet: tensors come by WeightUpdates, in any order and number. What is made here has no memory
  // before allocate(); updates before that are remembered and what they lack is done then. finalize() throws
  // Error(bad_file) naming what never came, or what came and was never made because nobody called allocate().
  static BoundWeights expect(const std::vector<PlacedSpec>& specs, const BindOptions& options = {});
  void allocate();
  void finalize();

  // Makes the products that compose_later left, whose memory is reserved already, while `beside` runs here: on one
  // thread fewer than the options say, or behind it when that is none. Before this nothing may be computed and nothing
  // updated. Throws what `beside` throws, when all are made.
  void compose(const std::function<void()>& beside = {});

  // What is used in place: codes and scales of every matrix, of this rank's part alone. Not of shapes.
  std::vector<MappedRows> mapped() const;

 private:
  friend class WeightUpdate;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// New tensors for bound weights, all or nothing. Nothing is visible before commit(); an update that is destroyed
// without it, or whose commit() throws, changed nothing. What needs several tensors takes those that the update does
// not bring from before: a product after new f_a is old f_b times new f_a. MX codes and their scales have no such
// meaning apart: one without the other is refused. Not while a step runs.
class WeightUpdate {
 public:
  // Whether matrices in use may come in another stored format, or take other inputs, than they have. Where the memory
  // of a step is planned from them they may not.
  enum class Formats : uint8_t { any, kept };

  explicit WeightUpdate(BoundWeights& weights, Formats formats = Formats::any);
  ~WeightUpdate();
  WeightUpdate(const WeightUpdate&) = delete;
  WeightUpdate& operator=(const WeightUpdate&) = delete;

  // A tensor under its name in the checkpoint, whole or this rank's part; of two under one name the later counts. The
  // data is only pointed at, as that of a checkpoint: it must stay, unchanged, as long as the weights, or as long as
  // `owner`, which is let go when a later update replaces the tensor. False when no spec asks for the name.
  bool put(const std::string& name, DType dtype, const std::vector<int64_t>& shape, const void* data,
           std::shared_ptr<const void> owner = {});
  // Throws Error(bad_file) naming the first tensor that the weights need and this update does not bring.
  void require_all() const;
  // Throws Error(bad_file) naming the tensor and the reason.
  void commit();
  // The part of commit() that reads, checks and takes memory: behind it commit() finds nothing to refuse. For those who
  // must know first whether others can commit theirs.
  void prepare();

 private:
  struct Staged;
  BoundWeights::Impl& weights_;
  Formats formats_;
  std::unique_ptr<Staged> staged_;
};

}  // namespace kdelta
