// Weights as operands of tensor-core products: the 16 bytes that a lane loads from a row become pairs of bf16, exactly
// for every MX code and scale whose value is a bf16 (below 2^-126 they may lose bits).
//
// A chunk of a row is 64 bytes, 16 for each lane of a quad: 32 columns of bf16, 64 of FP8, 128 of FP4. A product of 16
// columns takes two words (four columns) from each lane, so the columns of a product lie apart; tokens are read to
// match.
#pragma once

#include "kdelta/ops/common/cuda/fragments.cuh"
#include "kdelta/ops/common/cuda/projection.cuh"

namespace kdelta::cuda {

__device__ __forceinline__ uint4 load_cached16(const void* p) {
  uint4 v;
  asm volatile("ld.global.nc.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p)
               : "memory");
  return v;
}
__device__ __forceinline__ uint4 load_shared16(uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address)
               : "memory");
  return v;
}
__device__ __forceinline__ uint32_t load_shared_word(uint32_t address) {
  uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(address) : "memory");
  return v;
}
__device__ __forceinline__ uint32_t load_shared_byte(uint32_t address) {
  uint32_t v;
  asm volatile("ld.shared.u8 %0, [%1];" : "=r"(v) : "r"(address) : "memory");
  return v;
}
__device__ __forceinline__ uint32_t load_cached_byte(const uint8_t* p) {
  uint32_t v;
  asm volatile("ld.global.nc.u8 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}

__device__ __forceinline__ uint32_t multiply_pair(uint32_t pair, uint32_t factor) {
  uint32_t out;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(pair), "r"(factor), "r"(0x80008000u));
  return out;
}

// kColumns: columns of a lane's 16 bytes. special() says whether any of the codes takes the slow way, which is kSlow of
// unpack(); that gives eight columns, the i-th eight, as four pairs: natural ones, but columns half a word apart (0 and
// 4, 1 and 5, ...) of FP4.
template <DType>
struct WeightFormat;

template <>
struct WeightFormat<DType::bf16> {
  static constexpr int kColumns = 8;
  static constexpr bool kScaled = false;
  __device__ static __forceinline__ bool special(const uint4&, uint32_t) { return false; }
  template <bool kSlow>
  __device__ static __forceinline__ void unpack(const uint4& raw, int, uint32_t, uint32_t (&out)[4]) {
    out[0] = raw.x, out[1] = raw.y, out[2] = raw.z, out[3] = raw.w;
  }
};

// The way of NaN, infinity and scales beyond what one product applies.
template <DType kFormat>
__device__ __forceinline__ uint32_t slow_pair(uint32_t first, uint32_t second, uint32_t scale) {
  const float factor = scale == 255 ? NAN : power_of_two(static_cast<int>(scale) - 127);
  return pack_bf16(value_of<kFormat>(first) * factor, value_of<kFormat>(second) * factor);
}

__device__ __forceinline__ uint32_t word_of(const uint4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

// A code shifted into a bf16's place is its value times 2^-kBias, subnormal codes and all; one product then takes that
// and the block's scale.
template <DType kFormat>
struct Fp8Weights {
  static constexpr int kColumns = 16;
  static constexpr bool kScaled = true;
  static constexpr int kShift = kFormat == DType::f8_e4m3 ? 4 : 3;
  static constexpr uint32_t kMagnitude = kFormat == DType::f8_e4m3 ? 0x07f007f0u : 0x0fe00fe0u;
  static constexpr uint32_t kBias = kFormat == DType::f8_e4m3 ? 120 : 112;
  static constexpr uint32_t kMostScale = 254 - kBias;
  // Added to a magnitude, sets the top bit of a NaN or an infinity.
  static constexpr uint32_t kSpecial = kFormat == DType::f8_e4m3 ? 0x01010101u : 0x04040404u;

  __device__ static __forceinline__ uint32_t special_bits(uint32_t codes) {
    return ((codes & 0x7f7f7f7fu) + kSpecial) & 0x80808080u;
  }
  __device__ static __forceinline__ bool special(const uint4& raw, uint32_t scale) {
    return (special_bits(raw.x) | special_bits(raw.y) | special_bits(raw.z) | special_bits(raw.w)) != 0 ||
           scale > kMostScale;
  }
  // Two codes of a word, the i-th two.
  template <bool kSlow>
  __device__ static __forceinline__ uint32_t pair(uint32_t codes, int i, uint32_t scale) {
    if constexpr (kSlow) return slow_pair<kFormat>(codes >> (i * 16) & 255, codes >> (i * 16 + 8) & 255, scale);
    const uint32_t high = __byte_perm(codes, 0, i == 0 ? 0x1404 : 0x3424);
    return multiply_pair((high & 0x80008000u) | (high >> kShift & kMagnitude), (scale + kBias) * 0x00800080u);
  }
  template <bool kSlow>
  __device__ static __forceinline__ void unpack(const uint4& raw, int i, uint32_t scale, uint32_t (&out)[4]) {
#pragma unroll
    for (int j = 0; j < 4; ++j) out[j] = pair<kSlow>(word_of(raw, 2 * i + j / 2), j % 2, scale);
  }
};
template <>
struct WeightFormat<DType::f8_e4m3> : Fp8Weights<DType::f8_e4m3> {};
template <>
struct WeightFormat<DType::f8_e5m2> : Fp8Weights<DType::f8_e5m2> {};

template <>
struct WeightFormat<DType::f4_e2m1> {
  static constexpr int kColumns = 32;
  static constexpr bool kScaled = true;
  static constexpr uint32_t kMostScale = 128;

  __device__ static __forceinline__ bool special(const uint4&, uint32_t scale) { return scale > kMostScale; }
  // A code in the low four bits of either half, and the same shifted by four: copies 6 bits apart, summed.
  __device__ static __forceinline__ uint32_t halves(uint32_t codes, int shift, uint32_t scale) {
    return multiply_pair((codes & 0x000f000fu << shift) * (0x1040u >> shift) & 0x81c081c0u,
                         (scale + 126) * 0x00800080u);
  }
  // Two codes whose signs are shifted to bits 15 and 31 and whose magnitudes to bits 6 and 22.
  __device__ static __forceinline__ uint32_t scaled(uint32_t sign, uint32_t magnitude, uint32_t scale) {
    return multiply_pair((sign & 0x80008000u) | (magnitude & 0x01c001c0u), (scale + 126) * 0x00800080u);
  }
  // The two codes of a byte.
  template <bool kSlow>
  __device__ static __forceinline__ uint32_t neighbours(uint32_t two, uint32_t scale) {
    if constexpr (kSlow) return slow_pair<DType::f4_e2m1>(two & 15, two >> 4, scale);
    return scaled(two * 0x1001000u, two * 0x40040u, scale);  // copies 12 bits apart, shifted by 12 and by 6
  }
  template <bool kSlow>
  __device__ static __forceinline__ void unpack(const uint4& raw, int i, uint32_t scale, uint32_t (&out)[4]) {
    const uint32_t w = word_of(raw, i);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if constexpr (kSlow)
        out[j] = slow_pair<DType::f4_e2m1>(w >> (4 * j) & 15, w >> (4 * j + 16) & 15, scale);
      else
        out[j] = halves(j < 2 ? w : w >> 8, j % 2 * 4, scale);
    }
  }
};

// Eight columns of x in the order of unpack()'s.
template <DType kFormat>
__device__ __forceinline__ void match_order(const uint4& x, uint32_t (&out)[4]) {
  if constexpr (kFormat == DType::f4_e2m1) {
    out[0] = __byte_perm(x.x, x.z, 0x5410), out[1] = __byte_perm(x.x, x.z, 0x7632);
    out[2] = __byte_perm(x.y, x.w, 0x5410), out[3] = __byte_perm(x.y, x.w, 0x7632);
  } else {
    out[0] = x.x, out[1] = x.y, out[2] = x.z, out[3] = x.w;
  }
}

}  // namespace kdelta::cuda
