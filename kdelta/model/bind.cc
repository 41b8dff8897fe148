#include "kdelta/model/bind.h"

#include <cmath>
#include <cstring>
#include <random>
#include <unordered_set>

#include "kdelta/core/check.h"

namespace kdelta {

enum class BindMode { real, shapes, dummy, dummy_shapes };

class Binder {
 public:
  Binder(const Checkpoint* checkpoint, BindMode mode, uint64_t seed, BoundWeights* weights, BindReport* report)
      : checkpoint_(checkpoint), mode_(mode), rng_(seed), weights_(weights), report_(report) {}

  void bind(const PlacedSpec& placed) {
    const WeightSpec& spec = placed.spec;
    report_->elements += spec.shape.numel();
    std::vector<std::string> names;
    for (const std::string& n : spec.names) names.push_back(placed.prefix + n);
    if (spec.kind == WeightKind::matrix) {
      *std::get<Matrix*>(spec.target) =
          without_checkpoint() ? dummy_matrix(spec.shape) : find_matrix(names.front(), spec);
      return;
    }
    View<const float>& target = *std::get<View<const float>*>(spec.target);
    if (without_checkpoint())
      target = dummy_vector(spec);
    else
      target = convert(names, spec);
  }

  void list_unused() {
    for (const TensorInfo& t : checkpoint_->tensors())
      if (!used_.contains(&t)) report_->unused.push_back(t.name);
  }

 private:
  bool without_checkpoint() const { return mode_ == BindMode::dummy || mode_ == BindMode::dummy_shapes; }

  [[noreturn]] void refuse(const TensorInfo& t, const std::string& reason) const {
    fail(ErrorCode::bad_file, checkpoint_->file_path(t.file), ": tensor ", t.name, ": ", reason);
  }

  const TensorInfo* find(const std::string& name) {
    const TensorInfo* t = checkpoint_->find(name);
    if (t != nullptr) used_.insert(t);
    return t;
  }

  const TensorInfo& require(const std::string& name) {
    const TensorInfo* t = find(name);
    if (t == nullptr) fail(ErrorCode::bad_file, checkpoint_->directory(), ": tensor ", name, ": missing");
    return *t;
  }

  static std::string text(const std::vector<int64_t>& shape) {
    std::string out = "[";
    for (size_t i = 0; i < shape.size(); ++i) out += (i != 0 ? ", " : "") + std::to_string(shape[i]);
    return out + "]";
  }

  void expect(const TensorInfo& t, const std::vector<int64_t>& shape) const {
    if (t.shape != shape) refuse(t, str("shape ", text(t.shape), ", expected ", text(shape)));
  }

  // The tensor's bytes; a copy when the file leaves them at an address that its element may not have.
  const void* bytes_of(const TensorInfo& t) {
    if (mode_ == BindMode::shapes) {
      report_->mapped_bytes += t.bytes;
      return reinterpret_cast<const void*>(kNowhere);
    }
    const uint8_t* data = checkpoint_->data(t);
    const int64_t align = dtype_bits(t.dtype) >= 16 ? dtype_bytes(t.dtype) : 1;
    if (reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(align) == 0) {
      report_->mapped_bytes += t.bytes;
      return data;
    }
    report_->missing_alignment += t.bytes;
    void* copy = own(t.bytes);
    std::memcpy(copy, data, static_cast<size_t>(t.bytes));
    return copy;
  }

  void* own(int64_t bytes) {
    report_->converted_bytes += bytes;
    weights_->owned_.emplace_back(Device{}, std::max<int64_t>(bytes, 1));
    return weights_->owned_.back().data();
  }

  Matrix find_matrix(const std::string& name, const WeightSpec& spec) {
    const int64_t rows = spec.shape[0], cols = spec.shape[1];
    if (const TensorInfo* packed = find(name + spec.suffix + "_packed")) {
      if (cols % kMxBlock != 0)
        refuse(*packed, str("MXFP4 needs columns in multiples of ", kMxBlock, ", the layer has ", cols));
      if (packed->dtype != DType::u8) refuse(*packed, str("dtype ", dtype_name(packed->dtype), ", expected U8"));
      expect(*packed, {rows, cols / 2});
      return dense_matrix(bytes_of(*packed), DType::f4_e2m1, rows, cols,
                          find_scale(name + spec.suffix + "_scale", rows, cols));
    }
    const TensorInfo& t = require(name + spec.suffix);
    expect(t, {rows, cols});
    switch (t.dtype) {
      case DType::bf16:
      case DType::f32:
        return dense_matrix(bytes_of(t), t.dtype, rows, cols);
      case DType::f8_e4m3:
      case DType::f8_e5m2:
        if (cols % kMxBlock != 0)
          refuse(t, str("MXFP8 needs columns in multiples of ", kMxBlock, ", the layer has ", cols));
        return dense_matrix(bytes_of(t), t.dtype, rows, cols, find_scale(name + spec.suffix + "_scale", rows, cols));
      default:
        refuse(t,
               str("dtype ", dtype_name(t.dtype), ", accepted for a matrix: BF16, F32, F8_E4M3, F8_E5M2, packed U8"));
    }
  }

