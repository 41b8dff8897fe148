// The attention of a step's tiles: scores of 32 rows against 32 positions, softmax, weighted sum of latents, one
// segment after the other. The cache streams through five stages of shared memory and is read once for all rows of a
// tile. Half of the warps, the scorers, make scores and probabilities: four warps share the 576 columns, q' staying in
// their registers, and two the positions. The other half, the adders, fetch blocks and follow a block behind with the
// sums; each has 64 of the 512 latents. So one half's latencies lie under the other's products.
#include "kdelta/ops/common/cuda/launch.cuh"
#include "kdelta/ops/mla/cuda_decode.cuh"

namespace kdelta::mla_cuda {
namespace {

using namespace cuda;

constexpr int kHalf = 256, kThreads = 2 * kHalf;
constexpr int kStages = 5;
constexpr int kSteps = kWidth / 4 / 16;  // of 16 columns in a warp's share of the scores
constexpr int kChunks = kWidth / 8;      // of 16 bytes in a row
constexpr int kRow = kWidth + 8;         // of a stage: 16 bytes more than a row, so that rows fall on other banks
constexpr int kScoreRow = kBlock + 8, kProbabilityRow = kBlock + 8;

struct Shared {
  bf16 stage[kStages][kBlock][kRow];
  float score[4][kTileRows][kScoreRow];             // of each share of the columns
  bf16 probability[2][kTileRows][kProbabilityRow];  // in turn
  float factor[2][kTileRows];                       // what the sums so far shrink by
  float inverse[kTileRows];                         // of the total
};
static_assert(sizeof(Shared) <= 227 * 1024);

// Barriers: each half among itself; probabilities are there; probabilities of two blocks ago are free; the segment's
// totals are there; its sums are stored; a block has arrived (one for each stage).
constexpr int kScorers = 1, kFull = 2, kEmpty = 4, kAdders = 6, kTotals = 7, kStored = 8, kArrived = 9;
static_assert(kArrived + kStages <= 16);
template <int kCount>
__device__ __forceinline__ void barrier_sync(int id) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(kCount) : "memory");
}
template <int kCount>
__device__ __forceinline__ void barrier_arrive(int id) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "n"(kCount) : "memory");
}

// Whether any thread says so.
template <int kCount>
__device__ __forceinline__ bool barrier_any(int id, bool mine) {
  int any;
  asm volatile("{\n.reg .pred p, q;\nsetp.ne.b32 p, %1, 0;\nbar.red.or.pred q, %2, %3, p;\nselp.b32 %0, 1, 0, q;\n}"
               : "=r"(any)
               : "r"(mine ? 1 : 0), "r"(id), "n"(kCount)
               : "memory");
  return any != 0;
}

struct Segment {
  SequencePiece piece;
  int n, tile;
  int first, last;  // blocks
  int slot;         // where its sums go; -1: it is all of the tile

  __device__ __forceinline__ int rows(int H) const { return min(kTileRows, piece.tokens * H - tile * kTileRows); }
  __device__ __forceinline__ int64_t row(int H) const { return int64_t{piece.token} * H + tile * kTileRows; }
};

__device__ __forceinline__ int next_stage(int stage) {
  return stage == kStages - 1 ? 0 : stage + 1;
}

// A thread of the first half.
class Scorer {
 public:
  __device__ Scorer(const DecodeArgs& a, Shared& s, const Segment& g)
      : a_(a),
        s_(s),
        g_(g),
        tid_(static_cast<int>(threadIdx.x)),
        lane_(tid_ % 32),
        part_(tid_ / 32 % 4),
        half_(tid_ / 128) {
    load_query(a.w.query + g.row(a.H) * kWidth);
    sees_ = g.piece.length + (g.tile * kTileRows + tid_ / 8) / a.H;
  }

