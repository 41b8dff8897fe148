// The serial part: runs of chunks over a state of 128 value rows (or over the 128 rows of a transition matrix). Two
// warpgroups take 64 rows each: values are the M of wgmma, so state and U never leave the registers; they are repacked
// as its A operand. A third group's first warp feeds records through a ring of shared memory, one bulk copy each.
// States are [row][key]: S' of the equations. State and sums are fp32, operands fp16.
#include "kdelta/ops/common/cuda/launch.cuh"
#include "kdelta/ops/kda/cuda_plan.cuh"
#include "kdelta/ops/kda/cuda_ptx.cuh"

namespace kdelta::kda_cuda {
namespace {

constexpr int kThreads = 384, kStateFloats = 16384;

// A thread's rows and columns in a wgmma accumulator of 64 by 64: element 4 j + e lies at row() + (e >> 1) * 8 and
// column 8 j + column() + (e & 1).
struct Lane {
  int id = static_cast<int>(threadIdx.x & 31), warp = static_cast<int>(threadIdx.x >> 5) & 3;
  int group = static_cast<int>(threadIdx.x >> 7);  // warpgroup: 64 rows each
  __device__ __forceinline__ int row() const { return group * 64 + warp * 16 + (id >> 2); }
  __device__ __forceinline__ int column() const { return (id & 3) * 2; }
};

// Keys 0..63 and 64..127 of the thread's rows.
struct State {
  float low[32], high[32];
};
struct Packed {
  uint32_t low[16], high[16];
};

template <class F>
__device__ __forceinline__ void for_each_pair(const Lane& at, State& s, F f) {
#pragma unroll
  for (int j = 0; j < 8; ++j)
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int row = at.row() + e * 8, column = 8 * j + at.column();
      f(row, column, s.low[4 * j + 2 * e], s.low[4 * j + 2 * e + 1]);
      f(row, column + 64, s.high[4 * j + 2 * e], s.high[4 * j + 2 * e + 1]);
    }
}

__device__ __forceinline__ void load_f32(const Lane& at, const float* from, State& s) {
  for_each_pair(at, s, [&](int row, int column, float& x, float& y) {
    const float2 v = *reinterpret_cast<const float2*>(from + row * 128 + column);
    x = v.x, y = v.y;
  });
}
__device__ __forceinline__ void store_f32(const Lane& at, float* to, State& s) {
  for_each_pair(at, s, [&](int row, int column, float& x, float& y) {
    *reinterpret_cast<float2*>(to + row * 128 + column) = make_float2(x, y);
  });
}
// A state in the workspace lies in the order of the accumulators: word i of thread t of a group at [group][i / 4][t][i
// % 4].
__device__ __forceinline__ float4* workspace_place(const Lane& at, float* state) {
  return reinterpret_cast<float4*>(state) + at.group * 2048 + (threadIdx.x & 127);
}
__device__ __forceinline__ void load_workspace(const Lane& at, float* from, State& s) {
  const float4* p = workspace_place(at, from);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float4 x = p[i * 128], y = p[(8 + i) * 128];
    s.low[4 * i] = x.x, s.low[4 * i + 1] = x.y, s.low[4 * i + 2] = x.z, s.low[4 * i + 3] = x.w;
    s.high[4 * i] = y.x, s.high[4 * i + 1] = y.y, s.high[4 * i + 2] = y.z, s.high[4 * i + 3] = y.w;
  }
}
__device__ __forceinline__ void store_workspace(const Lane& at, float* to, const State& s) {
  float4* p = workspace_place(at, to);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    p[i * 128] = make_float4(s.low[4 * i], s.low[4 * i + 1], s.low[4 * i + 2], s.low[4 * i + 3]);
    p[(8 + i) * 128] = make_float4(s.high[4 * i], s.high[4 * i + 1], s.high[4 * i + 2], s.high[4 * i + 3]);
  }
}
__device__ __forceinline__ int64_t pool_place(const Args& a, int slot, int h) {
  return slot * a.state_slot + static_cast<int64_t>(h) * kStateFloats;
}
__device__ __forceinline__ void load_pool(const Args& a, const Lane& at, int slot, int h, State& s) {
  const int64_t place = pool_place(a, slot, h);
  if (!a.state_bf16) return load_f32(at, static_cast<const float*>(a.state) + place, s);
  for_each_pair(at, s, [&](int row, int column, float& x, float& y) {
    unpack<Half::bf16>(
        *reinterpret_cast<const uint32_t*>(static_cast<const uint16_t*>(a.state) + place + row * 128 + column), x, y);
  });
}
__device__ __forceinline__ void store_pool(const Args& a, const Lane& at, int slot, int h, State& s) {
  const int64_t place = pool_place(a, slot, h);
  if (!a.state_bf16) return store_f32(at, static_cast<float*>(a.state) + place, s);
  for_each_pair(at, s, [&](int row, int column, float& x, float& y) {
    *reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(a.state) + place + row * 128 + column) = pack<Half::bf16>(x, y);
  });
}
// Start state of a sequence.
__device__ __forceinline__ void load_start(const Args& a, const Workspace& w, const Lane& at, int n, int h, State& s) {
  const int source = w.sequence[n].source;
  if (source != 0) return load_pool(a, at, source, h, s);
#pragma unroll
  for (int i = 0; i < 32; ++i) s.low[i] = s.high[i] = 0;
}

