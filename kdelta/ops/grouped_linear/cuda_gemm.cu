// grouped_linear on Hopper for many pairs an expert: tiles of 128 weight rows x up to 256 pairs of one expert on wgmma,
// with the ring of stages and the operands of common/cuda/gemm_sm90.cuh. What is its own: rows of x are gathered from
// wherever they lie, 16 bytes a thread, and a tile multiplies no more columns than it has pairs, in steps of 32, 64,
// 128 and 256.
//
// The tiles are listed by a kernel in front, so the grid has one block a multiprocessor and no idle slots. A kernel
// behind writes zeros for pairs that no expert or no row of x serves.
#include "kdelta/ops/common/cuda/gemm_sm90.cuh"
#include "kdelta/ops/common/cuda/launch.cuh"
#include "kdelta/ops/common/cuda/views.cuh"
#include "kdelta/ops/grouped_linear/cuda_routing.cuh"

namespace kdelta {
namespace {

using namespace cuda;
using namespace grouped;
constexpr int kPlanThreads = 1024, kRestThreads = 256;
// Of a tile, at most. Codes need the registers that twice as many sums would take.
template <DType kFormat>
constexpr int kPairs = kFormat == DType::bf16 ? 256 : 128;

struct TileList {
  int* count;
  int4* tile;  // expert, first pair, pairs
};

// Lists the tiles behind their number. Under wrong boundaries there is none.
__global__ void __launch_bounds__(kPlanThreads) list_tiles(const __grid_constant__ Routing r, TileList list, int most) {
  __shared__ int warp_sum[kPlanThreads / 32];
  pdl_trigger();
  pdl_wait();
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  int base = 0, wrong = 0;
  for (int64_t first = 0; first < r.E; first += kPlanThreads) {
    const int64_t e = first + thread, begin = e < r.E ? r.begin[e] : 0, end = e < r.E ? r.begin[e + 1] : 0;
    wrong = __syncthreads_or(end < begin || (e == 0 && begin != 0) || begin < 0 || end > r.P);
    if (wrong != 0) break;  // nothing of it is listed: the list has room for ascending boundaries alone
    const int tiles = static_cast<int>((end - begin + most - 1) / most);
    int before = tiles;  // in this warp up to and with this expert, then without
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const int left = __shfl_up_sync(0xffffffffu, before, offset);
      if (lane >= offset) before += left;
    }
    if (lane == 31) warp_sum[thread / 32] = before;
    __syncthreads();
    int all = 0;
    before -= tiles;
    for (int w = 0; w < kPlanThreads / 32; ++w) {
      if (w < thread / 32) before += warp_sum[w];
      all += warp_sum[w];
    }
    __syncthreads();
    for (int t = 0; t < tiles; ++t) {
      const int64_t at = begin + int64_t{t} * most;
      list.tile[base + before + t] =
          make_int4(static_cast<int>(e), static_cast<int>(at), static_cast<int>(min(int64_t{most}, end - at)), 0);
    }
    base += all;
  }
  if (thread == 0) {
    *list.count = wrong != 0 ? 0 : base;
    if (wrong != 0) raise(r.faults, Fault::boundaries);
  }
}

struct Gemm {
  CUtensorMap weight_boxes;  // rows of all experts
  Experts experts;
  Routing routing;
  TileList list;
  Rows<const bf16> x;
  ProjectionOut out;
  int64_t expert_rows;  // distance of two experts in rows
  int64_t N, K;
  int row_tiles, steps;
  bool pairs;  // outputs are written two at once

  struct Item {
    int expert, first, count, row;
  };
  __device__ __forceinline__ int items() const { return *list.count * row_tiles; }
  __device__ __forceinline__ Item item(int i) const {
    const int4 tile = list.tile[i / row_tiles];
    return {tile.x, tile.y, tile.z, i % row_tiles * kGemmRows};
  }
  __device__ __forceinline__ int map_row(const Item& x) const {
    return static_cast<int>(x.expert * expert_rows) + x.row;
  }
};

__device__ __forceinline__ void copy16(uint32_t to_shared, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to_shared), "l"(from) : "memory");
}
// Arrives when this thread's copies so far have landed.
__device__ __forceinline__ void arrive_with_copies(uint64_t* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}