  __device__ __forceinline__ void run() {
    int stage = 0;
    for (int block = g_.first; block < g_.last; ++block) {
      const int turn = block - g_.first & 1;
      barrier_sync<kThreads>(kArrived + stage);  // also: the scores of the block before are read
      scores(stage);
      barrier_sync<kHalf>(kScorers);
      if (block - g_.first >= 2) barrier_sync<kThreads>(kEmpty + turn);
      softmax(block, turn);
      if (block * kBlock + kBlock > g_.piece.length && g_.piece.tokens > 1) clean(block, stage);
      barrier_arrive<kThreads>(kFull + turn);
      stage = next_stage(stage);
    }
    const int r = tid_ / 8;
    const float sum = warp_sum<8>(sum_);
    if (tid_ % 8 != 0) return;
    s_.inverse[r] = 1 / sum;
    if (g_.slot < 0) return;
    a_.w.part_max[g_.slot * kTileRows + r] = max_;
    a_.w.part_sum[g_.slot * kTileRows + r] = sum;
  }

 private:
  // q' of the warp's columns as it goes into the products; rows that there are not are zeros.
  __device__ __forceinline__ void load_query(const bf16* query) {
    const int rows = g_.rows(a_.H);
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int k = 0; k < kSteps; ++k)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int r = m * 16 + lane_ / 4 + i % 2 * 8, c = (part_ * kSteps + k) * 16 + lane_ % 4 * 2 + i / 2 * 8;
          query_[m][k][i] = r < rows ? *reinterpret_cast<const uint32_t*>(query + r * kWidth + c) : 0u;
        }
  }

  __device__ __forceinline__ void scores(int stage) {
    float score[2][2][4] = {};
    const uint32_t at = shared_address(
        &s_.stage[stage][half_ * 16 + lane_ / 16 * 8 + lane_ % 8][part_ * kSteps * 16 + lane_ / 8 % 2 * 8]);
    uint32_t b[2][4];
    load_matrices(b[0], at);
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      if (k + 1 < kSteps) load_matrices(b[(k + 1) % 2], at + (k + 1) * 32);
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        mma_bf16(score[m][0], query_[m][k], b[k % 2][0], b[k % 2][1]);
        mma_bf16(score[m][1], query_[m][k], b[k % 2][2], b[k % 2][3]);
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

  // Eight threads a row, four positions each.
  __device__ __forceinline__ void softmax(int block, int turn) {
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
    sum_ = sum_ * factor + total;
    max_ = most;
    *reinterpret_cast<uint2*>(&s_.probability[turn][r][c]) = make_uint2(pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]));
    if (tid_ % 8 == 0) s_.factor[turn][r] = factor;
  }

  // Positions that some rows see and others do not: a zero probability times a NaN must not reach the others. Those who
  // see it have it from its score.
  __device__ __forceinline__ void clean(int block, int stage) {
    const int from = max(g_.piece.length - block * kBlock, 0);
    const int to = min(g_.piece.length + g_.piece.tokens - 1 - block * kBlock, kBlock);
    for (int i = from * kLatent + tid_; i < to * kLatent; i += kHalf) {
      bf16& x = s_.stage[stage][i / kLatent][i % kLatent];
      if ((x.bits & 0x7f80) == 0x7f80) x.bits = 0;
    }
  }

  const DecodeArgs& a_;
  Shared& s_;
  const Segment& g_;
  int tid_, lane_, part_, half_;
  int sees_;
  float max_ = -INFINITY, sum_ = 0;  // of row tid / 8; the sum of the thread's positions
  uint32_t query_[2][kSteps][4];
};

