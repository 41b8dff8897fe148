// The attention of decode rows: scores of 32 rows against 32 positions, softmax, weighted sum of latents, for one
// segment after the other. The cache streams through five stages of shared memory and is read once for all rows of a
// tile. Scores: four warps share the 576 columns, q' staying in their registers, and two the positions. Sums: a warp
// has 64 of the 512 latents.
#include "kdelta/ops/common/cuda/launch.cuh"
#include "kdelta/ops/mla/cuda_decode.cuh"

namespace kdelta::mla_cuda {
namespace {

using namespace cuda;

constexpr int kThreads = 256;
constexpr int kStages = 5;
constexpr int kSteps = kWidth / 4 / 16;  // of 16 columns in a warp's share of the scores
constexpr int kRow = kWidth + 8;         // of a stage: 16 bytes more than a row, so that rows fall on other banks
constexpr int kScoreRow = kBlock + 8, kProbabilityRow = kBlock + 8;

struct Shared {
  bf16 stage[kStages][kBlock][kRow];
  float score[4][kTileRows][kScoreRow];  // of each share of the columns
  bf16 probability[kTileRows][kProbabilityRow];
  float factor[kTileRows];
};
static_assert(sizeof(Shared) <= 227 * 1024);

struct Segment {
  SequencePiece piece;
  int n, tile;
  int first, last;  // blocks
  int slot;         // where its sums go; -1: it is all of the tile
};

class Attend {
 public:
  __device__ Attend(const DecodeArgs& a, Shared& s)
      : a_(a),
        s_(s),
        tid_(static_cast<int>(threadIdx.x)),
        lane_(tid_ % 32),
        warp_(tid_ / 32),
        part_(warp_ % 4),
        half_(warp_ / 4) {}

  // Tensor work of two blocks meets in one phase, the scores of the next and the sums of this one; softmax is the
  // other.
  __device__ void run(const Segment& g) {
    rows_ = min(kTileRows, g.piece.tokens * a_.H - g.tile * kTileRows);
    const int64_t row = int64_t{g.piece.token} * a_.H + g.tile * kTileRows;
    load_query(a_.w.query + row * kWidth);
    if (pages_are_wrong(g)) return;
    sees_ = g.piece.length + (g.tile * kTileRows + tid_ / 8) / a_.H;
    max_ = -INFINITY, sum_ = 0;
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int n = 0; n < 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) acc_[m][n][i] = 0;
    for (int i = 0; i < kStages - 1; ++i) fetch(g, g.first + i, i);
    copies_wait<kStages - 2>();
    __syncthreads();
    scores(0);
    __syncthreads();
    bool changed = weigh(g, g.first, 0);
    int stage = 0;
    for (int block = g.first; block < g.last; ++block) {
      const int next = stage == kStages - 1 ? 0 : stage + 1;
      fetch(g, block + kStages - 1, stage == 0 ? kStages - 1 : stage - 1);
      if (block + 1 < g.last) scores(next);
      if (changed) rescale();
      add(stage);
      __syncthreads();
      if (block + 1 < g.last) changed = weigh(g, block + 1, next);
      stage = next;
    }
    copies_wait<0>();
    finish(g, row);
    __syncthreads();
  }

