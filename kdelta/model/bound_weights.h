// The inside of BoundWeights, shared by binding and updates.
#pragma once

#include <unordered_map>
#include <unordered_set>

#include "kdelta/core/buffer.h"
#include "kdelta/model/bind.h"
#include "kdelta/model/compose.h"

namespace kdelta {

// Tensors that callers put, by name.
class PutTensors {
 public:
  void put(const TensorInfo& info, const void* data, std::shared_ptr<const void> owner);
  const StoredTensor* find(const std::string& name) const;
  void hide(const std::string& name) { hidden_.insert(name); }
  bool hides(const std::string& name) const { return hidden_.contains(name); }
  // Takes over what `newer` has and hides.
  void merge(PutTensors&& newer);
  bool empty() const { return tensors_.empty(); }

  struct Tensor {
    std::unique_ptr<TensorInfo> info;
    StoredTensor stored;
    std::shared_ptr<const void> owner;  // of the data; null: the caller keeps it
  };
  const std::unordered_map<std::string, Tensor>& tensors() const { return tensors_; }

 private:
  std::unordered_map<std::string, Tensor> tensors_;
  std::unordered_set<std::string> hidden_;  // older forms of what was put: codes and plain weights exclude each other
};

// The newest tensor of each name: staged, then put, then in the checkpoint.
class LayeredSource final : public TensorSource {
 public:
  LayeredSource(const PutTensors* staged, const PutTensors* put, const Checkpoint* checkpoint, bool headers_only)
      : staged_(staged), put_(put), checkpoint_(checkpoint), headers_only_(headers_only) {}
  // Every tensor of the checkpoint that find() gives goes there.
  void record(std::unordered_set<const TensorInfo*>* used) { used_ = used; }
  std::optional<StoredTensor> find(const std::string& name) const override;
  std::string origin() const override;

 private:
  const PutTensors *staged_, *put_;
  const Checkpoint* checkpoint_;
  bool headers_only_;
  std::unordered_set<const TensorInfo*>* used_ = nullptr;
};

struct BoundWeights::Impl {
  struct Entry {
    PlacedSpec placed;
    std::vector<Buffer> storage;  // what is made: values, a product, copies of misaligned codes and scales
    bool bound = false;
  };
  // What one entry will become, made without touching it.
  struct Change {
    Entry* entry = nullptr;
    Matrix matrix, factor;         // matrix kind: its new value; product: the two factors
    std::vector<Buffer> storage;   // the entry's from now on; empty: it keeps what it has
    std::vector<Buffer> borrowed;  // aligned copies of factors, until they are composed
    std::vector<float> values;     // vector kinds
    bool deferred = false;         // checked, but there is no memory yet
  };

  Impl(const std::vector<PlacedSpec>& specs, const BindOptions& bind_options);

  LayeredSource source(const PutTensors* staged = nullptr) const {
    return {staged, &put, checkpoint ? &*checkpoint : nullptr, headers_only};
  }
  WeightReader reader_of(const LayeredSource& tensors) const {
    return {tensors, options.shard, options.quantization ? &*options.quantization : nullptr};
  }
  // Reads, checks and takes memory; throws and changes nothing. What it gives, apply() can only succeed with.
  Change prepare(Entry& entry, const WeightReader& reader);
  void apply(Change& change);
  // Throws when a group of these entries is stored in several precisions or takes its inputs in several.
  void check_groups(const WeightReader& reader, const std::vector<Entry*>& some) const;
  void check_pairs(const PutTensors& staged);
  // Throws when a change would give a matrix in use another format or other inputs.
  void check_formats(const std::vector<Change>& changes) const;
  void bind_all();  // from the checkpoint
  void compose_waiting();
  // Entries that ask for the tensor `name`; null when none does.
  const std::vector<Entry*>* askers(const std::string& name);
  // These entries and all others of their groups.
  std::vector<Entry*> same_groups(const std::vector<Entry*>& some);

 private:
  Matrix aligned(const Matrix& m, std::vector<Buffer>& copies);
  void prepare_matrix(Change& c, const WeightReader& reader);
  void prepare_product(Change& c, const WeightReader& reader);
  void prepare_values(Change& c, const WeightReader& reader);
  void reserve(Change& c, int64_t bytes);

 public:
  BindOptions options;
  Composer composer;
  BindReport report;
  std::optional<Checkpoint> checkpoint;  // keeps its files mapped
  PutTensors put;
  std::vector<Entry> entries;
  std::vector<Change> waiting;  // products whose factors are known and whose memory is reserved
  bool headers_only = false, allocated = true;
  std::unordered_map<std::string, std::vector<Entry*>> by_name;  // made by the first update
};

}  // namespace kdelta
