#include "kdelta/core/moves.h"

#include <cstring>

#include "kdelta/core/check.h"

namespace kdelta {

namespace device {  // core/cuda or core/no_cuda
void move_bytes(Stream& stream, std::span<const Move> moves);
void fill_uniform(Stream& stream, void* data, DType dtype, int64_t count, float center, float scale, uint64_t seed);
}  // namespace device

void move_bytes(Stream* stream, std::span<const Move> moves) {
  if (stream != nullptr) return device::move_bytes(*stream, moves);
  for (const Move& m : moves)
    if (m.bytes > 0) std::memmove(m.to, m.from, static_cast<size_t>(m.bytes));
}

void copy_now(Stream* stream, void* to, const void* from, int64_t bytes) {
  if (bytes == 0) return;
  if (stream == nullptr) {
    std::memcpy(to, from, static_cast<size_t>(bytes));
    return;
  }
  copy_async(*stream, to, from, bytes);
  stream->synchronize();
}

AnyConstView host_copy(Stream* stream, const AnyConstView& matrix, std::vector<char>& memory) {
  if (stream == nullptr) return matrix;
  const int64_t element = dtype_bytes(matrix.dtype), width = matrix.dim(1) * element;
  memory.resize(static_cast<size_t>(matrix.dim(0) * width));
  copy_rows_async(*stream, memory.data(), width, matrix.data, matrix.stride[0] * element, width, matrix.dim(0));
  stream->synchronize();
  return {memory.data(), matrix.dtype, matrix.shape};
}

void fill_uniform(Stream* stream, void* data, DType dtype, int64_t count, float center, float scale, uint64_t seed) {
  KDELTA_CHECK(dtype == DType::f32 || dtype == DType::bf16, "uniform values of ", dtype_name(dtype));
  if (stream != nullptr) return device::fill_uniform(*stream, data, dtype, count, center, scale, seed);
  const auto value = [&](int64_t i) { return center + scale * uniform_value(seed, static_cast<uint64_t>(i)); };
  if (dtype == DType::f32)
    for (int64_t i = 0; i < count; ++i) static_cast<float*>(data)[i] = value(i);
  else
    for (int64_t i = 0; i < count; ++i) static_cast<bf16*>(data)[i] = to_bf16(value(i));
}

}  // namespace kdelta
