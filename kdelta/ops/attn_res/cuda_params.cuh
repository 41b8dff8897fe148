// A call of attn_res as its kernels take it.
#pragma once

#include "kdelta/ops/attn_res/variants.h"
#include "kdelta/ops/common/cuda/views.cuh"

namespace kdelta::cuda {

template <class E>
struct AttnResParams {
  const E* blocks;
  int64_t block_stride, row_stride;
  Rows<const E> sum, addend;
  Rows<E> sum_out, out;
  bool adds;
  const float *score_weight, *norm_weight;
  int64_t T, D;
  int n;
  float eps, norm_eps;

  // As given: the last is the sum without its addend.
  __device__ __forceinline__ const E* stream(int i, int64_t t) const {
    return i < n ? blocks + i * block_stride + t * row_stride : sum.at(t);
  }
};

template <class E>
AttnResParams<E> attn_res_params(const AttnResArgs& a) {
  AttnResParams<E> p{.sum = rows<const E>(a.sum),
                     .out = rows<E>(a.out),
                     .adds = !a.addend.null(),
                     .score_weight = a.score_weight.data,
                     .norm_weight = a.norm_weight.data,
                     .T = a.sum.dim(0),
                     .D = a.sum.dim(1),
                     .n = static_cast<int>(a.n),
                     .eps = a.eps,
                     .norm_eps = a.norm_eps};
  if (p.adds) p.addend = rows<const E>(a.addend), p.sum_out = rows<E>(a.sum_out);
  if (a.n > 0) {
    p.blocks = static_cast<const E*>(a.blocks.data);
    p.block_stride = a.blocks.stride[0], p.row_stride = a.blocks.stride[1];
  }
  return p;
}

}  // namespace kdelta::cuda
