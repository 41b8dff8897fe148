// Sizes and scratch of the vector kernels of mla, the same for every instruction set: rows are padded to the widest
// vectors. Both schedules walk the past in blocks of 64 absolute positions, whatever the page size and wherever the
// prompt was cut.
#pragma once

#include "kdelta/ops/mla/variants.h"

namespace kdelta {

inline constexpr int64_t kMlaBlock = 64;  // positions of a block, and queries of a prefill tile
inline constexpr int64_t kMlaPad = 32;    // two AVX-512 vectors
inline constexpr int64_t kMlaPrefillRows =
    2048;  // queries that share one expansion; its cost is 1/(1 + rows/400) of the work
inline constexpr int64_t kMlaDecodeRows = 16;  // decode tokens that share one pass over kv_b
inline constexpr int64_t kMlaHeads = 48;       // rows of one decode task: q', lat and the block stay in 512 KB of L2

KDELTA_INLINE int64_t mla_round_up(int64_t n, int64_t to) {
  return (n + to - 1) / to * to;
}

// Padded widths: expanded k|v row, value, q and k row, cache row, latent.
struct MlaWidths {
  int64_t kv, value, query, cache, latent;
};

// One thread's part of the prefill schedule.
struct MlaPrefillWork {
  float* weight;     // [L, kv] one head of kv_b, transposed
  float* block;      // [64, L] latents
  float* kv;         // [64, kv] expanded
  float* k;          // [64, query] k | kr
  float* v;          // [64, value]
  float* score;      // [64 positions, 64 queries]
  float* length;     // [64] positions of the block each query sees
  float* scale;      // [64] factor of each query's old sum
  float* q;          // [tiles, Nn+R, 64]
  float* acc;        // [tiles, value, 64]
  float *max, *sum;  // [tiles, 64]
};

// One thread's part of the decode schedule. A row is one head of one token.
struct MlaDecodeWork {
  float* block;              // [64, cache] latents | kr
  float* score;              // [rows, 64]
  float *max, *sum, *scale;  // [rows]
  float* weight;             // [8, latent] rows of an MX kv_b

  // The same from row `first` on.
  KDELTA_INLINE MlaDecodeWork rows(int64_t first) const {
    return {block, score + first * kMlaBlock, max + first, sum + first, scale + first, weight};
  }
};

struct MlaPlan {
  MlaWidths width{};
  int64_t prefill_rows = 0;  // queries of one prefill task, a multiple of 64
  int64_t decode_rows = 0;
  int64_t prefill_bytes = 0, decode_bytes = 0, shared_bytes = 0;  // per thread, per thread, once

  MlaPrefillWork prefill(const MlaDesc& d, void* scratch, int rank) const;
  MlaDecodeWork decode(void* scratch, int rank) const;
  // [decode_rows, H, cache] q' | q_rope and [decode_rows, H, latent] the weighted latents.
  float* absorbed(void* scratch) const;
  float* lat(const MlaDesc& d, void* scratch) const;
};
MlaPlan mla_plan(const MlaDesc& d);

// Queries of one prefill task when `sequences` prefill: fewer than the plan's when there are not enough heads for the
// threads.
int64_t mla_task_rows(const MlaPlan& plan, const MlaDesc& d, int64_t sequences);
// Decode tokens [first, first + rows) of T.
struct MlaBatch {
  int64_t first, rows;
};

// Consecutive tokens of a batch that belong to sequence n (a verification) and read its cache together.
struct MlaRun {
  int64_t n, first, tokens;
  int64_t length;  // positions the first token sees; each next one sees one more
};
struct MlaRuns {
  MlaRun run[kMlaDecodeRows];
  int64_t count = 0;
};
// The batch cut into runs of at most `most` tokens.
MlaRuns mla_runs(const PagedSequences& seq, const MlaBatch& batch, int64_t most);

// Heads of one decode task for `runs` runs: as many as fit, in a number of tasks that divides among the threads.
int64_t mla_task_heads(const MlaDesc& d, int64_t runs);

}  // namespace kdelta