__device__ __forceinline__ void pack_rows(const float (&s)[32], uint32_t (&out)[16]) {
#pragma unroll
  for (int i = 0; i < 16; ++i) out[i] = pack<Half::f16>(s[2 * i], s[2 * i + 1]);
}
// What packing left out.
__device__ __forceinline__ void pack_rest(const float (&s)[32], const uint32_t (&high)[16], uint32_t (&out)[16]) {
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    float x, y;
    unpack<Half::f16>(high[i], x, y);
    out[i] = pack<Half::f16>(s[2 * i] - x, s[2 * i + 1] - y);
  }
}

// Sums over 64 keys or tokens: d (+)= rows b, b a tile of 64 rows at `tile16` (in 16 bytes). Here [n][k]: the sum runs
// along the tile's rows.
template <bool kAdd>
__device__ __forceinline__ void multiply_rows(float (&d)[32], const uint32_t (&rows)[16], uint32_t tile16) {
  wgmma_n64<kAdd, false>(d, rows[0], rows[1], rows[2], rows[3], tile_descriptor<16>(tile16));
#pragma unroll
  for (int i = 1; i < 4; ++i)
    wgmma_n64<true, false>(d, rows[4 * i], rows[4 * i + 1], rows[4 * i + 2], rows[4 * i + 3],
                           tile_descriptor<16>(tile16 + i * 2));
}
// [k][n]: the sum runs down the tile's columns.
template <bool kAdd>
__device__ __forceinline__ void multiply_columns(float (&d)[32], const uint32_t (&rows)[16], uint32_t tile16) {
  wgmma_n64<kAdd, true>(d, rows[0], rows[1], rows[2], rows[3], tile_descriptor<8192>(tile16));
#pragma unroll
  for (int i = 1; i < 4; ++i)
    wgmma_n64<true, true>(d, rows[4 * i], rows[4 * i + 1], rows[4 * i + 2], rows[4 * i + 3],
                          tile_descriptor<8192>(tile16 + i * 128));
}
// Keeps registers of wgmma in flight from being moved.
__device__ __forceinline__ void pin(float (&x)[32]) {
#pragma unroll
  for (int i = 0; i < 32; ++i) asm volatile("" : "+f"(x[i])::"memory");
}

