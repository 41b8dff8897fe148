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
// Positions whose sums begin anew in decode; sums of chunks are added up in order. It is what threads share of one long
// context, and part of the order of every sum: fixed.
inline constexpr int64_t kMlaChunk = 512;

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
  float* block;   // [64, cache] latents | kr
  float* score;   // [rows, 64]
  float* scale;   // [rows]
  float* weight;  // [8, latent] rows of an MX kv_b
};

// Sums over positions: row t * step + h is head h of token t.
struct MlaSums {
  float* lat;        // [rows, latent] sum of exp(score - max) c
  float *max, *sum;  // [rows] largest score, sum of exp(score - max)
  int64_t step;

  KDELTA_INLINE MlaSums from(int64_t row, int64_t width) const {
    return {lat + row * width, max + row, sum + row, step};
  }
  KDELTA_INLINE void clear(int64_t row, int64_t width) const {
    max[row] = -__builtin_inff();
    sum[row] = 0;
    for (int64_t l = 0; l < width; ++l) lat[row * width + l] = 0;
  }
};

struct MlaPlan {
  MlaWidths width{};
  int64_t prefill_rows = 0;  // queries of one prefill task, a multiple of 64
  int64_t decode_rows = 0;
  int64_t parts = 0, part_rows = 0;  // chunks that wait for the ones before them, and what each has at most
  int64_t prefill_bytes = 0, decode_bytes = 0, shared_bytes = 0;  // per thread, per thread, once

  MlaPrefillWork prefill(const MlaDesc& d, void* scratch, int rank) const;
  MlaDecodeWork decode(void* scratch, int rank) const;
  // [decode_rows, H, cache] q' | q_rope.
  float* absorbed(void* scratch) const;
  // Of all heads of the batch, and of chunk `index` of those that wait, for `heads` heads.
  MlaSums sums(const MlaDesc& d, void* scratch) const;
  MlaSums part(const MlaDesc& d, void* scratch, int64_t index, int64_t heads) const;
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

  int64_t chunks() const { return (length + tokens - 1 + kMlaChunk - 1) / kMlaChunk; }
};
struct MlaRuns {
  MlaRun run[kMlaDecodeRows];
  int64_t count = 0;
};
// The batch cut into runs of at most `most` tokens.
MlaRuns mla_runs(const PagedSequences& seq, const MlaBatch& batch, int64_t most);

// One chunk of a run for some heads.
struct MlaTask {
  int64_t run, head, heads, chunk;
};
// The work of a batch, numbered run by run, then group of heads by group, then chunk by chunk.
struct MlaTasks {
  MlaRuns runs;
  int64_t all_heads, heads, groups;   // `heads` in each group but the last
  int64_t begin[kMlaDecodeRows + 1];  // first task of each run

  int64_t count() const { return begin[runs.count]; }
  MlaTask at(int64_t i) const;
};
MlaTasks mla_tasks(const PagedSequences& seq, const MlaBatch& batch, const MlaDesc& d);

}  // namespace kdelta
