// Decode on tensor cores, the kernels around the attention. prepare: q' of a batch of tokens, the numbering of its
// units, zeros where nobody's tokens are. combine: segments of a tile that several thread blocks shared, in their
// order. project: W_UV.
#include "kdelta/ops/common/cuda/launch.cuh"
#include "kdelta/ops/mla/cuda_decode.cuh"

namespace kdelta {
namespace mla_cuda {
namespace {

using namespace cuda;

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kTokens = 64;  // of a thread block of prepare and project
constexpr int kColumns = 128, kSlices = kLatent / kColumns;
constexpr int kValues = 32;                          // of a thread block of project
constexpr int kPart = 32, kParts = kLatent / kPart;  // latents of a thread block of combine
constexpr int kMostZeroBlocks = 128;

// Numbers the units of the round. Checks everything but the pages, which whoever reads them does.
__device__ void number_units(const DecodeArgs& a) {
  int units = 0, tiles = 0;
  const int live = a.seq.live;
  for (int base = 0; base < live; base += kThreads) {
    const int n = base + static_cast<int>(threadIdx.x);
    SequencePiece p{.length = 1};
    int my_units = 0, my_tiles = 0;
    if (n < live) {
      const uint32_t faults = row_faults(a.seq, n, a.seq.columns, 1);
      raise_all(a.faults, faults);
      a.w.sound[n] = faults == 0 ? 1 : 0;
      const int begin = a.seq.cu[n], end = a.seq.cu[n + 1];
      const int from = max(begin, a.first), to = min(end, a.first + a.rows), context = a.seq.context[n];
      if (faults == 0 && n >= a.from && from < to) {
        p.token = from - a.first, p.tokens = to - from, p.length = context + (from - begin) + 1;
        p.pages = (context + (end - begin) + a.seq.page_tokens - 1) / a.seq.page_tokens;
        my_tiles = p.tiles(a.H), my_units = my_tiles * units_of(a, p);
      }
    }
    int all_units = 0, all_tiles = 0;
    p.unit_begin = units + block_scan<kThreads>(my_units, &all_units);
    p.tile_begin = tiles + block_scan<kThreads>(my_tiles, &all_tiles);
    if (n < live) a.w.piece[n] = p;
    units += all_units, tiles += all_tiles;
  }
  for (int n = live + static_cast<int>(threadIdx.x); n < a.seq.count; n += kThreads)
    raise_all(a.faults, row_faults(a.seq, n, a.seq.columns, 1));
  if (threadIdx.x == 0) a.w.piece[live] = {.unit_begin = units, .tile_begin = tiles};
  __syncthreads();
  const Shares shares = shares_of(a, units);
  for (int i = static_cast<int>(threadIdx.x); i < a.w.thread_blocks; i += kThreads)
    a.w.start[i] = i < shares.blocks ? find<&SequencePiece::unit_begin>(a.w.piece, live, shares.begin(i)) : 0;
}

// Tokens of the round from its i-th on that a thread block takes; those behind the last sequence are nobody's.
__device__ __forceinline__ int tokens_here(const DecodeArgs& a, int i) {
  const int end = min(a.seq.cu[a.seq.live], static_cast<int>(a.seq.tokens));
  const int count = min(min(kTokens, a.rows - i), end - a.first - i);
  if (a.from == 0 || count <= 0) return count;
  const int last = owner_of(a.seq, a.first + i + count - 1);
  return last >= 0 && last < a.from ? 0 : count;  // all of them belong to others
}

struct PrepareShared {
  bf16 weight[kNope][kColumns + 8];
  bf16 q[kTokens][kNope + 8];
};

// Block (0, y): number_units for y = 0. Blocks (1 .. zero_blocks, 0): zeros. The others: 128 columns of q' of a head
// and 64 tokens.
__global__ void __launch_bounds__(kThreads) prepare(const __grid_constant__ DecodeArgs a, int zero_blocks) {
  extern __shared__ __align__(128) unsigned char memory[];
  auto& s = *reinterpret_cast<PrepareShared*>(memory);
  pdl_trigger();
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, warp = tid / 32;
  const int item = static_cast<int>(blockIdx.x) - 1 - zero_blocks, h = item / kSlices, slice = item % kSlices;
  if (item >= 0) {  // weights do not come from the kernel before
    const bf16* weight = a.kv_b + int64_t{h} * (kNope + kValue) * a.kv_b_stride + slice * kColumns;
    for (int i = tid; i < kNope * kColumns / 8; i += kThreads)
      copy16(shared_address(&s.weight[i / 16][i % 16 * 8]), weight + i / 16 * a.kv_b_stride + i % 16 * 8);
  }
  pdl_wait();
  if (item < 0) {
    if (blockIdx.y > 0) return;
    if (blockIdx.x == 0)
      number_units(a);
    else if (a.first == 0)
      zero_tokens(a.seq, a.out, a.H, kValue, static_cast<int>(blockIdx.x) - 1, zero_blocks);
    return;
  }
  const int i0 = static_cast<int>(blockIdx.y) * kTokens, token = a.first + i0, count = tokens_here(a, i0);
  if (count <= 0) return;
  for (int i = tid; i < kTokens * kNope / 8; i += kThreads) {
    const int t = i / 16;
    copy16(shared_address(&s.q[t][i % 16 * 8]), a.q.at(token + min(t, count - 1), h) + i % 16 * 8, t < count ? 16 : 0);
  }
  copies_commit();
  const float scale = a.scale * 1.4426950408889634f;
  const auto query = [&](int t) { return a.w.query + (int64_t{i0 + t} * a.H + h) * kWidth; };
  if (slice == 0)
    for (int i = tid; i < count * kRope; i += kThreads)
      query(i / kRope)[kLatent + i % kRope] =
          from_f32<bf16>(to_f32(a.q.at(token + i / kRope, h)[kNope + i % kRope]) * scale);
  copies_wait<0>();
  __syncthreads();
  float acc[kTokens / 16][2][4] = {};
  const int tiles = (count + 15) / 16;
  const uint32_t w_at = shared_address(&s.weight[lane % 16][warp * 16 + lane / 16 * 8]);
  const uint32_t q_at = shared_address(&s.q[lane % 16][lane / 16 * 8]);
#pragma unroll
  for (int k = 0; k < kNope / 16; ++k) {
    uint32_t b[4];
    load_matrices_transposed(b, w_at + k * 16 * (kColumns + 8) * 2);
#pragma unroll
    for (int m = 0; m < kTokens / 16; ++m) {
      if (m >= tiles) continue;
      uint32_t q[4];
      load_matrices(q, q_at + m * 16 * (kNope + 8) * 2 + k * 32);
      mma_bf16(acc[m][0], q, b[0], b[1]);
      mma_bf16(acc[m][1], q, b[2], b[3]);
    }
  }
#pragma unroll
  for (int m = 0; m < kTokens / 16; ++m)
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int t = m * 16 + lane / 4 + i * 8, c = slice * kColumns + warp * 16 + n * 8 + lane % 4 * 2;
        if (t < count)
          *reinterpret_cast<uint32_t*>(query(t) + c) =
              pack_bf16(acc[m][n][2 * i] * scale, acc[m][n][2 * i + 1] * scale);
      }
}

// 32 latents of kRows rows of a tile. Of largest scores and totals a lane has its row of the tile; of the sums, rows
// lane / 8 + 4 k, latents lane % 8 * 4 and three more. A warp takes every eighth segment, then the warps' sums are
// added up in their order.
template <int kRows, class Slot>
__device__ __forceinline__ void combine_part(const DecodeArgs& a, const SequencePiece& p, int tile, int first_row,
                                             int number, int count, float origin, Slot&& slot,
                                             float (&sums)[kWarps][kRows][kPart + 4],
                                             float (&warp_total)[kWarps][kTileRows]) {
  constexpr int kLoads = kRows / 4, kTogether = 16 / kLoads;  // segments whose loads are in flight
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, warp = tid / 32;
  float4 sum[kLoads] = {};
  float total = 0;
  const int r0 = lane / 8, c = lane % 8 * 4;
  for (int j0 = warp; j0 < count; j0 += kTogether * kWarps) {
    float4 x[kTogether][kLoads];
    float weight[kTogether], part[kTogether];
#pragma unroll
    for (int u = 0; u < kTogether; ++u) {
      const int j = j0 + u * kWarps;
      if (j >= count) break;
      const int at = slot(j) * kTileRows;
      weight[u] = a.w.part_max[at + lane], part[u] = a.w.part_sum[at + lane];
      const float* from = a.w.part + int64_t{at + first_row + r0} * kLatent + number * kPart + c;
#pragma unroll
      for (int k = 0; k < kLoads; ++k) x[u][k] = __ldcg(reinterpret_cast<const float4*>(from + k * 4 * kLatent));
    }
#pragma unroll
    for (int u = 0; u < kTogether; ++u) {
      if (j0 + u * kWarps >= count) break;
      const float w = exp2_fast(weight[u] - origin);
      total = fmaf(part[u], w, total);
#pragma unroll
      for (int k = 0; k < kLoads; ++k) {
        const float f = __shfl_sync(0xffffffffu, w, first_row + r0 + k * 4);
        sum[k].x = fmaf(x[u][k].x, f, sum[k].x), sum[k].y = fmaf(x[u][k].y, f, sum[k].y);
        sum[k].z = fmaf(x[u][k].z, f, sum[k].z), sum[k].w = fmaf(x[u][k].w, f, sum[k].w);
      }
    }
  }
#pragma unroll
  for (int k = 0; k < kLoads; ++k) *reinterpret_cast<float4*>(&sums[warp][r0 + k * 4][c]) = sum[k];
  warp_total[warp][lane] = total;
  __syncthreads();
  const int r = tid / 8, rows = min(kTileRows, p.tokens * a.H - tile * kTileRows) - first_row;
  float4 y{};
  total = 0;
  if (r < kRows) {
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float4 v = *reinterpret_cast<const float4*>(&sums[w][r][tid % 8 * 4]);
      y.x += v.x, y.y += v.y, y.z += v.z, y.w += v.w;
      total += warp_total[w][first_row + r];
    }
  }
  __syncthreads();  // they are read; the next part may come
  if (r >= kRows || r >= rows) return;
  const float inverse = 1 / total;
  const int64_t row = int64_t{p.token} * a.H + tile * kTileRows + first_row + r;
  *reinterpret_cast<uint2*>(a.w.sums + row * kLatent + number * kPart + tid % 8 * 4) =
      make_uint2(pack_bf16(y.x * inverse, y.y * inverse), pack_bf16(y.z * inverse, y.w * inverse));
}

// A tile that several thread blocks shared.
template <int kRows>
__global__ void __launch_bounds__(kThreads) combine(const __grid_constant__ DecodeArgs a) {
  __shared__ float sums[kWarps][kRows][kPart + 4];
  __shared__ float warp_max[kWarps][kTileRows], warp_total[kWarps][kTileRows];
  constexpr int kTogether = 4;  // segments whose loads are in flight
  pdl_trigger();
  pdl_wait();
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, warp = tid / 32;
  const int tile_number = static_cast<int>(blockIdx.x);
  const SequencePiece all = a.w.piece[a.seq.live];
  if (tile_number >= all.tile_begin) return;
  const int n = find<&SequencePiece::tile_begin>(a.w.piece, a.seq.live, tile_number);
  const SequencePiece p = a.w.piece[n];
  if (a.w.sound[n] == 0) return;
  const int tile = tile_number - p.tile_begin, each = units_of(a, p), begin = p.unit_begin + tile * each;
  const Shares shares = shares_of(a, all.unit_begin);
  const int first = a.exact ? begin : shares.owner(begin);
  const int count = a.exact ? each : shares.owner(begin + each - 1) - first + 1;
  if (count == 1) return;  // the sums are there
  // The first segment ends its thread block's share, the others begin theirs.
  const auto slot = [&](int j) { return a.exact ? first + j : 2 * (first + j) + (j == 0 ? 1 : 0); };
  float top = -INFINITY;
#pragma unroll kTogether
  for (int j = warp; j < count; j += kWarps) top = fmaxf(top, a.w.part_max[slot(j) * kTileRows + lane]);
  warp_max[warp][lane] = top;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < kWarps; ++w) top = fmaxf(top, warp_max[w][lane]);
  const float origin = top == -INFINITY ? 0.0f : top;
  for (int part = static_cast<int>(blockIdx.y); part < kParts; part += static_cast<int>(gridDim.y))
    combine_part<kRows>(a, p, tile, static_cast<int>(blockIdx.z) * kRows, part, count, origin, slot, sums, warp_total);
}