__device__ __forceinline__ void copiers_meet() {
  asm volatile("bar.sync 1, 128;" ::: "memory");
}

// The four warps that fill the ring: one thread asks for the weights, all copy rows of x, eight threads a row.
template <class Shape>
__device__ __forceinline__ void copy_tiles(const Gemm& p, uint8_t* ring, uint64_t* full, uint64_t* empty,
                                           int weight_bytes, int32_t* row) {
  const int thread = static_cast<int>(threadIdx.x) % 128, line = thread / 8, chunk = thread % 8;
  RingPlace<Shape::kStages> at;
  for (int i = static_cast<int>(blockIdx.x); i < p.items(); i += static_cast<int>(gridDim.x)) {
    const Gemm::Item item = p.item(i);
    copiers_meet();
    for (int r = thread; r < item.count; r += 128)
      row[r] = static_cast<int32_t>(max(row_of(p.routing, int64_t{item.first} + r), int64_t{0}));
    copiers_meet();
    for (int step = 0; step < p.steps; ++step) {
      barrier_wait(empty + at.stage, at.phase ^ 1);
      uint8_t* stage = ring + at.stage * Shape::kStageBytes;
      if (thread == 0) {
        barrier_expect(full + at.stage, Shape::kWeightBytes);
        tensor_load(stage, p.weight_boxes, step * (Shape::kRowBytes / weight_bytes), p.map_row(item), full + at.stage);
      }
      const uint32_t to = shared_address(stage) + Shape::kWeightBytes + ((chunk ^ (line & 7)) * 16);
      const bf16* from = p.x.data + step * kGemmColumns + chunk * 8;
#pragma unroll 4
      for (int r = line; r < item.count; r += 16) copy16(to + r * 128, from + row[r] * p.x.stride);
      arrive_with_copies(full + at.stage);
      at.advance();
    }
  }
  asm volatile("cp.async.wait_all;" ::: "memory");
}

// One tile of a warpgroup: 64 weight rows x kColumns pairs.
template <DType kFormat, int kColumns, class Shape>
__device__ __forceinline__ void multiply_tile(const Gemm& p, const Gemm::Item& item, uint32_t ring, uint64_t* full,
                                              uint64_t* empty, RingPlace<Shape::kStages>& at) {
  const int group = static_cast<int>(threadIdx.x) / 128, lane = static_cast<int>(threadIdx.x) % 32,
            warp = static_cast<int>(threadIdx.x) / 32 % 4, g = lane / 4, q = lane % 4,
            tile_row = group * 64 + warp * 16 + g;
  float sum[kColumns / 2] = {};
  int previous = -1;
  const auto ready = [&] {
    barrier_wait(full + at.stage, at.phase);
    fence_shared_for_bulk();  // what threads copied is read by the tensor cores
    return ring + at.stage * Shape::kStageBytes;
  };
  // Behind the products of a stage: those of the one before are done, and its memory is free.
  const auto behind = [&] {
    wgmma_commit();
    wgmma_wait<1>();
    if (previous >= 0 && lane == 0) barrier_arrive(empty + previous);
    previous = at.stage;
    at.advance();
  };
  if constexpr (kFormat == DType::bf16) {
    for (int step = 0; step < p.steps; ++step) {
      const uint32_t stage = ready();
      const uint64_t a = wgmma_tile(stage + group * (64 * 128)), b = wgmma_tile(stage + Shape::kWeightBytes);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < 4; ++k) Wgmma<kColumns>::shared(sum, a + 2 * k, b + 2 * k, true);
      behind();
    }
  } else {
    const Expert e = p.experts.at(item.expert);
    CodeOperand<kFormat> codes;
    codes.begin({e.data, e.scale, e.row_bytes, e.scale_row_bytes, p.N}, item.row, p.K, tile_row);
    codes.load_scales(0);
    // The registers of a product in flight must stay: two sets in turn.
    const auto multiply = [&](uint32_t(&a)[4][4], int step) {
      const uint32_t stage = ready();
      const uint64_t b = wgmma_tile(stage + Shape::kWeightBytes);
      codes.unpack(stage, q, a);
      codes.load_scales(step + 1);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < 4; ++k) Wgmma<kColumns>::registers(sum, a[k], b + 2 * k, true);
      behind();
    };
    uint32_t even[4][4], odd[4][4];
    for (int step = 0; step < p.steps; step += 2) {
      multiply(even, step);
      if (step + 1 < p.steps) multiply(odd, step + 1);
    }
  }
  wgmma_wait<0>();