// The ring between the copying warp and the warpgroups. A Turn is one use of a stage.
struct Turn {
  int stage = 0;
  uint32_t parity = 0;
  template <int kStages>
  __device__ __forceinline__ Turn next() const {
    return stage + 1 == kStages ? Turn{0, parity ^ 1} : Turn{stage + 1, parity};
  }
};
template <int kStageCount, int kStageBytes>
struct Ring {
  static constexpr int kStages = kStageCount;
  uint32_t base, full, empty;
  char* bytes;
  __device__ __forceinline__ uint32_t address(Turn t) const { return base + t.stage * kStageBytes; }
  __device__ __forceinline__ uint32_t tile16(Turn t) const { return base / 16 + t.stage * (kStageBytes / 16); }
  __device__ __forceinline__ char* data(Turn t) const { return bytes + t.stage * kStageBytes; }
  __device__ __forceinline__ Turn after(Turn t) const { return t.next<kStages>(); }
  __device__ __forceinline__ void wait_full(Turn t) const { cuda::barrier_wait(full + 8 * t.stage, t.parity); }
  __device__ __forceinline__ void release(Turn t) const {
    __syncwarp();
    if ((threadIdx.x & 31) == 0) cuda::barrier_arrive(empty + 8 * t.stage);
  }
  // The copying lane claims a stage for `size` bytes and gets the barrier that counts them.
  __device__ __forceinline__ uint32_t claim(Turn t, uint32_t size) const {
    cuda::barrier_wait(empty + 8 * t.stage, t.parity ^ 1);
    cuda::barrier_expect(full + 8 * t.stage, size);
    return full + 8 * t.stage;
  }
};

template <class RingType>
__device__ __forceinline__ RingType make_ring() {
  extern __shared__ char shared_bytes[];
  constexpr int kStages = RingType::kStages;
  __shared__ __align__(8) uint64_t barriers[2 * kStages];
  char* bytes = shared_bytes +
                (1024 - (cuda::shared_address(shared_bytes) & 1023)) % 1024;  // the compiler still sees shared memory
  const RingType ring{cuda::shared_address(bytes), cuda::shared_address(barriers),
                      cuda::shared_address(barriers + kStages), bytes};
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i)
      cuda::barrier_init(ring.full + 8 * i, 1), cuda::barrier_init(ring.empty + 8 * i, 8);
    cuda::fence_barrier_init();
  }
  __syncthreads();
  return ring;
}

// Offsets in a stage: the first part of a record, U0 behind it.
template <bool kOutputs>
struct Layout {
  static constexpr int kU = kOutputs ? kRecordU : kScanBytes;
  static constexpr int kBytes = kU + 16384;
  static constexpr int kStages = kOutputs ? 3 : 4;
  static constexpr int kShared = kStages * kBytes + 1024;
  using RingType = Ring<kStages, kBytes>;
};

// One warpgroup's walk over chunks. kOutputs: the query side too.
template <bool kOutputs>
struct Chain {
  using L = Layout<kOutputs>;
  const Args& a;
  const Workspace& w;
  const Lane at;
  const typename L::RingType ring;
  bool is_matrix, round;  // round: the state takes the pool's rounding after every chunk
  int h;
  __nv_bfloat16* out = nullptr;  // first token of the segment, the warp's value channels
  int tokens = 0;                // of the segment
  State s;
  float product[32];
  uint32_t u[16];
  float o[kOutputs ? 32 : 1];
  uint32_t poison = 0;  // two bf16 zeros, or NaN once an output was not finite

