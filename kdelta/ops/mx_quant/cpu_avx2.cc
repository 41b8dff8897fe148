#include "kdelta/ops/mx_quant/cpu_kernel.h"

namespace kdelta {

void mx_quantize_avx2(const Exec& ex, const MxQuantizeArgs& args, const MxDesc&, void*) {
  mx_quantize_cpu<simd::Avx2>(ex, args);
}

void mx_dequantize_avx2(const Exec& ex, const MxDequantizeArgs& args, const MxDesc&, void*) {
  mx_dequantize_cpu<simd::Avx2>(ex, args);
}

}  // namespace kdelta
