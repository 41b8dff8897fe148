// The attention of expanded prefill on wgmma. A thread block has 128 queries of a head, two warpgroups with 64 each; a
// third copies blocks of 128 positions, keys (the head's 128 and the shared 64 columns) and values, two stages each. A
// warpgroup asks for the next block's scores and this block's sums together, and makes probabilities of the first
// while the second are multiplied.
#include "kdelta/ops/common/cuda/launch.cuh"
#include "kdelta/ops/common/cuda/math.cuh"
#include "kdelta/ops/common/cuda/tensor_map.cuh"
#include "kdelta/ops/common/cuda/wgmma.cuh"
#include "kdelta/ops/mla/cuda_expanded.cuh"

namespace kdelta::mla_cuda {
namespace {

using namespace cuda;

constexpr int kThreads = 384, kStages = 2, kBox = 64;  // columns of a box, 128 bytes
constexpr int kBoxBytes = 128 * kKeys;
constexpr int kQueryBoxes = (kNope + kRope) / kBox, kValueBoxes = kValue / kBox;
constexpr int kKeyBytes = kQueryBoxes * kBoxBytes, kValueBytes = kValueBoxes * kBoxBytes;
constexpr int kSharedBytes = kKeyBytes + kStages * (kKeyBytes + kValueBytes) + 1024;  // begins at a multiple of 1,024
static_assert(kQueries == kKeys && kSharedBytes <= 227 * 1024);

struct AttendArgs {
  CUtensorMap key_value;  // rows of a head, then those of the next
  CUtensorMap latent;
  ExpandedArgs a;
  int first_head;
};

struct Tile {
  PrefillPiece piece;
  int first;  // token of the sequence
  int head;   // of the round

  __device__ __forceinline__ int tokens() const { return min(kQueries, piece.tokens - first); }
  __device__ __forceinline__ int blocks() const { return (piece.context + first + tokens() + kKeys - 1) / kKeys; }
};

struct Stages {
  uint8_t *key, *value;
  uint64_t *key_full, *value_full, *key_empty, *value_empty;
};

// One thread.
__device__ __forceinline__ void copy_blocks(const AttendArgs& p, const Tile& tile, const Stages& s) {
  const int blocks = tile.blocks();
  for (int j = 0; j < blocks; ++j) {
    const int stage = j % kStages, row = tile.piece.row_begin + j * kKeys;
    const int head_row = tile.head * static_cast<int>(p.a.w.rows) + row;
    const uint32_t phase = (j / kStages & 1) ^ 1;
    barrier_wait(s.key_empty + stage, phase);
    barrier_expect(s.key_full + stage, kKeyBytes);
    uint8_t* key = s.key + stage * kKeyBytes;
#pragma unroll
    for (int b = 0; b < kNope / kBox; ++b)
      tensor_load(key + b * kBoxBytes, p.key_value, b * kBox, head_row, s.key_full + stage);
    tensor_load(key + kNope / kBox * kBoxBytes, p.latent, kLatent, row, s.key_full + stage);
    barrier_wait(s.value_empty + stage, phase);
    barrier_expect(s.value_full + stage, kValueBytes);
#pragma unroll
    for (int b = 0; b < kValueBoxes; ++b)
      tensor_load(s.value + stage * kValueBytes + b * kBoxBytes, p.key_value, kNope + b * kBox, head_row,
                  s.value_full + stage);
  }
}
static_assert(kRope == kBox);

// A thread of a warpgroup: of rows g and g + 8 of its warp's 16, columns 8 j + 2q and one more of every product.
class Attention {
 public:
  __device__ Attention(const AttendArgs& p, const Tile& tile, const Stages& s, uint8_t* query)
      : p_(p),
        tile_(tile),
        s_(s),
        group_(static_cast<int>(threadIdx.x) / 128),
        lane_(static_cast<int>(threadIdx.x) % 32),
        row_(static_cast<int>(threadIdx.x) / 32 * 16 + lane_ / 4),
        sees_(tile.piece.context + tile.first + row_ + 1),
        scale_(p.a.scale * 1.4426950408889634f) {
    load_query(query);
    query_ = wgmma_tile(shared_address(query) + group_ * (64 * 128));
  }