// A thread of the second half.
class Adder {
 public:
  __device__ Adder(const DecodeArgs& a, Shared& s, const Segment& g)
      : a_(a), s_(s), g_(g), tid_(static_cast<int>(threadIdx.x) - kHalf), lane_(tid_ % 32), warp_(tid_ / 32) {
    const int position = g.first * kBlock;
    next_page_ = a.seq.pages + g.n * a.seq.pages_stride + position / a.seq.page_tokens;
    offset_ = position % a.seq.page_tokens;
    page_ = *next_page_++;
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int n = 0; n < 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) acc_[m][n][i] = 0;
  }

  __device__ __forceinline__ void run() {
    for (int i = 0; i < kStages; ++i) fetch(g_.first + i, i);
    copies_wait<kStages - 1>();
    barrier_arrive<kThreads>(kArrived);
    copies_wait<kStages - 2>();
    if (g_.first + 1 < g_.last) barrier_arrive<kThreads>(kArrived + 1);
    int stage = 0;
    for (int block = g_.first; block < g_.last; ++block) {
      const int turn = block - g_.first & 1;
      barrier_sync<kThreads>(kFull + turn);
      rescale(turn);
      add(stage, turn);
      barrier_sync<kHalf>(kAdders);  // the stage is free
      fetch(block + kStages, stage);
      copies_wait<kStages - 2>();
      if (block + 2 < g_.last) {  // scorers wait for both
        barrier_arrive<kThreads>(kEmpty + turn);
        barrier_arrive<kThreads>(kArrived + next_stage(next_stage(stage)));
      }
      stage = next_stage(stage);
    }
    copies_wait<0>();
  }

  // Behind a barrier with the scorers' last word: nobody uses the stages any more.
  __device__ __forceinline__ void store() const {
    if (g_.slot >= 0)
      store_part();
    else
      store_sums();
  }

 private:
  // By way of shared memory, whole rows at a time: pieces of 32 bytes of every row took longer than the attention of a
  // few blocks.
  __device__ __forceinline__ void store_part() const {
    constexpr int kPartRow = kLatent + 8;  // rows fall on other banks
    static_assert(kTileRows * kPartRow * 4 <= static_cast<int>(sizeof(s_.stage)) && kPartRow * 4 % 16 == 0);
    float* rows = reinterpret_cast<float*>(&s_.stage[0][0][0]);
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int n = 0; n < 8; ++n)
          *reinterpret_cast<float2*>(rows + (m * 16 + lane_ / 4 + i * 8) * kPartRow + warp_ * 64 + n * 8 +
                                     lane_ % 4 * 2) = make_float2(acc_[m][n][2 * i], acc_[m][n][2 * i + 1]);
    fence_shared_for_bulk();
    barrier_sync<kHalf>(kAdders);
    if (tid_ >= g_.rows(a_.H)) return;
    bulk_store(a_.w.part + (int64_t{g_.slot} * kTileRows + tid_) * kLatent, rows + tid_ * kPartRow, kLatent * 4);
    bulk_commit();
    bulk_wait<0>();
  }

  __device__ __forceinline__ void store_sums() const {
    const int rows = g_.rows(a_.H);
    const int64_t row = g_.row(a_.H);
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int r = m * 16 + lane_ / 4 + i * 8;
        if (r >= rows) continue;
#pragma unroll
        for (int n = 0; n < 8; ++n)
          *reinterpret_cast<uint32_t*>(a_.w.sums + (row + r) * kLatent + warp_ * 64 + n * 8 + lane_ % 4 * 2) =
              pack_bf16(acc_[m][n][2 * i] * s_.inverse[r], acc_[m][n][2 * i + 1] * s_.inverse[r]);
      }
  }

  // A block of positions lies in one page, its rows one after the other. Positions past the last are zeros.
  __device__ __forceinline__ void fetch(int block, int stage) {
    if (block < g_.last) {
      const int valid = (g_.piece.length + g_.piece.tokens - 1 - block * kBlock) * kChunks;
      const int64_t row = static_cast<int64_t>(page_) * a_.seq.page_tokens + offset_;
      const char* from = reinterpret_cast<const char*>(a_.cache + row * kWidth);
      offset_ += kBlock;
      if (offset_ == a_.seq.page_tokens) {
        offset_ = 0;
        if (block + 1 < g_.last) page_ = *next_page_++;  // there when it is needed
      }
      const uint32_t to = shared_address(s_.stage[stage]);
#pragma unroll
      for (int i = 0; i < kBlock * kChunks / kHalf; ++i) {
        const int chunk = i * kHalf + tid_;
        copy16(to + (chunk + chunk / kChunks) * 16, from + chunk * 16, chunk < valid ? 16 : 0);
      }
    }
    copies_commit();
  }
  static_assert(kBlock * kChunks % kHalf == 0 && kRow == (kChunks + 1) * 8);

  __device__ __forceinline__ void rescale(int turn) {
    float factor[2][2];
    bool changed = false;
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        factor[m][i] = s_.factor[turn][m * 16 + lane_ / 4 + i * 8];
        changed |= factor[m][i] != 1;
      }
    if (!__any_sync(0xffffffffu, changed)) return;
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int n = 0; n < 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) acc_[m][n][i] *= factor[m][i / 2];
  }

  __device__ __forceinline__ void add(int stage, int turn) {
    const uint32_t at = shared_address(&s_.stage[stage][lane_ % 16][warp_ * 64 + lane_ / 16 * 8]);
    const uint32_t p_at = shared_address(&s_.probability[turn][lane_ % 16][lane_ / 16 * 8]);
#pragma unroll
    for (int k = 0; k < kBlock / 16; ++k) {
      uint32_t p[2][4], b[2][4];
      load_matrices_transposed(b[0], at + k * 16 * kRow * 2);
#pragma unroll
      for (int m = 0; m < 2; ++m) load_matrices(p[m], p_at + m * 16 * kProbabilityRow * 2 + k * 32);
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        if (n < 3) load_matrices_transposed(b[(n + 1) % 2], at + k * 16 * kRow * 2 + (n + 1) * 32);
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          mma_bf16(acc_[m][2 * n], p[m], b[n % 2][0], b[n % 2][1]);
          mma_bf16(acc_[m][2 * n + 1], p[m], b[n % 2][2], b[n % 2][3]);
        }
      }
    }
  }

  const DecodeArgs& a_;
  Shared& s_;
  const Segment& g_;
  int tid_, lane_, warp_;
  const int32_t* next_page_;
  int page_, offset_;  // of the next block to fetch
  float acc_[2][8][4];
};

