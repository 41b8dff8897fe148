#include "kdelta/model/bind.h"

#include <algorithm>
#include <exception>
#include <system_error>
#include <thread>

#include "kdelta/core/check.h"
#include "kdelta/core/moves.h"
#include "kdelta/core/threads.h"
#include "kdelta/model/bound_weights.h"
#include "kdelta/model/dummy.h"

namespace kdelta {

BoundWeights::BoundWeights() = default;
BoundWeights::~BoundWeights() = default;
BoundWeights::BoundWeights(BoundWeights&&) noexcept = default;
BoundWeights& BoundWeights::operator=(BoundWeights&&) noexcept = default;

namespace {

// A weight of dummy(): `bytes` of codes or values, and behind those of an MX matrix its scales.
struct Dummy {
  Matrix matrix;  // without data; of vectors not used
  int64_t bytes = 0, scale_bytes = 0;
};

Dummy dummy_of(const PlacedSpec& placed, DummyFormats& formats) {
  if (!std::holds_alternative<Matrix*>(placed.spec.target))
    return {{}, WeightReader::values_shape(placed.spec).numel() * 4, 0};
  const Matrix m = formats.matrix(placed);
  return {m, m.rows * m.row_bytes, m.is_mx() ? m.rows * (m.cols / kMxBlock) : 0};
}

void point(const WeightSpec& spec, const Dummy& dummy, void* data) {
  if (Matrix* const* matrix = std::get_if<Matrix*>(&spec.target)) {
    const Matrix& m = dummy.matrix;
    const auto* scale = m.is_mx() ? static_cast<const uint8_t*>(data) + dummy.bytes : nullptr;
    **matrix = dense_matrix(data, m.dtype, m.rows, m.cols, scale);
    (*matrix)->input = m.input;
  } else {
    *std::get<View<const float>*>(spec.target) = {static_cast<const float*>(data), WeightReader::values_shape(spec)};
  }
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
                                 const BindOptions& options) {
  BoundWeights w;
  w.impl_ = std::make_unique<Impl>(specs, BindOptions{});
  const Quantization described = options.quantization.value_or(Quantization{});
  DummyFormats formats(described);
  for (Impl::Entry& entry : w.impl_->entries) {
    const WeightSpec& spec = entry.placed.spec;
    const Dummy d = dummy_of(entry.placed, formats);
    entry.storage.emplace_back(Device{}, std::max<int64_t>(d.bytes + d.scale_bytes, 1));
    auto* data = static_cast<uint8_t*>(entry.storage[0].data());
    const DeviceWeights::Uniform u = dummy_values(entry.placed, seed, options.shard);
    if (d.scale_bytes > 0) {
      dummy_codes(d.matrix.dtype, u.seed, 0, {data, static_cast<size_t>(d.bytes)});
      std::fill_n(data + d.bytes, d.scale_bytes, dummy_scale(d.matrix.dtype, u));
    } else {
      const DType dtype = std::holds_alternative<Matrix*>(spec.target) ? DType::bf16 : DType::f32;
      fill_uniform(nullptr, data, dtype, d.bytes / dtype_bytes(dtype), u.center, u.scale, u.seed);
    }
    point(spec, d, data);
    entry.bound = true;
    w.impl_->report.converted_bytes += d.bytes + d.scale_bytes;
  }
  *report = w.impl_->report;
  return w;
}

BoundWeights BoundWeights::dummy_shapes(const std::vector<PlacedSpec>& specs, BindReport* report,
                                        const BindOptions& options) {
  BoundWeights w;
  const Quantization described = options.quantization.value_or(Quantization{});
  DummyFormats formats(described);
  constexpr uintptr_t kNowhere = 64;  // a non-null address that nobody reads
  for (const PlacedSpec& placed : specs) {
    const Dummy d = dummy_of(placed, formats);
    point(placed.spec, d, reinterpret_cast<void*>(kNowhere));
    report->elements += placed.spec.shape.numel();
    report->converted_bytes += d.bytes + d.scale_bytes;
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