  // S <- S D
  __device__ __forceinline__ void decay(Turn t) {
    const float2* d = reinterpret_cast<const float2*>(ring.data(t) + kRecordD) + (at.id & 3);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float2 x = d[4 * j], y = d[32 + 4 * j];
      s.low[4 * j] *= x.x, s.low[4 * j + 1] *= x.y, s.low[4 * j + 2] *= x.x, s.low[4 * j + 3] *= x.y;
      s.high[4 * j] *= y.x, s.high[4 * j + 1] *= y.y, s.high[4 * j + 2] *= y.x, s.high[4 * j + 3] *= y.y;
    }
  }
  // U0, onto which the record's minus W times S is summed.
  __device__ __forceinline__ void begin_product(Turn t) {
    const uint4* from = reinterpret_cast<const uint4*>(ring.data(t) + L::kU + at.group * 8192) + (threadIdx.x & 127);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint4 x = is_matrix ? make_uint4(0, 0, 0, 0) : from[j * 128];
      unpack<Half::f16>(x.x, product[8 * j], product[8 * j + 1]);
      unpack<Half::f16>(x.y, product[8 * j + 2], product[8 * j + 3]);
      unpack<Half::f16>(x.z, product[8 * j + 4], product[8 * j + 5]);
      unpack<Half::f16>(x.w, product[8 * j + 6], product[8 * j + 7]);
    }
  }
  __device__ __forceinline__ void round_state(float (&x)[32]) {
#pragma unroll
    for (int i = 0; i < 16; ++i) unpack<Half::bf16>(pack<Half::bf16>(x[2 * i], x[2 * i + 1]), x[2 * i], x[2 * i + 1]);
  }
  __device__ __forceinline__ void begin_query(const Packed& p, uint32_t tile) {
    multiply_rows<false>(o, p.low, tile + kRecordQ / 16);
    multiply_rows<true>(o, p.high, tile + (kRecordQ + 8192) / 16);
    cuda::wgmma_commit();
  }
  // Outputs of the segment's chunk c through the warp's part of the stage's U0, which nobody reads any more.
  __device__ __forceinline__ void write_outputs(Turn t, int c, const uint32_t (&packed)[16]) {
    char* mine = ring.data(t) + L::kU + at.group * 8192 + at.warp * 2048;
    const int m = at.id >> 3, r = at.id & 7;
#pragma unroll
    for (int j = 0; j < 8; j += 2)
      cuda::store_matrices_transposed(cuda::shared_address(mine) + (8 * (j + (m >> 1)) + r) * 32 + (m & 1) * 16,
                                      packed[2 * j], packed[2 * j + 1], packed[2 * j + 2], packed[2 * j + 3]);
    __syncwarp();
    const int left = tokens - c * kChunkTokens, row = at.id >> 1;
    __nv_bfloat16* to = out + (c * kChunkTokens + row) * a.out_token + (at.id & 1) * 8;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint4 x = *reinterpret_cast<const uint4*>(mine + (j * 32 + at.id) * 16);
      if (row + j * 16 < left) *reinterpret_cast<uint4*>(to + j * 16 * a.out_token) = x;
    }
    cuda::fence_shared_for_bulk();
  }
  __device__ __forceinline__ void store_snapshots(int first) {
    for (int q = first; q >= 0; q = w.snapshot_next[q])
      store_pool(a, at, __ldg(a.snapshot + q * a.snapshot_row + 2), h, s);
  }

  // Chunks [chunk, chunk + n), the first of them in turn `now`.
  __device__ __forceinline__ void run(Turn now, int chunk, int n, bool snapshots) {
    Packed p;
    uint32_t tile = ring.tile16(now);
    ring.wait_full(now);
    begin_product(now);
    pack_rows(s.low, p.low);
    pack_rows(s.high, p.high);
    cuda::wgmma_fence();
    multiply_rows<true>(product, p.low, tile + kRecordW / 16);
    multiply_rows<true>(product, p.high, tile + (kRecordW + 8192) / 16);
    cuda::wgmma_commit();
    if constexpr (kOutputs) begin_query(p, tile);
    cuda::wgmma_wait<0>();
    pin(product);
    decay(now);
    pack_rows(product, u);
    for (int c = 1; c < n; ++c) {
      const Turn previous = now;
      const uint32_t before = tile;
      now = ring.after(now), tile = ring.tile16(now);
      ring.wait_full(now);
      cuda::wgmma_fence();
      multiply_columns<true>(s.low, u, before + kRecordK / 16);
      cuda::wgmma_commit();
      multiply_columns<true>(s.high, u, before + (kRecordK + 8192) / 16);
      cuda::wgmma_commit();
      if constexpr (kOutputs) {
        multiply_rows<true>(o, u, before + kRecordA / 16);
        cuda::wgmma_commit();
      }
      begin_product(now);
      cuda::wgmma_wait<kOutputs ? 2 : 1>();
      pin(s.low);
      if (round) round_state(s.low);
      pack_rows(s.low, p.low);
      cuda::wgmma_fence();
      multiply_rows<true>(product, p.low, tile + kRecordW / 16);
      cuda::wgmma_commit();
      cuda::wgmma_wait<kOutputs ? 2 : 1>();
      pin(s.high);
      if (round) round_state(s.high);
      pack_rows(s.high, p.high);
      cuda::wgmma_fence();
      multiply_rows<true>(product, p.high, tile + (kRecordW + 8192) / 16);
      cuda::wgmma_commit();
      if (snapshots) store_snapshots(w.chunk_snapshot[chunk + c - 1]);
      decay(now);
      if constexpr (kOutputs) {
        cuda::wgmma_wait<2>();
        pin(o);
        uint32_t packed[16];
        finish_outputs(packed);
        cuda::wgmma_fence();
        begin_query(p, tile);
        write_outputs(previous, c - 1, packed);
        ring.release(previous);
        cuda::wgmma_wait<1>();
      } else {
        ring.release(previous);
        cuda::wgmma_wait<0>();
      }
      pin(product);
      pack_rows(product, u);
    }
    cuda::wgmma_fence();
    multiply_columns<true>(s.low, u, tile + kRecordK / 16);
    multiply_columns<true>(s.high, u, tile + (kRecordK + 8192) / 16);
    if constexpr (kOutputs) multiply_rows<true>(o, u, tile + kRecordA / 16);
    cuda::wgmma_commit();
    cuda::wgmma_wait<0>();
    pin(s.low), pin(s.high);
    if (round) round_state(s.low), round_state(s.high);
    if (snapshots) store_snapshots(w.chunk_snapshot[chunk + n - 1]);
    if constexpr (kOutputs) {
      pin(o);
      uint32_t packed[16];
      finish_outputs(packed);
      write_outputs(now, n - 1, packed);
    }
  }
  __device__ __forceinline__ void finish_outputs(uint32_t (&packed)[16]) {
#pragma unroll
    for (int i = 0; i < 16; ++i) packed[i] = pack<Half::bf16>(o[2 * i], o[2 * i + 1]);
    if (a.l2) return;  // A and Q are below 1 then: only U and S can leave the range, and the state keeps that
#pragma unroll
    for (int i = 0; i < 16; ++i) asm("fma.rn.bf16x2 %0, %1, %2, %0;" : "+r"(poison) : "r"(packed[i]), "r"(0));
  }
};