// Whoever reads pages checks them, all of the row: it is skipped whole. Each half by itself.
__device__ __forceinline__ bool pages_are_wrong(const DecodeArgs& a, const Segment& g, int barrier) {
  const int32_t* pages = a.seq.pages + g.n * a.seq.pages_stride;
  bool wrong = false;
  for (int i = static_cast<int>(threadIdx.x) % kHalf; i < g.piece.pages; i += kHalf)
    wrong |= pages[i] < 1 || pages[i] >= a.seq.page_count;
  if (!barrier_any<kHalf>(barrier, wrong)) return false;
  if (threadIdx.x == 0) {
    raise(a.faults, Fault::page);
    a.w.sound[g.n] = 0;
  }
  return true;
}

// f(segment) for those of this thread block.
template <class F>
__device__ __forceinline__ void for_segments(const DecodeArgs& a, F&& f) {
  const int me = static_cast<int>(blockIdx.x), live = a.seq.live;
  int n = a.w.start[me];
  const Shares shares = shares_of(a, a.w.piece[live].unit_begin);
  if (a.exact) {
    for (int u = me; u < shares.units; u += static_cast<int>(gridDim.x)) {
      n = find<&SequencePiece::unit_begin>(a.w.piece, live, u);
      const SequencePiece p = a.w.piece[n];
      const int each = units_of(a, p), local = u - p.unit_begin, chunk = local % each;
      f(Segment{.piece = p,
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
    f(Segment{.piece = p, .n = n, .tile = local / each, .first = first, .last = last, .slot = slot});
    u += last - first;
  }
}

__global__ void __launch_bounds__(kThreads, 1) attend(const __grid_constant__ DecodeArgs a) {
  extern __shared__ __align__(128) unsigned char memory[];
  Shared& s = *reinterpret_cast<Shared*>(memory);
  pdl_trigger();
  pdl_wait();
  if (threadIdx.x < kHalf) {
    for_segments(a, [&](const Segment& g) {
      if (pages_are_wrong(a, g, kScorers)) return;
      Scorer(a, s, g).run();
      barrier_sync<kThreads>(kTotals);
      barrier_sync<kThreads>(kStored);
    });
  } else {
    for_segments(a, [&](const Segment& g) {
      if (pages_are_wrong(a, g, kAdders)) return;
      Adder adder(a, s, g);
      adder.run();
      barrier_sync<kThreads>(kTotals);
      adder.store();
      barrier_sync<kThreads>(kStored);
    });
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
