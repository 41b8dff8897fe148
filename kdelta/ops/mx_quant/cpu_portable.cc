#include "kdelta/ops/mx_quant/cpu_kernel.h"

namespace kdelta {

void mx_quantize_portable(const Exec& ex, const MxQuantizeArgs& args, const MxDesc&, void*) {
  mx_quantize_cpu<simd::Portable>(ex, args);
}

void mx_dequantize_portable(const Exec& ex, const MxDequantizeArgs& args, const MxDesc&, void*) {
  mx_dequantize_cpu<simd::Portable>(ex, args);
}

}  // namespace kdelta