__device__ __forceinline__ const char* record_at(const Workspace& w, int h, int chunk) {
  return w.record + (static_cast<int64_t>(h) * w.chunk_cap + chunk) * kRecordBytes;
}
__device__ __forceinline__ float* state_at(const Workspace& w, const Args& a, int segment, int h) {
  return w.h + (static_cast<int64_t>(segment) * a.H + h) * kStateFloats;
}
__device__ __forceinline__ char* matrix_at(const Workspace& w, const Args& a, int segment, int h) {
  return w.M + (static_cast<int64_t>(segment) * a.H + h) * kMatrixBytes;
}

// Both parts of 64 rows as tiles, at `to` in shared memory.
__device__ __forceinline__ void tile_rows(const Lane& at, uint32_t to, const uint32_t (&rows)[16]) {
  const int row = at.warp * 16 + ((at.id >> 3) & 1) * 8 + (at.id & 7);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int piece = 2 * i + (at.id >> 4);
    cuda::store_matrices(to + row * 128 + ((piece ^ (row & 7)) << 4), rows[4 * i], rows[4 * i + 1], rows[4 * i + 2],
                         rows[4 * i + 3]);
  }
}
// Rows of M as tiles of 64 rows: the high parts of all rows, then the low ones. They pass through the ring, which
// nobody uses any more.
__device__ __forceinline__ void store_matrix(const Lane& at, uint32_t shared, char* to, const State& s) {
  named_barrier(3, 256);
  const uint32_t place = shared + at.group * 16384;
  uint32_t high[16], low[16];
  pack_rows(s.low, high), pack_rest(s.low, high, low);
  tile_rows(at, place, high), tile_rows(at, place + 32768, low);
  pack_rows(s.high, high), pack_rest(s.high, high, low);
  tile_rows(at, place + 8192, high), tile_rows(at, place + 32768 + 8192, low);
  cuda::fence_shared_for_bulk();
  named_barrier(3, 256);
  if (threadIdx.x == 0) {
    cuda::bulk_store(to, shared, kMatrixBytes);
    cuda::bulk_commit();
    cuda::bulk_wait<0>();
  }
}

#define KDELTA_COPY_WARP asm volatile("setmaxnreg.dec.sync.aligned.u32 40;")
#define KDELTA_CHAIN_WARPS asm volatile("setmaxnreg.inc.sync.aligned.u32 232;")