  const uint8_t* find_scale(const std::string& name, int64_t rows, int64_t cols) {
    const TensorInfo& t = require(name);
    if (t.dtype != DType::u8 && t.dtype != DType::f8_e8m0)
      refuse(t, str("dtype ", dtype_name(t.dtype), ", expected U8 or F8_E8M0"));
    expect(t, {rows, cols / kMxBlock});
    const auto* scale = static_cast<const uint8_t*>(bytes_of(t));
    if (mode_ == BindMode::real) {
      // 255 is NaN: one such byte would poison a row for good.
      if (const void* nan = std::memchr(scale, 255, static_cast<size_t>(t.bytes)))
        refuse(t, str("scale byte 255 (NaN) at offset ", static_cast<const uint8_t*>(nan) - scale));
    }
    return scale;
  }

  float element(const TensorInfo& t, int64_t i) const {
    const uint8_t* p = checkpoint_->data(t) + i * dtype_bytes(t.dtype);
    uint16_t half = 0;
    switch (t.dtype) {
      case DType::f32: {
        float x;
        std::memcpy(&x, p, sizeof(x));
        return x;
      }
      case DType::bf16:
        std::memcpy(&half, p, sizeof(half));
        return to_float(bf16{half});
      case DType::f16:
        std::memcpy(&half, p, sizeof(half));
        return to_float(f16{half});
      default:
        refuse(t, str("dtype ", dtype_name(t.dtype), ", accepted for a vector: F32, BF16, F16"));
    }
  }

  float finite_element(const TensorInfo& t, int64_t i) const {
    const float x = element(t, i);
    if (!std::isfinite(x)) refuse(t, str("element ", i, " is ", x));
    return x;
  }

  static int64_t numel(const TensorInfo& t) {
    int64_t n = 1;
    for (int64_t d : t.shape) n *= d;
    return n;
  }

  View<const float> convert(const std::vector<std::string>& names, const WeightSpec& spec) {
    const Shape shape = spec.kind == WeightKind::conv_taps ? Shape{spec.shape[1], spec.shape[0]} : Shape{spec.shape[0]};
    std::vector<const TensorInfo*> parts;
    for (const std::string& n : names) parts.push_back(&require(n + spec.suffix));
    for (const TensorInfo* t : parts) check_part(*t, spec, static_cast<int64_t>(parts.size()));
    if (mode_ == BindMode::shapes) {
      report_->converted_bytes += shape.numel() * 4;
      return {reinterpret_cast<const float*>(kNowhere), shape};
    }
    float* out = static_cast<float*>(own(shape.numel() * 4));
    switch (spec.kind) {
      case WeightKind::vector:
      case WeightKind::head_scalar:
        for (int64_t i = 0; i < shape[0]; ++i) out[i] = finite_element(*parts[0], i);
        break;
      case WeightKind::score_row:
        for (int64_t i = 0; i < shape[0]; ++i) out[i] = finite_element(*parts[0], i) * finite_element(*parts[1], i);
        break;
      case WeightKind::conv_taps:
        transpose_taps(parts, spec, out);
        break;
      case WeightKind::matrix:
        KDELTA_UNREACHABLE("vector kind", spec.kind);
    }
    return {out, shape};
  }

