#include "kdelta/ops/common/mx_input.h"

#include "kdelta/ops/common/cpu/mx_input.h"
#include "kdelta/ops/common/cuda/mx_input.h"
#include "kdelta/ops/common/op.h"

namespace kdelta {

void expect_mx_codes(const AnyConstView& x, const View<const uint8_t>& scale, const char* x_name,
                     const char* scale_name) {
  const int64_t T = x.dim(0), K = x.dim(1), blocks = K / kMxBlock, even = blocks + blocks % 2;
  expect_view(x, {T, K}, x_name);
  if (K % kMxBlock != 0)
    fail(ErrorCode::invalid_argument, x_name, ": ", K, " columns of ", dtype_name(x.dtype),
         ", expected a multiple of the scale block ", kMxBlock);
  const bool padded = scale.shape.rank == 2 && scale.dim(1) == even;
  expect_view(scale, {T, padded ? even : blocks}, scale_name);
}

void expect_input(const AnyConstView& x, const MxInput& input, const char* op) {
  if (!is_mx_input(x, input)) return;
  const bool codes = x.dtype == DType::f8_e4m3 || x.dtype == DType::f8_e5m2;
  if (codes && input.quantised() && x.dtype != input.format)
    fail(ErrorCode::invalid_argument, op, ": x: dtype ", dtype_name(x.dtype), ", the matrix takes ",
         dtype_name(input.format));
  if (x.dim(1) % kMxBlock != 0)
    fail(ErrorCode::invalid_argument, op, ": x: ", x.dim(1), " columns to be quantised, expected a multiple of ",
         kMxBlock);
}

void mx_input_values(const Exec& ex, const AnyConstView& x, const View<const uint8_t>& scale, const MxInput& input,
                     const AnyView& out) {
  if (ex.planning) return;
  if constexpr (kCudaBuild)
    if (ex.device.kind == DeviceKind::cuda) return mx_input_cuda(ex, x, scale, input, out);
  const IsaLevel isa = target_of(ex).isa;
  const auto run = isa >= IsaLevel::avx512 ? mx_input_avx512
                   : isa >= IsaLevel::avx2 ? mx_input_avx2
                                           : mx_input_portable;
  run(ex, x, scale, input, out);  // the bits are those of every instruction set
}

}  // namespace kdelta