  __device__ __forceinline__ void run() {
    const int blocks = tile_.blocks();
    float score[kKeys / 2], sum[kValue / 2];
    uint32_t probability[kKeys / 16][4];
    float factor[2];
    scores(score, 0);
    wgmma_wait<0>();
    wgmma_done(score);
    release(s_.key_empty, 0);
    softmax(score, 0, factor);
    pack(score, probability);
    for (int j = 0; j + 1 < blocks; ++j) {
      scores(score, j + 1);
      add(sum, probability, j);
      wgmma_wait<1>();
      wgmma_done(score);
      release(s_.key_empty, j + 1);
      softmax(score, j + 1, factor);
      wgmma_wait<0>();
      wgmma_done(sum);
      release(s_.value_empty, j);
#pragma unroll
      for (int i = 0; i < kValue / 2; ++i) sum[i] *= factor[i / 2 % 2];
      pack(score, probability);
    }
    add(sum, probability, blocks - 1);
    wgmma_wait<0>();
    wgmma_done(sum);
    store(sum);
  }

 private:
  // The warpgroup's own rows; those past the tile's tokens are zeros.
  __device__ __forceinline__ void load_query(uint8_t* query) {
    constexpr int kChunks = (kNope + kRope) / 8;
    const int thread = static_cast<int>(threadIdx.x) % 128, head = p_.first_head + tile_.head;
#pragma unroll 4
    for (int i = thread; i < 64 * kChunks; i += 128) {
      const int r = group_ * 64 + i / kChunks, c = i % kChunks;
      const bf16* from = p_.a.q.at(tile_.piece.token + tile_.first + min(r, tile_.tokens() - 1), head) + c * 8;
      *reinterpret_cast<uint4*>(query + c / 8 * kBoxBytes + r * 128 + (c % 8 ^ r % 8) * 16) =
          r < tile_.tokens() ? *reinterpret_cast<const uint4*>(from) : uint4{};
    }
    fence_shared_for_bulk();
    asm volatile("bar.sync %0, 128;" ::"r"(1 + group_) : "memory");
  }

  __device__ __forceinline__ void release(uint64_t* empty, int block) const {
    if (lane_ == 0) barrier_arrive(empty + block % kStages);
  }

  __device__ __forceinline__ void scores(float (&score)[kKeys / 2], int block) const {
    const int stage = block % kStages;
    barrier_wait(s_.key_full + stage, block / kStages & 1);
    const uint64_t key = wgmma_tile(shared_address(s_.key) + static_cast<uint32_t>(stage * kKeyBytes));
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kQueryBoxes * 4; ++k) {
      const int at = k / 4 * (kBoxBytes / 16) + k % 4 * 2;
      Wgmma<kKeys>::shared(score, query_ + at, key + at, k > 0);
    }
    wgmma_commit();
  }

  __device__ __forceinline__ void add(float (&sum)[kValue / 2], const uint32_t (&probability)[kKeys / 16][4],
                                      int block) const {
    const int stage = block % kStages;
    barrier_wait(s_.value_full + stage, block / kStages & 1);
    const uint64_t value = wgmma_rows(shared_address(s_.value) + static_cast<uint32_t>(stage * kValueBytes), kBoxBytes);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k)
      Wgmma<kValue>::template registers<true>(sum, probability[k], value + k * 128, block > 0 || k > 0);
    wgmma_commit();
  }

  // Scores become probabilities over the largest so far; sums so far shrink by `factor`.
  __device__ __forceinline__ void softmax(float (&score)[kKeys / 2], int block, float (&factor)[2]) {
    const int first = block * kKeys;
    if (first + kKeys > tile_.piece.context + tile_.first + group_ * 64 + 1) {  // some row does not see all of it
#pragma unroll
      for (int i = 0; i < kKeys / 2; ++i)
        if (first + i / 4 * 8 + lane_ % 4 * 2 + i % 2 >= sees_ + i / 2 % 2 * 8) score[i] = -INFINITY;
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float most = max_[h];
#pragma unroll
      for (int j = 0; j < kKeys / 8; ++j) most = fmaxf(most, fmaxf(score[4 * j + 2 * h], score[4 * j + 2 * h + 1]));
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
      const float origin = most == -INFINITY ? 0.0f : most * scale_;
      factor[h] = exp2_fast(fmaf(max_[h], scale_, -origin));
      max_[h] = most;
      float total = 0;
#pragma unroll
      for (int j = 0; j < kKeys / 8; ++j)
#pragma unroll
        for (int i = 4 * j + 2 * h; i < 4 * j + 2 * h + 2; ++i)
          total += score[i] = exp2_fast(fmaf(score[i], scale_, -origin));
      total_[h] = fmaf(total_[h], factor[h], total);
    }
  }