 private:
  // q' of the warp's columns as it goes into the products; rows that there are not are zeros.
  __device__ __forceinline__ void load_query(const bf16* query) {
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int k = 0; k < kSteps; ++k)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int r = m * 16 + lane_ / 4 + i % 2 * 8, c = (part_ * kSteps + k) * 16 + lane_ % 4 * 2 + i / 2 * 8;
          query_[m][k][i] = r < rows_ ? *reinterpret_cast<const uint32_t*>(query + r * kWidth + c) : 0u;
        }
  }

  // Whoever reads pages checks them, all of the row: it is skipped whole. A barrier.
  __device__ __forceinline__ bool pages_are_wrong(const Segment& g) {
    const int32_t* pages = a_.seq.pages + g.n * a_.seq.pages_stride;
    bool wrong = false;
    for (int i = tid_; i < g.piece.pages; i += kThreads) wrong |= pages[i] < 1 || pages[i] >= a_.seq.page_count;
    const int position = g.first * kBlock;
    next_page_ = pages + position / a_.seq.page_tokens;
    offset_ = position % a_.seq.page_tokens;
    page_ = *next_page_++;
    if (__syncthreads_or(wrong) == 0) return false;
    if (tid_ == 0) {
      raise(a_.faults, Fault::page);
      a_.w.sound[g.n] = 0;
    }
    return true;
  }

  // Behind the scores of a block: the next block has arrived, and everybody sees the probabilities of this one.
  __device__ __forceinline__ bool weigh(const Segment& g, int block, int stage) {
    const bool changed = softmax(block);
    if (block * kBlock + kBlock > g.piece.length && g.piece.tokens > 1) clean(g, block, stage);
    copies_wait<kStages - 3>();
    return __syncthreads_or(changed) != 0;
  }

  // A block of positions lies in one page, its rows one after the other. Positions past the last are zeros.
  __device__ __forceinline__ void fetch(const Segment& g, int block, int stage) {
    if (block < g.last) {
      const int first = block * kBlock, valid = (g.piece.length + g.piece.tokens - 1 - first) * kChunks;
      const int64_t row = static_cast<int64_t>(page_) * a_.seq.page_tokens + offset_;
      const char* from = reinterpret_cast<const char*>(a_.cache + row * kWidth);
      offset_ += kBlock;
      if (offset_ == a_.seq.page_tokens) {
        offset_ = 0;
        if (block + 1 < g.last) page_ = *next_page_++;  // there when it is needed
      }
      const uint32_t to = shared_at(s_.stage[stage]);
#pragma unroll
      for (int i = 0; i < kBlock * kChunks / kThreads; ++i) {
        const int chunk = i * kThreads + tid_;
        copy16(to + (chunk + chunk / kChunks) * 16, from + chunk * 16, chunk < valid ? 16 : 0);
      }
    }
    copies_commit();
  }
  static constexpr int kChunks = kWidth / 8;  // of 16 bytes in a row
  static_assert(kBlock * kChunks % kThreads == 0 && kRow == (kChunks + 1) * 8);

  __device__ __forceinline__ void scores(int stage) {
    float score[2][2][4] = {};
    const uint32_t at =
        shared_at(&s_.stage[stage][half_ * 16 + lane_ / 16 * 8 + lane_ % 8][part_ * kSteps * 16 + lane_ / 8 % 2 * 8]);
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      uint32_t b[4];
      load_matrices(b, at + k * 32);
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        multiply(score[m][0], query_[m][k], b[0], b[1]);
        multiply(score[m][1], query_[m][k], b[2], b[3]);
      }
    }
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i)
          *reinterpret_cast<float2*>(&s_.score[part_][m * 16 + lane_ / 4 + i * 8][half_ * 16 + n * 8 + lane_ % 4 * 2]) =
              make_float2(score[m][n][2 * i], score[m][n][2 * i + 1]);
  }

  // Eight threads a row, four positions each. True when the row's largest score rose.
  __device__ __forceinline__ bool softmax(int block) {
    const int r = tid_ / 8, c = tid_ % 8 * 4, first = block * kBlock + c;
    float x[4] = {};
#pragma unroll
    for (int p = 0; p < 4; ++p) {
      const float4 part = *reinterpret_cast<const float4*>(&s_.score[p][r][c]);
      x[0] += part.x, x[1] += part.y, x[2] += part.z, x[3] += part.w;
    }
    float most = -INFINITY;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (first + i >= sees_) x[i] = -INFINITY;
      most = fmaxf(most, x[i]);
    }
    most = fmaxf(max_, warp_max<8>(most));
    const float origin = most == -INFINITY ? 0.0f : most, factor = exp2_fast(max_ - origin);
    float total = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) total += x[i] = exp2_fast(x[i] - origin);
    const bool changed = most > max_;
    sum_ = sum_ * factor + total;
    max_ = most;
    *reinterpret_cast<uint2*>(&s_.probability[r][c]) = make_uint2(pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]));
    if (tid_ % 8 == 0) s_.factor[r] = factor;
    return changed;
  }

  // Positions that some rows see and others do not: a zero probability times a NaN must not reach the others. Those who
  // see it have it from its score.
  __device__ __forceinline__ void clean(const Segment& g, int block, int stage) {
    const int from = max(g.piece.length - block * kBlock, 0);
    const int to = min(g.piece.length + g.piece.tokens - 1 - block * kBlock, kBlock);
    for (int i = from * kLatent + tid_; i < to * kLatent; i += kThreads) {
      bf16& x = s_.stage[stage][i / kLatent][i % kLatent];
      if ((x.bits & 0x7f80) == 0x7f80) x.bits = 0;
    }
  }

  __device__ __forceinline__ void rescale() {
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float factor = s_.factor[m * 16 + lane_ / 4 + i * 8];
#pragma unroll
        for (int n = 0; n < 8; ++n) acc_[m][n][2 * i] *= factor, acc_[m][n][2 * i + 1] *= factor;
      }
  }

  __device__ __forceinline__ void add(int stage) {
    const uint32_t at = shared_at(&s_.stage[stage][lane_ % 16][warp_ * 64 + lane_ / 16 * 8]);
    const uint32_t p_at = shared_at(&s_.probability[lane_ % 16][lane_ / 16 * 8]);
#pragma unroll
    for (int k = 0; k < kBlock / 16; ++k) {
      uint32_t p[2][4];
#pragma unroll
      for (int m = 0; m < 2; ++m) load_matrices(p[m], p_at + m * 16 * kProbabilityRow * 2 + k * 32);
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        uint32_t b[4];
        load_matrices_transposed(b, at + k * 16 * kRow * 2 + n * 32);
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          multiply(acc_[m][2 * n], p[m], b[0], b[1]);
          multiply(acc_[m][2 * n + 1], p[m], b[2], b[3]);
        }
      }
    }
  }

  __device__ __forceinline__ void finish(const Segment& g, int64_t row) {
    const int r0 = tid_ / 8;
    const float sum = warp_sum<8>(sum_);
    __syncthreads();  // factors are read until here
    if (tid_ % 8 == 0) {
      s_.factor[r0] = 1 / sum;
      if (g.slot >= 0) {
        a_.w.part_max[g.slot * kTileRows + r0] = max_;
        a_.w.part_sum[g.slot * kTileRows + r0] = sum;
      }
    }
    __syncthreads();
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int r = m * 16 + lane_ / 4 + i * 8;
        if (r >= rows_) continue;
#pragma unroll
        for (int n = 0; n < 8; ++n) {
          const int c = warp_ * 64 + n * 8 + lane_ % 4 * 2;
          const float x = acc_[m][n][2 * i], y = acc_[m][n][2 * i + 1];
          if (g.slot >= 0)
            *reinterpret_cast<float2*>(a_.w.part + (int64_t{g.slot} * kTileRows + r) * kLatent + c) = make_float2(x, y);
          else
            *reinterpret_cast<uint32_t*>(a_.w.sums + (row + r) * kLatent + c) =
                pack_bf16(x * s_.factor[r], y * s_.factor[r]);
        }
      }
  }

  const DecodeArgs& a_;
  Shared& s_;
  int tid_, lane_, warp_, part_, half_;
  int rows_ = 0, sees_ = 0;
  const int32_t* next_page_ = nullptr;
  int page_ = 0, offset_ = 0;  // of the next block to fetch
  float max_ = 0, sum_ = 0;    // of row tid / 8; the sum of the thread's positions
  uint32_t query_[2][kSteps][4];
  float acc_[2][8][4];
};