  void check_part(const TensorInfo& t, const WeightSpec& spec, int64_t parts) const {
    const int64_t n = numel(t), want = spec.shape[0];
    switch (spec.kind) {
      case WeightKind::vector:
      case WeightKind::score_row:
        if (n != want) refuse(t, str("shape ", text(t.shape), ", expected ", want, " elements"));
        return;
      case WeightKind::head_scalar:
        if (n < want) refuse(t, str("shape ", text(t.shape), ", expected at least ", want, " elements"));
        return;
      case WeightKind::conv_taps: {
        const int64_t C = want / parts, W = spec.shape[1];
        if (t.shape != std::vector<int64_t>{C, 1, W} && t.shape != std::vector<int64_t>{C, W})
          refuse(t, str("shape ", text(t.shape), ", expected [", C, ", 1, ", W, "] or [", C, ", ", W, "]"));
        return;
      }
      case WeightKind::matrix:
        KDELTA_UNREACHABLE("vector kind", spec.kind);
    }
  }

  void transpose_taps(const std::vector<const TensorInfo*>& parts, const WeightSpec& spec, float* out) const {
    const int64_t total = spec.shape[0], W = spec.shape[1], C = total / static_cast<int64_t>(parts.size());
    for (size_t p = 0; p < parts.size(); ++p)
      for (int64_t c = 0; c < C; ++c)
        for (int64_t j = 0; j < W; ++j)
          out[j * total + static_cast<int64_t>(p) * C + c] = finite_element(*parts[p], c * W + j);
  }

  Matrix dummy_matrix(const Shape& shape) {
    if (mode_ == BindMode::dummy_shapes) {
      report_->converted_bytes += shape.numel() * 2;
      return dense_matrix(reinterpret_cast<const void*>(kNowhere), DType::bf16, shape[0], shape[1]);
    }
    auto* data = static_cast<bf16*>(own(shape.numel() * 2));
    // Scaled so that a layer keeps the size of its input; a cheap generator, because dummy models are large.
    const float scale = std::sqrt(3.0f / static_cast<float>(shape[1]));
    for (int64_t i = 0; i < shape.numel(); ++i) data[i] = to_bf16(scale * uniform());
    return dense_matrix(data, DType::bf16, shape[0], shape[1]);
  }

  View<const float> dummy_vector(const WeightSpec& spec) {
    const Shape shape = spec.kind == WeightKind::conv_taps ? Shape{spec.shape[1], spec.shape[0]} : Shape{spec.shape[0]};
    if (mode_ == BindMode::dummy_shapes) {
      report_->converted_bytes += shape.numel() * 4;
      return {reinterpret_cast<const float*>(kNowhere), shape};
    }
    float* out = static_cast<float*>(own(shape.numel() * 4));
    const float center = spec.kind == WeightKind::vector ? 1.0f : 0.0f;
    for (int64_t i = 0; i < shape.numel(); ++i) out[i] = center + 0.25f * uniform();
    return {out, shape};
  }

  float uniform() { return static_cast<float>(static_cast<int32_t>(rng_())) * 0x1p-31f; }

  static constexpr uintptr_t kNowhere = 64;  // a non-null address that nobody reads

  const Checkpoint* checkpoint_;
  BindMode mode_;
  std::minstd_rand rng_;
  BoundWeights* weights_;
  BindReport* report_;
  std::unordered_set<const TensorInfo*> used_;
};

BoundWeights BoundWeights::bind(const Checkpoint& checkpoint, const std::vector<PlacedSpec>& specs,
                                BindReport* report) {
  BoundWeights w;
  Binder binder(&checkpoint, BindMode::real, 0, &w, report);
  for (const PlacedSpec& s : specs) binder.bind(s);
  binder.list_unused();
  return w;
}

BoundWeights BoundWeights::shapes(const Checkpoint& checkpoint, const std::vector<PlacedSpec>& specs,
                                  BindReport* report) {
  BoundWeights w;
  Binder binder(&checkpoint, BindMode::shapes, 0, &w, report);
  for (const PlacedSpec& s : specs) binder.bind(s);
  binder.list_unused();
  return w;
}

BoundWeights BoundWeights::dummy(const std::vector<PlacedSpec>& specs, uint64_t seed, BindReport* report) {
  BoundWeights w;
  Binder binder(nullptr, BindMode::dummy, seed, &w, report);
  for (const PlacedSpec& s : specs) binder.bind(s);
  return w;
}

BoundWeights BoundWeights::dummy_shapes(const std::vector<PlacedSpec>& specs, BindReport* report) {
  BoundWeights w;
  Binder binder(nullptr, BindMode::dummy_shapes, 0, &w, report);
  for (const PlacedSpec& s : specs) binder.bind(s);
  return w;
}

}  // namespace kdelta