#pragma unroll
  for (int i = 0; i < kColumns / 2; ++i) asm volatile("" : "+f"(sum[i])::"memory");  // no sum is read in front of this
  if (lane == 0) barrier_arrive(empty + previous);
  // A lane turns to two neighbouring outputs of one pair in eight. The code is repeated for each of them: little of it.
  const int64_t first = (int64_t{item.first} + g) * p.out.stride + item.row + tile_row - g + 2 * q;
  const auto store = [&](auto out, auto put) {
    auto* to = static_cast<decltype(out)*>(p.out.data) + first;
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float a = sum[4 * j + 2 * h], b = sum[4 * j + 2 * h + 1];
        transpose8x8(a, b);
        if (8 * j + g < item.count) put(to + 8 * h, a, b);
      }
      to += 8 * p.out.stride;
    }
  };
  if (p.pairs)
    store(bf16{}, [](bf16* to, float a, float b) { *reinterpret_cast<uint32_t*>(to) = pack_bf16(a, b); });
  else if (p.out.bf16)
    store(bf16{}, [](bf16* to, float a, float b) { to[0] = from_f32<bf16>(a), to[1] = from_f32<bf16>(b); });
  else
    store(float{}, [](float* to, float a, float b) { to[0] = a, to[1] = b; });
}

template <DType kFormat>
__global__ void __launch_bounds__(kGemmThreads, 1) multiply_pairs(const __grid_constant__ Gemm p) {
#if __CUDA_ARCH_FEAT_SM90_ALL
  using Shape = GemmShape<kFormat, kPairs<kFormat>>;
  extern __shared__ uint8_t dynamic[];
  __shared__ uint64_t full[Shape::kStages], empty[Shape::kStages];
  __shared__ int32_t row[kPairs<kFormat>];
  uint8_t* const ring = dynamic + (1024 - shared_address(dynamic) % 1024) % 1024;
  if (threadIdx.x == 0) {
    for (int s = 0; s < Shape::kStages; ++s) barrier_init(full + s, 1 + 128), barrier_init(empty + s, 8);
    fence_barrier_init();
  }
  __syncthreads();
  pdl_trigger();
  pdl_wait();
  if (threadIdx.x >= 256) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
    copy_tiles<Shape>(p, ring, full, empty, kFormat == DType::bf16 ? 2 : 1, row);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 224;");
    RingPlace<Shape::kStages> at;
    for (int i = static_cast<int>(blockIdx.x); i < p.items(); i += static_cast<int>(gridDim.x)) {
      const Gemm::Item item = p.item(i);
      const uint32_t address = shared_address(ring);
      if (item.count <= 32)
        multiply_tile<kFormat, 32, Shape>(p, item, address, full, empty, at);
      else if (item.count <= 64)
        multiply_tile<kFormat, 64, Shape>(p, item, address, full, empty, at);
      else if (kPairs<kFormat> == 128 || item.count <= 128)
        multiply_tile<kFormat, 128, Shape>(p, item, address, full, empty, at);
      else if constexpr (kPairs<kFormat> == 256)
        multiply_tile<kFormat, 256, Shape>(p, item, address, full, empty, at);
    }
  }