struct ProjectShared {
  bf16 weight[kValues][kLatent + 8];
  bf16 sums[kTokens][kLatent + 8];
  int state[kTokens];  // of a token: 0 not ours, 1 zeros, 2 computed
};

// 32 values of a head and 64 tokens.
__global__ void __launch_bounds__(kThreads) project(const __grid_constant__ DecodeArgs a) {
  extern __shared__ __align__(128) unsigned char memory[];
  auto& s = *reinterpret_cast<ProjectShared*>(memory);
  pdl_trigger();
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, warp = tid / 32;
  constexpr int kGroups = kValue / kValues, kRowChunks = kLatent / 8;
  const int h = static_cast<int>(blockIdx.x) / kGroups, v0 = static_cast<int>(blockIdx.x) % kGroups * kValues;
  const bf16* weight = a.kv_b + (int64_t{h} * (kNope + kValue) + kNope + v0) * a.kv_b_stride;
  for (int i = tid; i < kValues * kRowChunks; i += kThreads)
    copy16(shared_address(&s.weight[i / kRowChunks][i % kRowChunks * 8]),
           weight + i / kRowChunks * a.kv_b_stride + i % kRowChunks * 8);
  pdl_wait();
  const int i0 = static_cast<int>(blockIdx.y) * kTokens, token = a.first + i0, count = tokens_here(a, i0);
  if (count <= 0) return;
  const int tiles = (count + 15) / 16;
  for (int i = tid; i < tiles * 16 * kRowChunks; i += kThreads) {
    const int t = i / kRowChunks;
    copy16(shared_address(&s.sums[t][i % kRowChunks * 8]),
           a.w.sums + (int64_t{i0 + min(t, count - 1)} * a.H + h) * kLatent + i % kRowChunks * 8, t < count ? 16 : 0);
  }
  copies_commit();
  if (tid < count) {
    const int n = owner_of(a.seq, token + tid);
    const bool ours = n >= a.from && n < a.seq.live && row_faults(a.seq, n, a.seq.columns, 1) == 0;
    s.state[tid] = !ours ? 0 : a.w.sound[n] == 0 ? 1 : 2;
  }
  copies_wait<0>();
  __syncthreads();
  const int m = warp / 2, n0 = warp % 2 * 16;
  if (m >= tiles) return;
  float acc[2][4] = {};
  const uint32_t x_at = shared_address(&s.sums[m * 16 + lane % 16][lane / 16 * 8]);
  const uint32_t w_at = shared_address(&s.weight[n0 + lane / 16 * 8 + lane % 8][lane / 8 % 2 * 8]);
#pragma unroll 8
  for (int k = 0; k < kLatent / 16; ++k) {
    uint32_t x[4], w[4];
    load_matrices(x, x_at + k * 32);
    load_matrices(w, w_at + k * 32);
    mma_bf16(acc[0], x, w[0], w[1]);
    mma_bf16(acc[1], x, w[2], w[3]);
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int t = m * 16 + lane / 4 + i * 8;
    if (t >= count) continue;
    if (s.state[t] == 0) continue;
#pragma unroll
    for (int j = 0; j < 2; ++j)
      *reinterpret_cast<uint32_t*>(a.out.at(token + t, h) + v0 + n0 + j * 8 + lane % 4 * 2) =
          s.state[t] == 2 ? pack_bf16(acc[j][2 * i], acc[j][2 * i + 1]) : 0u;
  }
}

