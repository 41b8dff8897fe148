// The second half of a chunk's factors, from operands in shared memory: the two triangular score matrices in blocks of
// 16, the inverses of the diagonal blocks, and block substitution on [V | decayed K]. See cuda_factors.cu.
#pragma once

#include "kdelta/ops/kda/cuda_plan.cuh"
#include "kdelta/ops/kda/cuda_ptx.cuh"

namespace kdelta::kda_cuda {

constexpr int kPitch = 136, kScorePitch = 72;  // elements between rows

struct FactorShared {
  uint16_t q_left[64 * kPitch], k_left[64 * kPitch];  // times the decay since the block's first row
  uint16_t k_right[64 * kPitch];                      // times the inverse decay; holds W at the end
  uint16_t v[64 * kPitch];
  uint16_t score[64 * kScorePitch];  // minus the scores below the diagonal blocks, [row][column]
  float diagonal[4][16 * 20];        // beta-scaled scores of the diagonal blocks, [column][row]
  uint16_t inverse[4][16 * 24];      // [row][column], columns scaled by beta
  union {                            // decay from block J's anchor to block I's, pairs in order of rows
    float between[6][128];
    uint16_t between_bf16[6][128];  // where in-block operands are bf16
  };
  float total[8][128];        // log2 decay of eight tokens
  float first[4][128];        // of a block's first token
  float since_start[4][128];  // decay from before the chunk to the block's first row
  float to_end[4][128];       // decay from the right operand's anchor to the chunk's end
  float beta[64];
  int mode[8];
};

enum Mode { kFp16 = 0, kBf16 = 1, kWide = 2 };

__device__ __forceinline__ void write_score_pair(char* record, int row, int column, float x, float y) {
  *reinterpret_cast<uint32_t*>(record + kRecordA + row * 128 + (((column >> 3) ^ (row & 7)) << 4) + (column & 7) * 2) =
      pack<Half::f16>(x, y);
}

// Scores of block I's rows, keys and queries, with kHalves times eight of block J's columns.
template <int kHalves>
struct Scores {
  float k[kHalves][4], q[kHalves][4];
};

// The right operand's words of 16 channels for one lane, moved on from block J's anchor to block I's: words with an odd
// number are the upper eight channels. bf16 takes the decay rounded to bf16, one instruction a word: it stands where
// gates are so fast that few pairs of tokens in different blocks still see each other.
template <Half kType>
__device__ __forceinline__ void move_anchor(const FactorShared& s, int pair, int channel, uint32_t* b, int words) {
  if constexpr (kType == Half::bf16) {
    const uint32_t e0 = *reinterpret_cast<const uint32_t*>(&s.between_bf16[pair][channel]);
    const uint32_t e1 = *reinterpret_cast<const uint32_t*>(&s.between_bf16[pair][channel + 8]);
#pragma unroll
    for (int e = 0; e < words; ++e) asm("mul.rn.bf16x2 %0, %0, %1;" : "+r"(b[e]) : "r"(e & 1 ? e1 : e0));
  } else {
    const float2 e0 = *reinterpret_cast<const float2*>(&s.between[pair][channel]);
    const float2 e1 = *reinterpret_cast<const float2*>(&s.between[pair][channel + 8]);
#pragma unroll
    for (int e = 0; e < words; ++e) {
      float p, q;
      unpack<kType>(b[e], p, q);
      b[e] = e & 1 ? pack<kType>(p * e1.x, q * e1.y) : pack<kType>(p * e0.x, q * e0.y);
    }
  }
}

// All columns (kHalves 2), or eight from column 8 `half` on. pair < 0: the diagonal.
template <Half kType, int kHalves>
__device__ __forceinline__ void compute_scores(const FactorShared& s, int I, int J, int pair, int half,
                                               Scores<kHalves>& x) {
  const int lane = static_cast<int>(threadIdx.x & 31), m = lane >> 3, r = lane & 7, t = lane & 3;
#pragma unroll
  for (int n = 0; n < kHalves; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) x.k[n][e] = x.q[n][e] = 0;
  const uint32_t left = cuda::shared_address(s.k_left) + ((I * 16 + (m & 1) * 8 + r) * kPitch + (m >> 1) * 8) * 2;
  const uint32_t left_q = left - cuda::shared_address(s.k_left) + cuda::shared_address(s.q_left);
  // A load of the right operand is 16 channels of 16 columns, or 32 channels of eight.
  const int right_row = J * 16 + (kHalves == 2 ? (m >> 1) * 8 : half * 8) + r, right_channel = kHalves == 2 ? m & 1 : m;
  const uint32_t right = cuda::shared_address(s.k_right) + (right_row * kPitch + right_channel * 8) * 2;
  uint32_t b[4];
#pragma unroll
  for (int step = 0; step < 8; ++step) {
    uint32_t kl[4], ql[4];
    cuda::load_matrices(kl, left + step * 32), cuda::load_matrices(ql, left_q + step * 32);
    if (kHalves == 2 || step % 2 == 0) cuda::load_matrices(b, right + step * 32);
    uint32_t* const now = b + (kHalves == 2 ? 0 : step % 2 * 2);
    if (pair >= 0) move_anchor<kType>(s, pair, step * 16 + 2 * t, now, 2 * kHalves);
#pragma unroll
    for (int n = 0; n < kHalves; ++n) {
      mma<kType>(x.k[n], kl, now[2 * n], now[2 * n + 1]);
      mma<kType>(x.q[n], ql, now[2 * n], now[2 * n + 1]);
    }
  }
}

template <Half kType>
__device__ __forceinline__ void diagonal_block(FactorShared& s, char* record, int I) {
  const int lane = static_cast<int>(threadIdx.x & 31), g = lane >> 2;
  Scores<2> x;
  compute_scores<kType>(s, I, I, -1, 0, x);
#pragma unroll
  for (int n = 0; n < 2; ++n)
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int i = g + e * 8, j = n * 8 + (lane & 3) * 2;
      const float b = s.beta[I * 16 + i];
      s.diagonal[I][j * 20 + i] = j < i ? b * x.k[n][2 * e] : 0.0f;
      s.diagonal[I][(j + 1) * 20 + i] = j + 1 < i ? b * x.k[n][2 * e + 1] : 0.0f;
      write_score_pair(record, I * 16 + i, I * 16 + j, j <= i ? x.q[n][2 * e] : 0.0f,
                       j + 1 <= i ? x.q[n][2 * e + 1] : 0.0f);
    }
}