__global__ void __launch_bounds__(kThreads, 1) attend(const __grid_constant__ DecodeArgs a) {
  extern __shared__ __align__(128) unsigned char memory[];
  pdl_trigger();
  pdl_wait();
  Attend attend(a, *reinterpret_cast<Shared*>(memory));
  const int me = static_cast<int>(blockIdx.x), live = a.seq.live;
  int n = a.w.start[me];
  const Shares shares = shares_of(a, a.w.piece[live].unit_begin);
  if (a.exact) {
    for (int u = me; u < shares.units; u += static_cast<int>(gridDim.x)) {
      n = find<&SequencePiece::unit_begin>(a.w.piece, live, u);
      const SequencePiece p = a.w.piece[n];
      const int each = units_of(a, p), local = u - p.unit_begin, chunk = local % each;
      attend.run({.piece = p,
                  .n = n,
                  .tile = local / each,
                  .first = chunk * kChunkBlocks,
                  .last = min(chunk * kChunkBlocks + kChunkBlocks, p.blocks()),
                  .slot = each == 1 ? -1 : u});
    }
    return;
  }
  if (me >= shares.blocks) return;
  const int end = shares.begin(me + 1);
  for (int u = shares.begin(me); u < end;) {
    while (a.w.piece[n + 1].unit_begin <= u) ++n;
    const SequencePiece p = a.w.piece[n];
    const int each = p.blocks(), local = u - p.unit_begin, first = local % each, last = min(each, first + end - u);
    const int slot = first > 0 ? 2 * me : last < each ? 2 * me + 1 : -1;
    attend.run({.piece = p, .n = n, .tile = local / each, .first = first, .last = last, .slot = slot});
    u += last - first;
  }
}

}  // namespace

void launch_decode_attend(const Exec& ex, const DecodeArgs& a, const MlaDesc& d) {
  launch(ex, "mla",
         {.grid = static_cast<unsigned>(a.w.thread_blocks),
          .block = kThreads,
          .shared_bytes = static_cast<int>(sizeof(Shared)),
          .pdl = pdl_pays(d.target, a.w.thread_blocks)},
         attend, a);
}

}  // namespace kdelta::mla_cuda
