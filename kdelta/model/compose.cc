#include "kdelta/model/compose.h"

#include "kdelta/core/check.h"
#include "kdelta/core/exec.h"
#include "kdelta/ops/linear/linear.h"

namespace kdelta {
namespace {

// Rows of the product per call, so that scratch does not grow with the model.
constexpr int64_t kRows = 1024;

template <class To, class From>
void transpose(const Matrix& a, To* out) {
  constexpr int64_t kBlock = 64;  // columns whose lines of `out` stay in cache while the rows go by
  for (int64_t first = 0; first < a.cols; first += kBlock)
    for (int64_t r = 0; r < a.rows; ++r) {
      const auto* in = reinterpret_cast<const From*>(a.row(r));
      for (int64_t d = first; d < std::min(first + kBlock, a.cols); ++d)
        out[d * a.rows + r] = from_float<To>(to_float(in[d]));
    }
}

// [R, D] -> [D, R] in `dtype`, which holds every value of a.
Matrix transposed(const Matrix& a, DType dtype, const Buffer& out) {
  if (dtype == DType::bf16)
    transpose<bf16, bf16>(a, static_cast<bf16*>(out.data()));
  else if (a.dtype == DType::bf16)
    transpose<float, bf16>(a, static_cast<float*>(out.data()));
  else
    transpose<float, float>(a, static_cast<float*>(out.data()));
  return dense_matrix(out.data(), dtype, a.cols, a.rows);
}

// `count` rows of b as activations; through `wide` when they must become fp32 first.
AnyConstView rows_of(const Matrix& b, int64_t begin, int64_t count, DType dtype, const Buffer& wide) {
  if (b.dtype == dtype)
    return AnyConstView(b.row(begin), dtype, {count, b.cols}, {b.row_bytes / dtype_bytes(dtype), 1});
  auto* out = static_cast<float*>(wide.data());
  for (int64_t r = 0; r < count; ++r) dequantize_row(b, begin + r, out + r * b.cols);
  return AnyConstView(out, dtype, {count, b.cols});
}

}  // namespace

const char* refuse_composition(DType b, DType a) {
  const auto floating = [](DType d) { return d == DType::bf16 || d == DType::f32; };
  return floating(b) && floating(a) ? nullptr : "a quantised factor cannot be composed";
}

DType composed_dtype(DType b, DType a) {
  return b == DType::bf16 && a == DType::bf16 ? DType::bf16 : DType::f32;
}

struct Composer::Work {
  explicit Work(const Options& options) : threads(options.threads), arena(Device{}, 0) {}
  ThreadPool threads;
  Arena arena;
  Buffer columns, wide;  // a transposed; rows of b in fp32
};

Composer::Composer(const Options& options) : options_(options) {
  options_.force.clear();  // names variants of the steps, not of loading
}
Composer::~Composer() = default;

void Composer::run(const Matrix& b, const Matrix& w, void* out, int64_t begin, int64_t count, Arena& arena,
                   bool planning) {
  Exec ex;
  ex.scratch = &arena;
  ex.threads = &work_->threads;
  ex.options = &options_;
  ex.planning = planning;
  auto* rows = static_cast<char*>(out) + begin * w.rows * dtype_bytes(w.dtype);
  linear(ex, {.x = planning ? AnyConstView(b.data, w.dtype, {count, b.cols})
                            : rows_of(b, begin, count, w.dtype, work_->wide),
              .w = w,
              .out = AnyView(rows, w.dtype, {count, w.rows})});
}

void Composer::prepare(const Matrix& b, const Matrix& a) {
  expect_matrix(b, b.rows, a.rows, "compose: b");
  KDELTA_CHECK(refuse_composition(b.dtype, a.dtype) == nullptr, "factors of dtype ", dtype_name(b.dtype), ", ",
               dtype_name(a.dtype));
  if (!work_) work_ = std::make_unique<Work>(options_);
  const DType dtype = composed_dtype(b.dtype, a.dtype);
  const int64_t most = std::min(b.rows, kRows);
  const auto grow = [](Buffer& buffer, int64_t bytes) {
    if (buffer.bytes() < bytes) buffer = Buffer(Device{}, bytes);
  };
  grow(work_->columns, a.cols * a.rows * dtype_bytes(dtype));
  if (b.dtype != dtype) grow(work_->wide, most * b.cols * 4);
  Arena plan = Arena::measuring(Device{});
  run(b, dense_matrix(a.data, dtype, a.cols, a.rows), const_cast<void*>(a.data), 0, most, plan, true);
  if (work_->arena.capacity() < plan.peak()) work_->arena = Arena(Device{}, plan.peak());
}

void Composer::compose(const Matrix& b, const Matrix& a, void* out) {
  prepare(b, a);
  const Matrix w = transposed(a, composed_dtype(b.dtype, a.dtype), work_->columns);
  for (int64_t begin = 0; begin < b.rows; begin += kRows)
    run(b, w, out, begin, std::min(kRows, b.rows - begin), work_->arena, false);
}

}  // namespace kdelta