template <Half kType, int kHalves>
__device__ __forceinline__ void block_below(FactorShared& s, char* record, int pair, int half) {
  const int lane = static_cast<int>(threadIdx.x & 31), g = lane >> 2;
  const int I = pair < 1 ? 1 : pair < 3 ? 2 : 3, J = pair - I * (I - 1) / 2;
  Scores<kHalves> x;
  compute_scores<kType>(s, I, J, pair, half, x);
#pragma unroll
  for (int n = 0; n < kHalves; ++n)
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int i = g + e * 8, j = (n + half) * 8 + (lane & 3) * 2;
      *reinterpret_cast<uint32_t*>(&s.score[(I * 16 + i) * kScorePitch + J * 16 + j]) =
          pack<Half::f16>(-x.k[n][2 * e], -x.k[n][2 * e + 1]);
      write_score_pair(record, I * 16 + i, J * 16 + j, x.q[n][2 * e], x.q[n][2 * e + 1]);
      write_score_pair(record, J * 16 + i, I * 16 + j, 0, 0);  // its mirror image
    }
}

// Decays too large for a right operand at the block's first row: a warp sums its diagonal block pair by pair, four
// channels a lane. Every thread has left its cumulative log2 decays where the record will hold W and U0.
__device__ __forceinline__ float* log_row(char* record, int row) {
  return reinterpret_cast<float*>(record + (row < 32 ? kRecordW : kRecordU - 32 * 512) + row * 512);
}
__device__ __noinline__ void wide_diagonal(const Args& a, int begin, int tokens, int h, FactorShared& s, char* record,
                                           int I) {
  const int lane = static_cast<int>(threadIdx.x & 31);
  const float scale = a.scale;
  for (int pair = 0; pair < 256; ++pair) {
    const int i = pair >> 4, j = pair & 15, row = I * 16 + i, column = I * 16 + j;
    float k = 0, q = 0;
    if (j <= i && row < tokens) {
      const int64_t ti = begin + row, tj = begin + column;
      float kk = 0, qq = 0, jj = 0;
      for (int d = lane; d < 128; d += 32) {
        const float ki = element(a.k, ti, h, d), kj = element(a.k, tj, h, d), qi = element(a.q, ti, h, d);
        const float decay = cuda::exp2_fast(log_row(record, row)[d] - log_row(record, column)[d]);
        k += ki * kj * decay, q += qi * kj * decay;
        kk += ki * ki, jj += kj * kj, qq += qi * qi;
      }
      for (int m = 16; m > 0; m >>= 1) {
        k += __shfl_xor_sync(~0u, k, m), q += __shfl_xor_sync(~0u, q, m);
        kk += __shfl_xor_sync(~0u, kk, m), jj += __shfl_xor_sync(~0u, jj, m), qq += __shfl_xor_sync(~0u, qq, m);
      }
      if (a.l2) {
        const float nj = rsqrtf(jj + 1e-6f);
        k *= rsqrtf(kk + 1e-6f) * nj, q *= rsqrtf(qq + 1e-6f) * nj;
      }
    }
    if (lane == 0) {
      s.diagonal[I][j * 20 + i] = j < i ? s.beta[row] * k : 0.0f;
      *reinterpret_cast<__half*>(record + kRecordA + row * 128 + (((column >> 3) ^ (row & 7)) << 4) +
                                 (column & 7) * 2) = __float2half(j <= i ? q * scale : 0.0f);
    }
  }
}

