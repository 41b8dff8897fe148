#include "kdelta/ops/kda/cpu_kernel.h"

namespace kdelta {

void kda_avx512(const Exec& ex, const KdaArgs& args, const KdaDesc& d, void* scratch) {
  kda_cpu::run<simd::Avx512, kda_cpu::Scan<simd::Avx512>>(ex, args, d, scratch);
}

void kda_replay_avx512(const Exec& ex, const KdaReplayArgs& args, const KdaDesc& d, void*) {
  kda_cpu::run_replay<simd::Avx512>(ex, args, d);
}

}  // namespace kdelta
