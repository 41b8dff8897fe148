#include "kdelta/ops/kda/chunk_scratch.h"
#include "kdelta/ops/kda/cpu_kernel.h"

namespace kdelta {
namespace {

// A thread runs one schedule at a time, so they share its bytes.
template <class Prefill>
int64_t bytes(const KdaDesc& d) {
  return d.target.threads * kda_cpu::thread_bytes<Prefill>(d.K, d.V) + kda_cpu::counter_bytes(d);
}

}  // namespace

int64_t kda_scan_scratch(const KdaDesc& d) {
  return bytes<kda_cpu::ScanScratch>(d);
}
int64_t kda_chunk_scratch(const KdaDesc& d) {
  return bytes<kda_chunk::Scratch>(d);
}

const char* kda_refuse_f32(const KdaDesc& d) {
  return d.activation == DType::f32 ? "16-bit operands would lose what f32 activations carry" : nullptr;
}

void kda_portable(const Exec& ex, const KdaArgs& args, const KdaDesc& d, void* scratch) {
  kda_cpu::run<simd::Portable, kda_cpu::Scan<simd::Portable>>(ex, args, d, scratch);
}

void kda_replay_portable(const Exec& ex, const KdaReplayArgs& args, const KdaDesc& d, void*) {
  kda_cpu::run_replay<simd::Portable>(ex, args, d);
}

}  // namespace kdelta
