#include "kdelta/model/bind.h"

#include <cmath>
#include <random>

#include "kdelta/core/check.h"
#include "kdelta/model/bound_weights.h"

namespace kdelta {

BoundWeights::BoundWeights() = default;
BoundWeights::~BoundWeights() = default;
BoundWeights::BoundWeights(BoundWeights&&) noexcept = default;
BoundWeights& BoundWeights::operator=(BoundWeights&&) noexcept = default;

namespace {

// Weights that no file holds.
class Dummy {
 public:
  Dummy(uint64_t seed, const Shard& shard) : seed_(seed), shard_(shard) {}

  void fill(const PlacedSpec& placed, void* data) {
    const WeightSpec& spec = placed.spec;
    rng_.seed(seed_of(placed));
    if (std::holds_alternative<Matrix*>(spec.target))
      fill_matrix(spec.shape, static_cast<bf16*>(data));
    else
      fill_values(spec, static_cast<float*>(data));
  }

 private:
  // Scaled so that a layer keeps the size of its input; a cheap generator, because dummy models are large.
  void fill_matrix(const Shape& shape, bf16* data) {
    const float scale = std::sqrt(3.0f / static_cast<float>(shape[1]));
    for (int64_t i = 0; i < shape.numel(); ++i) data[i] = to_bf16(scale * uniform());
  }
  void fill_values(const WeightSpec& spec, float* data) {
    const float center = spec.kind == WeightKind::vector ? 1.0f : 0.0f;
    for (int64_t i = 0; i < WeightReader::values_shape(spec).numel(); ++i) data[i] = center + 0.25f * uniform();
  }
  // A weight's own, whatever else a rank holds; of this rank where ranks differ.
  std::minstd_rand::result_type seed_of(const PlacedSpec& placed) const {
    uint64_t hash = 0xcbf29ce484222325u ^ seed_;  // FNV-1a
    for (const char c : placed.prefix + placed.spec.names[0]) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
    if (placed.spec.shard != ShardRule::whole) hash += static_cast<uint64_t>(shard_.rank) * 0x9e3779b97f4a7c15u;
    return static_cast<std::minstd_rand::result_type>(hash ^ hash >> 32);
  }
  float uniform() { return static_cast<float>(static_cast<int32_t>(rng_())) * 0x1p-31f; }

  uint64_t seed_;
  Shard shard_;
  std::minstd_rand rng_;
};

int64_t dummy_bytes(const WeightSpec& spec) {
  return std::holds_alternative<Matrix*>(spec.target) ? spec.shape.numel() * 2
                                                      : WeightReader::values_shape(spec).numel() * 4;
}

void point(const WeightSpec& spec, void* data) {
  if (Matrix* const* matrix = std::get_if<Matrix*>(&spec.target))
    **matrix = dense_matrix(data, DType::bf16, spec.shape[0], spec.shape[1]);
  else
    *std::get<View<const float>*>(spec.target) = {static_cast<const float*>(data), WeightReader::values_shape(spec)};
}

}  // namespace

BoundWeights BoundWeights::bind(const Checkpoint& checkpoint, const std::vector<PlacedSpec>& specs, BindReport* report,
                                const BindOptions& options) {
  BoundWeights w;
  w.impl_ = std::make_unique<Impl>(specs, options);
  w.impl_->checkpoint = checkpoint;
  w.impl_->bind_all();
  *report = w.impl_->report;
  return w;
}

BoundWeights BoundWeights::shapes(const Checkpoint& checkpoint, const std::vector<PlacedSpec>& specs,
                                  BindReport* report, const BindOptions& options) {
  BoundWeights w;
  w.impl_ = std::make_unique<Impl>(specs, options);
  w.impl_->checkpoint = checkpoint;
  w.impl_->headers_only = true;
  w.impl_->bind_all();
  *report = w.impl_->report;
  return w;
}

BoundWeights BoundWeights::dummy(const std::vector<PlacedSpec>& specs, uint64_t seed, BindReport* report,
                                 const Shard& shard) {
  BoundWeights w;
  w.impl_ = std::make_unique<Impl>(specs, BindOptions{});
  Dummy dummy(seed, shard);
  for (Impl::Entry& entry : w.impl_->entries) {
    const int64_t bytes = dummy_bytes(entry.placed.spec);
    entry.storage.emplace_back(Device{}, std::max<int64_t>(bytes, 1));
    dummy.fill(entry.placed, entry.storage[0].data());
    point(entry.placed.spec, entry.storage[0].data());
    entry.bound = true;
    w.impl_->report.converted_bytes += bytes;
  }
  *report = w.impl_->report;
  return w;
}

BoundWeights BoundWeights::dummy_shapes(const std::vector<PlacedSpec>& specs, BindReport* report) {
  BoundWeights w;
  constexpr uintptr_t kNowhere = 64;  // a non-null address that nobody reads
  for (const PlacedSpec& placed : specs) {
    point(placed.spec, reinterpret_cast<void*>(kNowhere));
    report->elements += placed.spec.shape.numel();
    report->converted_bytes += dummy_bytes(placed.spec);
  }
  return w;
}

BoundWeights BoundWeights::expect(const std::vector<PlacedSpec>& specs, const BindOptions& options) {
  BoundWeights w;
  w.impl_ = std::make_unique<Impl>(specs, options);
  w.impl_->allocated = false;
  return w;
}

void BoundWeights::allocate() {
  impl_->allocated = true;
  const LayeredSource tensors = impl_->source();
  const WeightReader reader = impl_->reader_of(tensors);
  for (Impl::Entry& entry : impl_->entries) {
    if (entry.bound || !reader.complete(entry.placed)) continue;
    Impl::Change c = impl_->prepare(entry, reader);
    impl_->apply(c);
  }
}

std::vector<MappedRows> BoundWeights::mapped() const {
  std::vector<MappedRows> all;
  for (const Impl::Entry& entry : impl_->entries) {
    const WeightSpec& spec = entry.placed.spec;
    if (spec.kind != WeightKind::matrix || !entry.storage.empty()) continue;
    const Matrix& m = *std::get<Matrix*>(spec.target);
    all.push_back({m.data, m.rows, (m.cols * dtype_bits(m.dtype) + 7) / 8, m.row_bytes});
    if (m.is_mx()) all.push_back({m.scale, m.rows, m.cols / kMxBlock, m.scale_row_bytes});
  }
  return all;
}

void BoundWeights::finalize() {
  const LayeredSource tensors = impl_->source();
  const WeightReader reader = impl_->reader_of(tensors);
  for (const Impl::Entry& entry : impl_->entries) {
    if (entry.bound) continue;
    reader.require(entry.placed);
    fail(
        ErrorCode::bad_file, "weights: ", entry.placed.prefix, entry.placed.spec.names[0],
        entry.placed.spec.kind == WeightKind::product ? " was loaded and never composed" : " was loaded and never made",
        ": allocate() comes before finalize()");
  }
}

}  // namespace kdelta