void run_batch(const Exec& ex, const DecodeArgs& a, const MlaDesc& d) {
  const auto pdl = [&](int64_t blocks) { return pdl_pays(d.target, blocks); };
  const unsigned H = static_cast<unsigned>(d.heads), groups = grid_of(a.rows, kTokens);
  const auto zero_blocks = static_cast<unsigned>(a.first > 0 ? 0 : std::min<int64_t>(d.tokens, kMostZeroBlocks));
  launch(ex, "mla",
         {.grid = dim3(1 + zero_blocks + H * kSlices, groups),
          .block = kThreads,
          .shared_bytes = static_cast<int>(sizeof(PrepareShared)),
          .pdl = true},
         prepare, a, static_cast<int>(zero_blocks));
  launch_decode_attend(ex, a, d);
  const auto tiles = static_cast<unsigned>(a.rows * ((d.heads + kTileRows - 1) / kTileRows));
  // Many tiles: fewer blocks have less to look up. Very few: as many as there are multiprocessors for.
  constexpr int kFewRows = 8;
  const unsigned parts = tiles < 16 ? kParts : 4, groups_of_rows = tiles <= 2 ? kTileRows / kFewRows : 1;
  launch(ex, "mla",
         {.grid = dim3(tiles, parts, groups_of_rows), .block = kThreads, .pdl = pdl(tiles * parts * groups_of_rows)},
         groups_of_rows > 1 ? combine<kFewRows> : combine<kTileRows>, a);
  launch(ex, "mla",
         {.grid = dim3(H * kValue / kValues, groups),
          .block = kThreads,
          .shared_bytes = static_cast<int>(sizeof(ProjectShared)),
          .pdl = pdl(H * kValue / kValues * groups)},
         project, a);
}

}  // namespace
}  // namespace mla_cuda