#endif
}

// Zeros for pairs past the experts' (all of them when no tile was listed though there are experts' pairs: wrong
// boundaries), and for those whose row is none of x's.
__global__ void __launch_bounds__(kRestThreads) zero_unserved(const __grid_constant__ Routing r, TileList list,
                                                              const __grid_constant__ ProjectionOut out, int64_t N) {
  pdl_trigger();
  pdl_wait();
  const int64_t served = *list.count == 0 ? 0 : r.begin[r.E];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int64_t first = (int64_t{blockIdx.x} * kRestThreads + threadIdx.x) / 32 * 32; first < r.P;
       first += int64_t{gridDim.x} * kRestThreads) {
    const int64_t p = first + lane;
    bool unserved = p < r.P && p >= served;
    if (p < served && r.row != nullptr) unserved = r.row[p] < 0 || r.row[p] >= r.R;
    if (p < served && r.row == nullptr) unserved = p >= r.R;
    for (unsigned left = __ballot_sync(0xffffffffu, unserved); left != 0; left &= left - 1)
      for (int64_t n = lane; n < N; n += 32) out.put(first + __ffs(static_cast<int>(left)) - 1, n, 0);
  }
}

template <DType kFormat>
void run(const Exec& ex, const GroupedLinearArgs& a, const GroupedLinearDesc& d, Gemm& p) {
  using Shape = GemmShape<kFormat, kPairs<kFormat>>;
  const Matrix& w = a.w[0];
  p.weight_boxes = tensor_map(ex.device, w.data, kFormat == DType::bf16, kFormat == DType::f4_e2m1 ? d.K / 2 : d.K,
                              (d.E - 1) * p.expert_rows + d.N, w.row_bytes, Shape::kRowBytes, kGemmRows);
  launch(ex, "grouped_linear",
         {.grid = static_cast<unsigned>(d.target.multiprocessors),
          .block = kGemmThreads,
          .shared_bytes = Shape::kSharedBytes,
          .pdl = true},
         multiply_pairs<kFormat>, p);
}

}  // namespace

void grouped_linear_cuda_gemm(const Exec& ex, const GroupedLinearArgs& a, const GroupedLinearDesc& d, void* scratch) {
  if (d.P == 0 || d.N == 0) return;
  auto* tiles = static_cast<int4*>(scratch);
  Gemm p{.experts = experts_of(ex, a.w, nullptr),
         .routing = routing_of(ex, a, d, gemm_pairs(d.w)),
         .list = {reinterpret_cast<int*>(tiles), tiles + 1},
         .x = rows<const bf16>(a.x),
         .out = projection_out(a.out, {}),
         .N = d.N,
         .K = d.K,
         .row_tiles = static_cast<int>((d.N + kGemmRows - 1) / kGemmRows),
         .steps = static_cast<int>(d.K / kGemmColumns)};
  p.expert_rows = p.experts.data_step / a.w[0].row_bytes;
  p.pairs = d.out == DType::bf16 && reinterpret_cast<uintptr_t>(a.out.data) % 4 == 0 && a.out.stride[0] % 2 == 0;
  launch(ex, "grouped_linear", {.grid = 1, .block = kPlanThreads, .pdl = pdl_pays(d.target, 1)}, list_tiles, p.routing,
         p.list, static_cast<int>(gemm_pairs(d.w)));
  if (p.routing.R > 0)
    dispatch_weights(d.w, [&](auto format) {
      if constexpr (format() != DType::f32) run<format()>(ex, a, d, p);
    });
  launch(ex, "grouped_linear",
         {.grid = grid_of(d.P, kRestThreads, d.target.multiprocessors), .block = kRestThreads, .pdl = true},
         zero_unserved, p.routing, p.list, p.out, d.N);
}

}  // namespace kdelta