// (I + L)^-1 diag(beta) of one diagonal block; lane i < 16 owns column i.
__device__ __forceinline__ void invert(FactorShared& s, int I) {
  const int column = static_cast<int>(threadIdx.x & 15);
  float x[16];
#pragma unroll
  for (int i = 0; i < 16; ++i) x[i] = i == column ? 1.0f : 0.0f;
#pragma unroll
  for (int j = 0; j < 15; ++j)
#pragma unroll
    for (int i4 = (j + 1) / 4; i4 < 4; ++i4) {
      const float4 l = *reinterpret_cast<const float4*>(&s.diagonal[I][j * 20 + i4 * 4]);
      if (i4 * 4 > j) x[i4 * 4] = fmaf(-l.x, x[j], x[i4 * 4]);
      if (i4 * 4 + 1 > j) x[i4 * 4 + 1] = fmaf(-l.y, x[j], x[i4 * 4 + 1]);
      if (i4 * 4 + 2 > j) x[i4 * 4 + 2] = fmaf(-l.z, x[j], x[i4 * 4 + 2]);
      if (i4 * 4 + 3 > j) x[i4 * 4 + 3] = fmaf(-l.w, x[j], x[i4 * 4 + 3]);
    }
  const float b = s.beta[I * 16 + column];
  if ((threadIdx.x & 31) < 16)
#pragma unroll
    for (int i = 0; i < 16; ++i) s.inverse[I][i * 24 + column] = __half_as_ushort(__float2half(x[i] * b));
}

// Rows of 16 channels from a block of tokens, transposed: the two column halves of a product's sum.
template <Half kType>
__device__ __forceinline__ void load_columns(const uint16_t* from, float (&x)[2][4]) {
  uint32_t y[4];
  cuda::load_matrices_transposed(y, cuda::shared_address(from));
#pragma unroll
  for (int e = 0; e < 4; ++e) unpack<kType>(y[e], x[e >> 1][(e & 1) * 2], x[e >> 1][(e & 1) * 2 + 1]);
}
__device__ __forceinline__ void pack_columns(const float (&x)[2][4], uint32_t (&to)[4]) {
#pragma unroll
  for (int e = 0; e < 4; ++e) to[e] = pack<Half::f16>(x[e >> 1][(e & 1) * 2], x[e >> 1][(e & 1) * 2 + 1]);
}
__device__ __forceinline__ void multiply_columns(float (&x)[2][4], const uint32_t (&rows)[4], const uint32_t (&by)[4]) {
  mma<Half::f16>(x[0], rows, by[0], by[1]);
  mma<Half::f16>(x[1], rows, by[2], by[3]);
}

