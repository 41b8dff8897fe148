#include "kdelta/model/weight_reader.h"

#include <cmath>
#include <cstring>

#include "kdelta/core/check.h"
#include "kdelta/io/safetensors.h"

namespace kdelta {
namespace {

constexpr uintptr_t kNowhere = 64;  // a non-null address that nobody reads

std::string base_name(const PlacedSpec& placed, size_t i) {
  return placed.prefix + placed.spec.names[i] + placed.spec.suffix;
}

int64_t numel(const TensorInfo& t) {
  int64_t n = 1;
  for (int64_t d : t.shape) n *= d;
  return n;
}

bool is_mx(DType d) {
  return d == DType::f8_e4m3 || d == DType::f8_e5m2;
}

// Rows, columns and shard rule of factor i of a product, or of the matrix itself.
WeightSpec factor_of(const WeightSpec& spec, size_t i) {
  WeightSpec f = spec;
  if (spec.kind != WeightKind::product) return f;
  f.shape = i == 0 ? Shape{spec.shape[0], spec.inner} : Shape{spec.inner, spec.shape[1]};
  if (i == 0 ? spec.shard == ShardRule::columns : spec.shard == ShardRule::rows) f.shard = ShardRule::whole;
  return f;
}

// The codes of the matrix `base`: packed FP4 under a name of their own, everything else under `base` itself.
std::optional<StoredTensor> find_codes(const TensorSource& source, const std::string& base) {
  if (auto packed = source.find(base + "_packed")) return packed;
  return source.find(base);
}

bool has_scales(const std::string& base, const TensorInfo& codes) {
  return codes.name != base || is_mx(codes.dtype);
}

}  // namespace

void WeightReader::refuse(const StoredTensor& t, const std::string& reason) const {
  fail(ErrorCode::bad_file, t.origin, ": tensor ", t.info->name, ": ", reason);
}

StoredTensor WeightReader::need(const std::string& name) const {
  if (auto t = source_.find(name)) return *t;
  fail(ErrorCode::bad_file, source_.origin(), ": tensor ", name, ": missing");
}

void WeightReader::codes_missing(const std::string& base) const {
  const bool scaled = source_.find(base + "_scale").has_value();
  // MXFP8 codes have the plain name and scales too; where both formats are described, either could be what is lost.
  const auto may_be = [&](Precision p) { return described_ == nullptr || described_->names(p); };
  const bool fp8 = scaled && may_be(Precision::mxfp8), fp4 = scaled && may_be(Precision::mxfp4);
  if (fp8 && fp4)
    fail(ErrorCode::bad_file, source_.origin(), ": tensor ", base, ": missing, tensor ", base,
         "_packed: missing, expected one of them beside ", base, "_scale");
  fail(ErrorCode::bad_file, source_.origin(), ": tensor ", base, fp4 ? "_packed" : "", ": missing");
}

std::string WeightReader::merged_name(const PlacedSpec& placed) {
  return placed.spec.merged.empty() ? "" : placed.prefix + placed.spec.merged + placed.spec.suffix;
}

std::optional<StoredTensor> WeightReader::find_merged(const PlacedSpec& placed) const {
  if (placed.spec.merged.empty()) return {};
  return source_.find(merged_name(placed));
}

bool WeightReader::complete(const PlacedSpec& placed) const {
  if (find_merged(placed)) return true;
  for (size_t i = 0; i < placed.spec.names.size(); ++i) {
    const std::string base = base_name(placed, i);
    const auto codes = find_codes(source_, base);
    if (!codes || (has_scales(base, *codes->info) && !source_.find(base + "_scale"))) return false;
  }
  return true;
}

void WeightReader::require(const PlacedSpec& placed) const {
  if (find_merged(placed)) return;
  for (size_t i = 0; i < placed.spec.names.size(); ++i) {
    const std::string base = base_name(placed, i);
    const auto codes = find_codes(source_, base);
    if (!codes) codes_missing(base);
    if (codes->info->name != base && source_.find(base))
      refuse(*codes, str("stored beside ", base, ", expected one form of a weight"));
    if (has_scales(base, *codes->info)) (void)need(base + "_scale");
  }
}

bool WeightReader::expect_whole_or_part(const StoredTensor& t, const std::vector<int64_t>& part, ShardRule rule) const {
  std::vector<int64_t> whole = part;
  if (rule == ShardRule::rows) whole.front() *= shard_.ranks;
  if (rule == ShardRule::columns) whole.back() *= shard_.ranks;
  if (t.info->shape == whole) return true;
  if (t.info->shape == part) return false;
  const std::string other =
      whole == part ? "" : str(" or, the part of one of ", shard_.ranks, " ranks, ", shape_text(part));
  refuse(t, str("shape ", shape_text(t.info->shape), ", expected ", shape_text(whole), other));
}

const uint8_t* WeightReader::begin_of(const StoredTensor& t, int64_t rows, int64_t cols, ShardRule rule,
                                      int64_t* row_bytes) const {
  const bool whole = expect_whole_or_part(t, {rows, cols}, rule);
  const int64_t part_bytes = cols * dtype_bytes(t.info->dtype);
  *row_bytes = whole && rule == ShardRule::columns ? part_bytes * shard_.ranks : part_bytes;
  if (t.data == nullptr) return reinterpret_cast<const uint8_t*>(kNowhere);
  if (!whole) return t.data;
  switch (rule) {
    case ShardRule::whole:
      return t.data;
    case ShardRule::rows:
      return t.data + shard_.rank * rows * part_bytes;
    case ShardRule::columns:
      return t.data + shard_.rank * part_bytes;
  }
  KDELTA_UNREACHABLE("shard rule", rule);
}

Matrix WeightReader::mx_matrix(const StoredTensor& codes, const std::string& scale_name, DType dtype,
                               const WeightSpec& spec) const {
  const int64_t rows = spec.shape[0], cols = spec.shape[1];
  const Precision precision = dtype == DType::f4_e2m1 ? Precision::mxfp4 : Precision::mxfp8;
  if (described_ != nullptr && !described_->names(precision))
    refuse(codes, str(to_string(precision), ", but the quantization_config of config.json names ", described_->list()));
  if (cols % kMxBlock != 0)
    refuse(
        codes,
        str(to_string(precision), " needs columns in multiples of ", kMxBlock,
            shard_.ranks > 1 && spec.shard == ShardRule::columns ? ", a rank's part has " : ", the layer has ", cols));
  Matrix m = dense_matrix(nullptr, dtype, rows, cols);
  m.data = begin_of(codes, rows, m.row_bytes, spec.shard, &m.row_bytes);
  const StoredTensor scale = need(scale_name);
  if (scale.info->dtype != DType::u8 && scale.info->dtype != DType::f8_e8m0)
    refuse(scale, str("dtype ", dtype_name(scale.info->dtype), ", expected U8 or F8_E8M0"));
  m.scale = begin_of(scale, rows, cols / kMxBlock, spec.shard, &m.scale_row_bytes);
  // 255 is NaN: one such byte would poison a row for good.
  for (int64_t r = 0; scale.data != nullptr && r < rows; ++r)
    if (const void* nan = std::memchr(m.scale_row(r), 255, static_cast<size_t>(cols / kMxBlock)))
      refuse(scale, str("scale byte 255 (NaN) at offset ", static_cast<const uint8_t*>(nan) - scale.data));
  return m;
}

Matrix WeightReader::matrix(const PlacedSpec& placed, size_t i) const {
  const std::string base = base_name(placed, i);
  const WeightSpec spec = factor_of(placed.spec, i);
  const auto found = find_codes(source_, base);
  const StoredTensor t = found ? *found : need(base);
  const DType dtype = t.info->dtype;
  if (t.info->name != base && dtype != DType::u8) refuse(t, str("dtype ", dtype_name(dtype), ", expected U8"));
  if (has_scales(base, *t.info)) {
    if (spec.looked_up)
      refuse(t, str(to_string(precision(placed, i)), ", accepted for rows that are looked up: BF16, F32"));
    Matrix m = mx_matrix(t, base + "_scale", t.info->name != base ? DType::f4_e2m1 : dtype, spec);
    m.input = input(placed, i);
    return m;
  }
  if (dtype != DType::bf16 && dtype != DType::f32) {
    (void)expect_whole_or_part(t, {spec.shape[0], spec.shape[1]}, spec.shard);
    refuse(t, str("dtype ", dtype_name(dtype), ", accepted for a matrix: BF16, F32, F8_E4M3, F8_E5M2, packed U8"));
  }
  Matrix m = dense_matrix(nullptr, dtype, spec.shape[0], spec.shape[1]);
  m.data = begin_of(t, m.rows, m.cols, spec.shard, &m.row_bytes);
  return m;
}

DType WeightReader::dtype(const PlacedSpec& placed, size_t i) const {
  const std::string base = base_name(placed, i);
  const auto codes = find_codes(source_, base);
  const StoredTensor t = codes ? *codes : need(base);
  return t.info->name != base ? DType::f4_e2m1 : t.info->dtype;
}

Precision WeightReader::precision(const PlacedSpec& placed, size_t i) const {
  const DType d = dtype(placed, i);
  if (d == DType::f4_e2m1) return Precision::mxfp4;
  return is_mx(d) ? Precision::mxfp8 : Precision::floating;
}

MxInput WeightReader::input(const PlacedSpec& placed, size_t i) const {
  if (described_ == nullptr || placed.spec.absorbed) return {};
  return described_->input_of(placed.prefix + placed.spec.names[i], precision(placed, i));
}

// Vectors ------------------------------------------------------------------------------------------------------------

Shape WeightReader::values_shape(const WeightSpec& spec) {
  return spec.kind == WeightKind::conv_taps ? Shape{spec.shape[1], spec.shape[0]} : Shape{spec.shape[0]};
}

void WeightReader::expect_vector_dtype(const StoredTensor& t) const {
  const DType dtype = t.info->dtype;
  if (dtype != DType::f32 && dtype != DType::bf16 && dtype != DType::f16)
    refuse(t, str("dtype ", dtype_name(dtype), ", accepted for a vector: F32, BF16, F16"));
}

int64_t WeightReader::first_element(const StoredTensor& t, const WeightSpec& spec) const {
  expect_vector_dtype(t);
  const int64_t n = numel(*t.info), part = spec.shape[0],
                whole = spec.shard == ShardRule::rows ? part * shard_.ranks : part;
  const int64_t mine = spec.shard == ShardRule::rows ? shard_.rank * part : 0;
  const std::string other = whole == part ? "" : str(" or, of one of ", shard_.ranks, " ranks, ", part);
  switch (spec.kind) {
    case WeightKind::vector:
    case WeightKind::score_row:
      if (n != whole && n != part)
        refuse(t, str("shape ", shape_text(t.info->shape), ", expected ", whole, other, " elements"));
      return n == whole ? mine : 0;
    case WeightKind::head_scalar:
      // Padding is behind the last head of the model, so it goes before ranks take their parts.
      if (n == part && part != whole) return 0;
      if (n < whole)
        refuse(t, str("shape ", shape_text(t.info->shape), ", expected at least ", whole, other, " elements"));
      return mine;
    case WeightKind::conv_taps: {
      const auto parts = static_cast<int64_t>(spec.names.size());
      const int64_t C = part / parts, all = whole / parts, W = spec.shape[1];
      const std::vector<int64_t>& shape = t.info->shape;
      const auto is = [&](int64_t c) {
        return shape == std::vector<int64_t>{c, 1, W} || shape == std::vector<int64_t>{c, W};
      };
      if (is(all)) return mine / parts * W;
      if (is(C)) return 0;
      refuse(t, str("shape ", shape_text(shape), ", expected [", all, ", 1, ", W, "] or [", all, ", ", W, "]",
                    all == C ? "" : str(" or, of one of ", shard_.ranks, " ranks, ", C, " rows")));
    }
    case WeightKind::matrix:
    case WeightKind::product:
      break;
  }
  KDELTA_UNREACHABLE("vector kind", spec.kind);
}

float WeightReader::element(const StoredTensor& t, int64_t i) const {
  const uint8_t* p = t.data + i * dtype_bytes(t.info->dtype);
  uint16_t half = 0;
  switch (t.info->dtype) {
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
      KDELTA_UNREACHABLE("dtype of a vector", t.info->dtype);
  }
}

float WeightReader::finite_element(const StoredTensor& t, int64_t i) const {
  const float x = element(t, i);
  if (!std::isfinite(x)) refuse(t, str("element ", i, " is ", x));
  return x;
}

void WeightReader::check_values(const PlacedSpec& placed) const {
  if (const auto merged = find_merged(placed)) {
    (void)merged_taps(*merged, placed.spec);
    return;
  }
  for (size_t i = 0; i < placed.spec.names.size(); ++i) (void)first_element(need(base_name(placed, i)), placed.spec);
}

WeightReader::MergedTaps WeightReader::merged_taps(const StoredTensor& t, const WeightSpec& spec) const {
  expect_vector_dtype(t);
  const auto parts = static_cast<int64_t>(spec.names.size());
  const int64_t W = spec.shape[1], C = spec.shape[0] / parts,
                all = spec.shard == ShardRule::rows ? C * shard_.ranks : C;
  for (const int64_t c : {all, C}) {
    const int64_t mine = c == C ? 0 : shard_.rank * C;
    if (t.info->shape == std::vector<int64_t>{parts * c, 1, W} || t.info->shape == std::vector<int64_t>{parts * c, W})
      return {.part = c * W, .channel = W, .tap = 1, .first = mine * W};
    if (t.info->shape == std::vector<int64_t>{W, parts * c})
      return {.part = c, .channel = 1, .tap = parts * c, .first = mine};
  }
  refuse(t, str("shape ", shape_text(t.info->shape), ", expected [", parts * all, ", 1, ", W, "], [", parts * all, ", ",
                W, "] or [", W, ", ", parts * all, "]",
                all == C ? "" : str(" or, of one of ", shard_.ranks, " ranks, with ", parts * C, " channels")));
}

void WeightReader::transpose_taps(const PlacedSpec& placed, float* out) const {
  const WeightSpec& spec = placed.spec;
  const auto parts = static_cast<int64_t>(spec.names.size());
  const int64_t total = spec.shape[0], W = spec.shape[1], C = total / parts;
  if (const auto merged = find_merged(placed)) {
    const MergedTaps taps = merged_taps(*merged, spec);
    for (int64_t p = 0; p < parts; ++p)
      for (int64_t c = 0; c < C; ++c)
        for (int64_t j = 0; j < W; ++j) out[j * total + p * C + c] = finite_element(*merged, taps.at(p, c, j));
    return;
  }
  for (int64_t p = 0; p < parts; ++p) {
    const StoredTensor t = need(base_name(placed, static_cast<size_t>(p)));
    const int64_t first = first_element(t, spec);
    for (int64_t c = 0; c < C; ++c)
      for (int64_t j = 0; j < W; ++j) out[j * total + p * C + c] = finite_element(t, first + c * W + j);
  }
}

void WeightReader::values(const PlacedSpec& placed, float* out) const {
  const WeightSpec& spec = placed.spec;
  if (spec.kind == WeightKind::conv_taps) return transpose_taps(placed, out);
  for (size_t p = 0; p < spec.names.size(); ++p) {
    const StoredTensor t = need(base_name(placed, p));
    const int64_t first = first_element(t, spec);
    // A score row is the product of its vectors.
    for (int64_t i = 0; i < spec.shape[0]; ++i) {
      const float x = finite_element(t, first + i);
      out[i] = p == 0 ? x : out[i] * x;
    }
  }
}

}  // namespace kdelta