__global__ void __launch_bounds__(kThreads, 1)
    scan_kernel(const __grid_constant__ Args a, const __grid_constant__ Workspace w) {
  using L = Layout<false>;
  const auto ring = make_ring<typename L::RingType>();
  cuda::pdl_wait();
  cuda::pdl_trigger();
  const int item = static_cast<int>(blockIdx.x) / a.H, h = static_cast<int>(blockIdx.x) % a.H;
  if (item >= w.plan->scans) return;
  const ScanItem scan = w.scan[item];
  const Segment segment = w.segment[scan.segment];
  if (threadIdx.x >= 256) {
    KDELTA_COPY_WARP;
    if (threadIdx.x == 256) {
      Turn t;
      for (int i = 0; i < segment.chunks; ++i, t = ring.after(t)) {
        const char* record = record_at(w, h, segment.chunk + i);
        const uint32_t to = ring.address(t), bar = ring.claim(t, scan.matrix ? kScanBytes : kScanBytes + 16384);
        cuda::bulk_load(to, record, kScanBytes, bar);
        if (!scan.matrix) cuda::bulk_load(to + L::kU, record + kRecordU, 16384, bar);
      }
    }
  } else {
    KDELTA_CHAIN_WARPS;
    Chain<false> chain{a, w, Lane{}, ring, scan.matrix != 0, false, h};
    if (scan.matrix) {
      for_each_pair(chain.at, chain.s, [&](int row, int column, float& x, float& y) {
        x = row == column ? 1.0f : 0.0f, y = row == column + 1 ? 1.0f : 0.0f;
      });
    } else if (segment.index == 0) {
      load_start(a, w, chain.at, segment.sequence, h, chain.s);
      store_workspace(chain.at, state_at(w, a, scan.segment + segment.count - 1, h), chain.s);
    } else {
#pragma unroll
      for (int i = 0; i < 32; ++i) chain.s.low[i] = chain.s.high[i] = 0;
    }
    chain.run(Turn{}, segment.chunk, segment.chunks, false);
    if (scan.matrix)
      store_matrix(chain.at, ring.base, matrix_at(w, a, scan.segment, h), chain.s);
    else
      store_workspace(chain.at, state_at(w, a, scan.segment, h), chain.s);
  }
}

// S <- h + S M, S and M in two fp16 parts; M lies in the stage. h is in flight while the products run.
__device__ __forceinline__ void compose(const Lane& at, float* h, uint32_t tile, State& s) {
  Packed high, low;
  pack_rows(s.low, high.low), pack_rows(s.high, high.high);
  pack_rest(s.low, high.low, low.low), pack_rest(s.high, high.high, low.high);
  load_workspace(at, h, s);
  State moved;
  cuda::wgmma_fence();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float(&d)[32] = half == 0 ? moved.low : moved.high;
    const uint32_t top = tile + half * (8192 / 16);
    multiply_columns<false>(d, high.low, top);
    multiply_columns<true>(d, high.high, top + 16384 / 16);
    multiply_columns<true>(d, low.low, top);
    multiply_columns<true>(d, low.high, top + 16384 / 16);
    multiply_columns<true>(d, high.low, top + 32768 / 16);
    multiply_columns<true>(d, high.high, top + 49152 / 16);
  }
  cuda::wgmma_commit();
  cuda::wgmma_wait<0>();
  pin(moved.low), pin(moved.high);
#pragma unroll
  for (int i = 0; i < 32; ++i) s.low[i] += moved.low[i], s.high[i] += moved.high[i];
}

__device__ __forceinline__ bool finite(const State& s, uint32_t outputs) {
  float x, y;
  unpack<Half::bf16>(outputs, x, y);
  float poison = x + y;
#pragma unroll
  for (int i = 0; i < 32; ++i) poison = fmaf(s.low[i], 0.0f, fmaf(s.high[i], 0.0f, poison));
  return poison == 0.0f;
}