// Block forward substitution, transposed: rows are the warp's 16 channels, of V and of decayed K side by side. V
// becomes U0 in the record's register order, K minus W as tiles in k_right.
template <Half kType>
__device__ __forceinline__ void substitute(FactorShared& s, char* record) {
  const int lane = static_cast<int>(threadIdx.x & 31), warp = static_cast<int>(threadIdx.x >> 5) & 7, m = lane >> 3,
            r = lane & 7, g = lane >> 2;
  uint32_t solved_v[4][4], solved_k[4][4];
#pragma unroll
  for (int b = 0; b < 4; ++b) {
    const int row = b * 16 + (m >> 1) * 8 + r, source = row * kPitch + warp * 16 + (m & 1) * 8;
    float v[2][4], k[2][4];
    load_columns<Half::bf16>(s.v + source, v), load_columns<kType>(s.k_left + source, k);
    const float f0 = s.since_start[b][warp * 16 + g], f1 = s.since_start[b][warp * 16 + g + 8];
#pragma unroll
    for (int n = 0; n < 2; ++n) k[n][0] *= f0, k[n][1] *= f0, k[n][2] *= f1, k[n][3] *= f1;
#pragma unroll
    for (int j = 0; j < b; ++j) {
      uint32_t l[4];
      cuda::load_matrices(l, cuda::shared_address(s.score + row * kScorePitch + j * 16 + (m & 1) * 8));
      multiply_columns(v, solved_v[j], l), multiply_columns(k, solved_k[j], l);
    }
    uint32_t inverse[4], right_v[4], right_k[4];
    cuda::load_matrices(inverse, cuda::shared_address(s.inverse[b] + ((m >> 1) * 8 + r) * 24 + (m & 1) * 8));
    pack_columns(v, right_v), pack_columns(k, right_k);
#pragma unroll
    for (int e = 0; e < 8; ++e) v[e >> 2][e & 3] = k[e >> 2][e & 3] = 0;
    multiply_columns(v, right_v, inverse), multiply_columns(k, right_k, inverse);
    pack_columns(v, solved_v[b]), pack_columns(k, solved_k[b]);
    *reinterpret_cast<uint4*>(record + kRecordU + (warp >> 2) * 8192 + (b * 128 + (warp & 3) * 32 + lane) * 16) =
        make_uint4(solved_v[b][0], solved_v[b][1], solved_v[b][2], solved_v[b][3]);
    const int piece = warp * 2 + (m & 1);
    const uint32_t at =
        cuda::shared_address(s.k_right) + (piece >> 3) * 8192 + row * 128 + (((piece & 7) ^ (row & 7)) << 4);
    constexpr uint32_t kMinus = 0x80008000u;
    cuda::store_matrices_transposed(at, solved_k[b][0] ^ kMinus, solved_k[b][1] ^ kMinus, solved_k[b][2] ^ kMinus,
                                    solved_k[b][3] ^ kMinus);
  }
}

// Four warps take the diagonal blocks and invert them, the others one and a half of the six blocks below.
template <Half kType>
__device__ __forceinline__ void products(FactorShared& s, char* record, int warp, bool diagonal_done) {
  if (warp >= 4) {
    block_below<kType, 2>(s, record, warp - 4, 0);
    block_below<kType, 1>(s, record, 4 + (warp - 4) / 2, warp % 2);
    return;
  }
  if (!diagonal_done) diagonal_block<kType>(s, record, warp);
  __syncwarp();
  invert(s, warp);
}

}  // namespace kdelta::kda_cuda
