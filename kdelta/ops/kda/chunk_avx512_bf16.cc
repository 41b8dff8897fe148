#include "kdelta/ops/kda/chunk_run.h"

namespace kdelta {

void kda_chunk_int16(const Exec& ex, const KdaArgs& args, const KdaDesc& d, void* scratch) {
  kda_cpu::run<simd::Avx512, kda_chunk::Chunk<kda_chunk::VectorForm<kda_chunk::Fixed>>>(ex, args, d, scratch);
}

void kda_chunk_bf16(const Exec& ex, const KdaArgs& args, const KdaDesc& d, void* scratch) {
  kda_cpu::run<simd::Avx512, kda_chunk::Chunk<kda_chunk::VectorForm<kda_chunk::Bfloat>>>(ex, args, d, scratch);
}

}  // namespace kdelta