__global__ void __launch_bounds__(kThreads, 1)
    outputs_kernel(const __grid_constant__ Args a, const __grid_constant__ Workspace w, bool exact) {
  using L = Layout<true>;
  const auto ring = make_ring<typename L::RingType>();
  cuda::pdl_wait();
  cuda::pdl_trigger();
  const int id = static_cast<int>(blockIdx.x) / a.H, h = static_cast<int>(blockIdx.x) % a.H;
  if (id >= w.plan->segments) return;
  const Segment segment = w.segment[id];
  if (segment.flags & kZero) return zero_out(a, segment.begin, segment.len, h, 0, 128);
  const int first = id - segment.index, merges = segment.index > 1 ? segment.index - 1 : 0;
  if (threadIdx.x >= 256) {
    KDELTA_COPY_WARP;
    if (threadIdx.x == 256) {
      Turn t;
      for (int i = 0; i < merges; ++i, t = ring.after(t)) {
        const uint32_t bar = ring.claim(t, kMatrixBytes);
        cuda::bulk_load(ring.address(t), matrix_at(w, a, first + 1 + i, h), kMatrixBytes, bar);
      }
      for (int i = 0; i < segment.chunks; ++i, t = ring.after(t)) {
        const uint32_t bar = ring.claim(t, kRecordBytes);
        cuda::bulk_load(ring.address(t), record_at(w, h, segment.chunk + i), kRecordBytes, bar);
      }
    }
  } else {
    KDELTA_CHAIN_WARPS;
    Chain<true> chain{a, w, Lane{}, ring, false, exact && a.state_bf16, h};
    const int skipped = (segment.chunk - w.prefix[segment.sequence].chunks) * kChunkTokens;
    chain.tokens = segment.len - skipped;
    chain.out = static_cast<__nv_bfloat16*>(a.out) + (segment.begin + skipped) * a.out_token + h * a.out_head +
                chain.at.group * 64 + chain.at.warp * 16;
    if (segment.count == 1)
      load_start(a, w, chain.at, segment.sequence, h, chain.s);
    else
      load_workspace(chain.at, state_at(w, a, segment.index == 0 ? first + segment.count - 1 : first, h), chain.s);
    Turn t;
    for (int i = 0; i < merges; ++i, t = ring.after(t)) {
      ring.wait_full(t);
      compose(chain.at, state_at(w, a, first + 1 + i, h), ring.tile16(t), chain.s);
      ring.release(t);
    }
    if ((segment.flags & kSnapshots) && segment.index == 0)
      chain.store_snapshots(w.sequence_snapshot[segment.sequence]);
    chain.run(t, segment.chunk, segment.chunks, (segment.flags & kSnapshots) != 0);
    const bool whole = finite(chain.s, chain.poison);
    // All 128 threads of the group must agree before its rows of the state are written.
    int all_whole;
    asm volatile(
        "{\n.reg .pred p, q;\nsetp.ne.s32 p, %1, 0;\nbarrier.cta.red.and.pred q, %2, 128, p;\nselp.s32 %0, 1, 0, q;\n}"
        : "=r"(all_whole)
        : "r"(static_cast<int>(whole)), "r"(1 + chain.at.group)
        : "memory");
    if (all_whole) {
      if (segment.index == segment.count - 1) store_pool(a, chain.at, w.sequence[segment.sequence].first, h, chain.s);
    } else if ((threadIdx.x & 127) == 0) {
      uint32_t* listed = w.repaired + (static_cast<int64_t>(segment.sequence) * a.H + h) * 2 + chain.at.group;
      if (atomicExch(listed, 1u) == 0) w.repair[atomicAdd(&w.plan->repairs, 1)] = {segment.sequence, h, chain.at.group};
    }
  }
}

}  // namespace

void launch_scan(const Exec& ex, const Args& a, const Workspace& w) {
  cuda::launch(ex, "kda",
               {.grid = static_cast<unsigned>(w.scan_cap * a.H),
                .block = kThreads,
                .shared_bytes = Layout<false>::kShared,
                .pdl = true},
               scan_kernel, a, w);
}

void launch_outputs(const Exec& ex, const Args& a, const Workspace& w, bool exact) {
  cuda::launch(ex, "kda",
               {.grid = static_cast<unsigned>(w.segment_cap * a.H),
                .block = kThreads,
                .shared_bytes = Layout<true>::kShared,
                .pdl = true},
               outputs_kernel, a, w, exact);
}

}  // namespace kdelta::kda_cuda
