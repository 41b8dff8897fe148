#include "kdelta/ops/kda/cpu_kernel.h"

namespace kdelta {

void kda_avx2(const Exec& ex, const KdaArgs& args, const KdaDesc& d, void* scratch) {
  kda_cpu::run<simd::Avx2, kda_cpu::Scan<simd::Avx2>>(ex, args, d, scratch);
}

void kda_replay_avx2(const Exec& ex, const KdaReplayArgs& args, const KdaDesc& d, void*) {
  kda_cpu::run_replay<simd::Avx2>(ex, args, d);
}

}  // namespace kdelta
