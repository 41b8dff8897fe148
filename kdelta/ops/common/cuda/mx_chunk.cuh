// Quantising inputs of products on the way to them, eight columns a lane.
#pragma once

#include "kdelta/ops/common/cuda/mx_codes.cuh"
#include "kdelta/ops/common/cuda/row.cuh"

namespace kdelta::cuda {

// Codes and scale of a chunk of a quantised block; the four lanes of a block call it together.
template <DType kFormat, bool kAligned = false, class In>
__device__ __forceinline__ void quantise_chunk(const In* x, bool inside, MxScaleRule rule, uint32_t (&code)[kChunk],
                                               float& factor) {
  float v[kChunk] = {}, amax = 0;
  if (inside) load_chunk<kAligned>(x, kChunk, v);
  bool finite = true;
#pragma unroll
  for (int i = 0; i < kChunk; ++i) amax = fmaxf(amax, fabsf(v[i])), finite = finite && isfinite(v[i]);
  amax = warp_max<4>(amax);
  const unsigned block = 0xfu << (threadIdx.x % 32 & ~3u);
  finite = (__ballot_sync(0xffffffffu, finite) & block) == block;
  const int E = finite ? scale_exponent<Format<kFormat>>(rule, amax) : 0;
  const float shrink = power_of_two(-E);
  factor = finite ? power_of_two(E) : NAN;
#pragma unroll
  for (int i = 0; i < kChunk; i += 2) {
    const uint32_t pair = code_pair<kFormat>(finite ? v[i] * shrink : 0.0f, finite ? v[i + 1] * shrink : 0.0f);
    code[i] = pair & 255, code[i + 1] = pair >> 8;
  }
}

}  // namespace kdelta::cuda
