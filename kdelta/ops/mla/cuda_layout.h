// Scratch of mla's CUDA rows: a function of the description alone, for the planner and the kernels.
#pragma once

#include "kdelta/ops/mla/variants.h"

#ifdef __CUDACC__
#define KDELTA_MLA_DEVICE __host__ __device__ __forceinline__
#else
#define KDELTA_MLA_DEVICE inline
#endif

namespace kdelta::mla_cuda {

inline constexpr int64_t kMostShared = 96 * 1024;          // of a block of the portable row, dynamic
inline constexpr int64_t kBatchBytes = int64_t{64} << 20;  // q' and sums of one batch of tokens
inline constexpr int64_t kMostPortableBatch = int64_t{1} << 18;

// Hands out arrays at multiples of 256 bytes; with a null base it only counts.
class Layout {
 public:
  explicit Layout(void* base) : base_(static_cast<char*>(base)) {}
  template <class T>
  T* take(int64_t count) {
    T* p = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + used_);
    used_ += (count * static_cast<int64_t>(sizeof(T)) + 255) / 256 * 256;
    return p;
  }
  int64_t bytes() const { return used_; }

 private:
  char* base_;
  int64_t used_ = 0;
};

// q' and the sums of `heads` heads of one token.
inline int64_t portable_shared_bytes(int64_t heads, int64_t latent, int64_t rope) {
  return heads * (2 * latent + rope) * 4;
}
// Heads that share a read of the cache.
inline int portable_heads(int64_t latent, int64_t rope) {
  return portable_shared_bytes(4, latent, rope) <= kMostShared ? 4 : 1;
}

struct PortableWork {
  int32_t* sound;  // [N] 1: the row is computed
  int32_t* live;   // [batch] 1: the token belongs to such a row
  float* query;    // [batch, H, L+R]
  float* sums;     // [batch, H, L]
  int64_t batch;
};
inline PortableWork portable_work(const MlaDesc& d, void* scratch) {
  Layout layout(scratch);
  const int64_t token = d.heads * (2 * d.latent + d.rope) * 4;
  PortableWork w{};
  w.batch = std::clamp<int64_t>(kBatchBytes / std::max<int64_t>(token, 1), 1,
                                std::clamp<int64_t>(d.tokens, 1, kMostPortableBatch));
  w.sound = layout.take<int32_t>(d.sequences);
  w.live = layout.take<int32_t>(w.batch);
  w.query = layout.take<float>(w.batch * d.heads * (d.latent + d.rope));
  w.sums = layout.take<float>(w.batch * d.heads * d.latent);
  return w;
}
// At least what portable_work hands out, and never less for a larger description (its batches are whole tokens).
inline int64_t portable_scratch(const MlaDesc& d) {
  const int64_t token = d.heads * (2 * d.latent + d.rope) * 4;
  return 4 * (d.sequences + std::min(d.tokens, kMostPortableBatch)) +
         std::min(std::max<int64_t>(d.tokens, 1) * token, std::max(kBatchBytes, token)) + 4 * 256;
}

// Attention on tensor cores: see cuda_decode.cuh.
inline constexpr int kLatent = 512, kRope = 64, kWidth = kLatent + kRope, kNope = 128, kValue = 128;
inline constexpr int kTileRows = 32, kBlock = 32;
inline constexpr int kChunkBlocks = 16;         // of the exact mode: sums begin anew every 512 positions
inline constexpr int kLeastBlocks = 4;          // of a segment, or adding segments up costs more than it saves
inline constexpr int64_t kMostBatch = 512;      // tokens of a round of kernels
inline constexpr int64_t kMostSegments = 2048;  // of a round in the exact mode

// The tokens of a sequence in a round of kernels.
struct alignas(32) SequencePiece {
  int unit_begin, tile_begin;  // numbers of its first unit and tile; behind the last sequence: how many there are
  int token;                   // the first, counted from the first of the round
  int tokens;
  int length;  // positions that the first one sees; each next one sees one more
  int pages;   // that the whole row needs

  KDELTA_MLA_DEVICE int tiles(int H) const { return (tokens * H + kTileRows - 1) / kTileRows; }
  KDELTA_MLA_DEVICE int blocks() const { return (length + tokens - 1 + kBlock - 1) / kBlock; }
};

