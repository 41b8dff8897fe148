#include "kdelta/model/bind.h"

#include <cmath>
#include <exception>
#include <system_error>
#include <thread>

#include "kdelta/core/check.h"
#include "kdelta/core/moves.h"
#include "kdelta/core/threads.h"
#include "kdelta/model/bound_weights.h"

namespace kdelta {

BoundWeights::BoundWeights() = default;
BoundWeights::~BoundWeights() = default;
BoundWeights::BoundWeights(BoundWeights&&) noexcept = default;
BoundWeights& BoundWeights::operator=(BoundWeights&&) noexcept = default;

namespace {

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

DeviceWeights::Uniform dummy_values(const PlacedSpec& placed, uint64_t seed, const Shard& shard) {
  const WeightSpec& spec = placed.spec;
  // A weight's own, whatever else a rank holds; of this rank where ranks differ.
  uint64_t hash = 0xcbf29ce484222325u ^ seed;  // FNV-1a
  for (const char c : placed.prefix + spec.names[0]) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
  if (spec.shard != ShardRule::whole) hash += static_cast<uint64_t>(shard.rank) * 0x9e3779b97f4a7c15u;
  // A layer keeps the size of its input: the variance of a uniform value is a third of its square.
  if (std::holds_alternative<Matrix*>(spec.target))
    return {.center = 0, .scale = std::sqrt(3.0f / static_cast<float>(spec.shape[1])), .seed = hash};
  return {.center = spec.kind == WeightKind::vector ? 1.0f : 0.0f, .scale = 0.25f, .seed = hash};
}

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
  for (Impl::Entry& entry : w.impl_->entries) {
    const WeightSpec& spec = entry.placed.spec;
    const int64_t bytes = dummy_bytes(spec);
    entry.storage.emplace_back(Device{}, std::max<int64_t>(bytes, 1));
    void* data = entry.storage[0].data();
    const bool matrix = std::holds_alternative<Matrix*>(spec.target);
    const DeviceWeights::Uniform u = dummy_values(entry.placed, seed, shard);
    fill_uniform(nullptr, data, matrix ? DType::bf16 : DType::f32, bytes / (matrix ? 2 : 4), u.center, u.scale, u.seed);
    point(spec, data);
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

void BoundWeights::compose(const std::function<void()>& beside) {
  const int threads = impl_->options.options.threads > 0 ? impl_->options.options.threads : available_cpus();
  std::thread team;
  std::exception_ptr failure;  // of the team: it has its memory, so only a broken invariant
  const auto make = [&] {
    try {
      impl_->compose_waiting();
    } catch (...) {
      failure = std::current_exception();
    }
  };
  if (!impl_->waiting.empty() && threads > 1 && beside) try {
      team = std::thread(make);
    } catch (const std::system_error&) {  // no thread to be had: one after the other
    }
  std::exception_ptr others;
  if (beside) try {
      beside();
    } catch (...) {
      others = std::current_exception();
    }
  team.joinable() ? team.join() : make();
  if (failure) std::rethrow_exception(failure);
  if (others) std::rethrow_exception(others);
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