namespace mla_cuda {

void run_absorbed(const Exec& ex, const MlaArgs& a, const MlaDesc& d, int from, Layout& layout) {
  DecodeArgs p{.seq = paged_arrays(a.seq, d.tokens, a.cache.shape),
               .q = cuda::head_rows<const bf16>(a.q),
               .out = cuda::head_rows<bf16>(a.out),
               .cache = static_cast<const bf16*>(a.cache.data),
               .kv_b = static_cast<const bf16*>(a.kv_b.data),
               .kv_b_stride = a.kv_b.row_bytes / 2,
               .H = static_cast<int>(d.heads),
               .scale = a.scale,
               .exact = d.exact,
               .w = decode_work(d, layout),
               .from = from,
               .faults = ex.faults};
  for (int64_t first = 0; first < d.tokens; first += p.w.batch) {
    p.first = static_cast<int>(first), p.rows = static_cast<int>(std::min(p.w.batch, d.tokens - first));
    run_batch(ex, p, d);
  }
}

}  // namespace mla_cuda

void mla_cuda_tensor(const Exec& ex, const MlaArgs& a, const MlaDesc& d, void* scratch) {
  mla_cuda::Layout layout(scratch);
  mla_cuda::run_absorbed(ex, a, d, 0, layout);
}

}  // namespace kdelta
