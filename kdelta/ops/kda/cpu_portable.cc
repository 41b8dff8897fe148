#include "kdelta/ops/kda/cpu_kernel.h"

namespace kdelta {

int64_t kda_scan_scratch(const KdaDesc& d) {
  return d.target.threads * kda_cpu::thread_bytes<kda_cpu::Scan<simd::Portable>>(d.K, d.V);
}

void kda_portable(const Exec& ex, const KdaArgs& args, const KdaDesc& d, void* scratch) {
  kda_cpu::run<simd::Portable, kda_cpu::Scan<simd::Portable>>(ex, args, d, scratch);
}

}  // namespace kdelta