struct DecodeWork {
  SequencePiece* piece;        // [N+1]
  int32_t* sound;              // [N] 1: the row is computed
  int32_t* start;              // [thread blocks] the sequence in which its share begins
  bf16* query;                 // [batch, H, 576] q' times scale, in powers of two
  bf16* sums;                  // [batch, H, 512]
  float* part;                 // [segments, 32, 512] sums of segments, over their largest score
  float *part_max, *part_sum;  // [segments, 32]
  int64_t batch;               // tokens of a round
  int thread_blocks;
};
// Grows with every size in the description; a round in the exact mode may use less.
inline DecodeWork decode_work(const MlaDesc& d, Layout& layout) {
  DecodeWork w{};
  w.thread_blocks = std::max(d.target.multiprocessors, 1);
  w.batch = std::clamp<int64_t>(d.tokens, 1, kMostBatch);
  const int64_t rows = w.batch * d.heads;
  int64_t segments = 2 * w.thread_blocks;
  if (d.exact) {  // one for every chunk of every tile
    const int64_t tiles = (d.heads + kTileRows - 1) / kTileRows;
    const int64_t chunks = std::max<int64_t>((d.max_context + kChunkBlocks * kBlock - 1) / (kChunkBlocks * kBlock), 1);
    segments = std::min(w.batch * tiles * chunks, std::max(kMostSegments, tiles * chunks));
    w.batch = std::min(w.batch, std::max<int64_t>(segments / (tiles * chunks), 1));
  }
  w.piece = layout.take<SequencePiece>(d.sequences + 1);
  w.sound = layout.take<int32_t>(d.sequences);
  w.start = layout.take<int32_t>(w.thread_blocks);
  w.query = layout.take<bf16>(rows * kWidth);
  w.sums = layout.take<bf16>(rows * kLatent);
  w.part = layout.take<float>(segments * kTileRows * kLatent);
  w.part_max = layout.take<float>(segments * kTileRows);
  w.part_sum = layout.take<float>(segments * kTileRows);
  return w;
}

// Prefill in the expanded form: see cuda_expanded.cuh.
inline constexpr int kQueries = 128, kKeys = 128;  // tokens of a tile, positions of a block
inline constexpr int kLeastQueries = 128;          // of a prefill sequence on average
inline constexpr int64_t kMostExpanded = int64_t{1} << 18;
inline constexpr int64_t kExpandedBytes = int64_t{512} << 20;  // keys and values of a round of heads

// A prefill sequence whose latents lie side by side with the others', padded to whole blocks.
struct alignas(16) PrefillPiece {
  int tile_begin, row_begin;  // its first tile and row; behind the last sequence: how many there are
  int token, tokens;
  int context;
};

struct ExpandedWork {
  PrefillPiece* piece;  // [prefill sequences + 1]
  int32_t* sound;       // [prefill sequences] 1: the row is computed
  bf16* latent;         // [rows, 576]
  bf16* key_value;      // [heads, rows, 256] keys' 128, then values
  int64_t rows, heads;  // heads: of a round
};
// Rows that latents side by side can take.
inline int64_t expanded_rows(const MlaDesc& d) {
  return std::max<int64_t>(d.n_prefill, 1) * ((std::max<int64_t>(d.max_context, 1) + kKeys - 1) / kKeys * kKeys);
}
inline ExpandedWork expanded_work(const MlaDesc& d, Layout& layout) {
  ExpandedWork w{};
  w.rows = std::min(expanded_rows(d), kMostExpanded);
  const int64_t head = w.rows * (kNope + kValue) * 2;
  w.heads = std::clamp<int64_t>(kExpandedBytes / head, 1, std::max<int64_t>(d.heads, 1));
  w.piece = layout.take<PrefillPiece>(d.n_prefill + 1);
  w.sound = layout.take<int32_t>(d.n_prefill);
  w.latent = layout.take<bf16>(w.rows * kWidth);
  // Not w.heads of them: scratch grows with every size.
  w.key_value = layout.take<bf16>(std::min(head * d.heads, kExpandedBytes) / 2);
  return w;
}

}  // namespace kdelta::mla_cuda