  __device__ __forceinline__ static void pack(const float (&score)[kKeys / 2], uint32_t (&probability)[kKeys / 16][4]) {
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k)
#pragma unroll
      for (int i = 0; i < 4; ++i) probability[k][i] = pack_bf16(score[8 * k + 2 * i], score[8 * k + 2 * i + 1]);
  }

  __device__ __forceinline__ void store(const float (&sum)[kValue / 2]) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float total = total_[h];
      total += __shfl_xor_sync(0xffffffffu, total, 1);
      total += __shfl_xor_sync(0xffffffffu, total, 2);
      if (row_ + 8 * h >= tile_.tokens()) continue;
      const float inverse = 1 / total;
      bf16* to =
          p_.a.out.at(tile_.piece.token + tile_.first + row_ + 8 * h, p_.first_head + tile_.head) + lane_ % 4 * 2;
#pragma unroll
      for (int j = 0; j < kValue / 8; ++j)
        *reinterpret_cast<uint32_t*>(to + 8 * j) =
            pack_bf16(sum[4 * j + 2 * h] * inverse, sum[4 * j + 2 * h + 1] * inverse);
    }
  }

  const AttendArgs& p_;
  const Tile& tile_;
  const Stages& s_;
  int group_, lane_, row_, sees_;  // of row g
  float scale_;
  uint64_t query_;
  float max_[2] = {-INFINITY, -INFINITY}, total_[2] = {};  // the thread's own columns
};

// Block (x, y): tile x from the last on, which has most to do, of head y.
__global__ void __launch_bounds__(kThreads, 1) attend_expanded(const __grid_constant__ AttendArgs p) {
#if __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ uint8_t dynamic[];
  __shared__ uint64_t barrier[4 * kStages];
  pdl_trigger();
  pdl_wait();
  const int number = p.a.w.piece[p.a.n_prefill].tile_begin - 1 - static_cast<int>(blockIdx.x);
  if (number < 0) return;
  const int n = find<&PrefillPiece::tile_begin>(p.a.w.piece, p.a.n_prefill, number);
  const PrefillPiece piece = p.a.w.piece[n];
  const Tile tile{piece, (number - piece.tile_begin) * kQueries, static_cast<int>(blockIdx.y)};
  if (p.a.w.sound[n] == 0) {
    for (int i = static_cast<int>(threadIdx.x); i < tile.tokens() * kValue; i += kThreads)
      p.a.out.at(piece.token + tile.first + i / kValue, p.first_head + tile.head)[i % kValue] = bf16{};
    return;
  }
  uint8_t* const query = dynamic + (1024 - shared_address(dynamic) % 1024) % 1024;
  uint8_t* const key = query + kKeyBytes;
  const Stages s{
      key, key + kStages * kKeyBytes, barrier, barrier + kStages, barrier + 2 * kStages, barrier + 3 * kStages};
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2 * kStages; ++i) barrier_init(barrier + i, 1), barrier_init(barrier + 2 * kStages + i, 8);
    fence_barrier_init();
  }
  __syncthreads();
  if (threadIdx.x >= 256) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    if (threadIdx.x == 256) copy_blocks(p, tile, s);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    Attention(p, tile, s, query).run();
  }
#endif
}

}  // namespace

void launch_expanded_attend(const Exec& ex, const ExpandedArgs& a, const MlaDesc& d, int first, int count) {
  AttendArgs p{.a = a, .first_head = first};
  p.key_value = tensor_map(ex.device, a.w.key_value, true, kNope + kValue, count * a.w.rows, (kNope + kValue) * 2,
                           2 * kBox, kKeys);
  p.latent = tensor_map(ex.device, a.w.latent, true, kWidth, a.w.rows, kWidth * 2, 2 * kBox, kKeys);
  const dim3 grid(static_cast<unsigned>(d.tokens / kQueries + d.n_prefill), static_cast<unsigned>(count));
  launch(ex, "mla",
         {.grid = grid,
          .block = kThreads,
          .shared_bytes = kSharedBytes,
          .pdl = pdl_pays(d.target, int64_t{grid.x} * grid.y)},
         attend_expanded, p);
}

}  // namespace kdelta::mla_cuda
