// short_conv on CUDA. A thread owns four channels: taps and window of more do not fit its registers. A block runs over
// a tile of prefill tokens (or zeroes what belongs to nobody), or over a whole decode row. The tile with the first
// token of a prefill row also takes those of the next W-2 that lie in the next tile, so it alone reads the row's
// window, and it stores the new one when it is done: from the inputs, wherever they lie.
#include "kdelta/ops/common/alignment.h"
#include "kdelta/ops/common/cuda/device.cuh"
#include "kdelta/ops/common/cuda/launch.cuh"
#include "kdelta/ops/common/cuda/math.cuh"
#include "kdelta/ops/common/cuda/sequences.cuh"
#include "kdelta/ops/common/cuda/views.cuh"
#include "kdelta/ops/common/dispatch.h"
#include "kdelta/ops/short_conv/variants.h"

namespace kdelta {
namespace {

using namespace cuda;

constexpr int kThreads = 192, kBlocksPerMultiprocessor = 4;
constexpr int kOwn = 4;  // channels
template <bool kAligned>
constexpr int kTogether = kAligned ? 8 : 1;  // tokens in flight before the first is used

// Up to four elements as they lie in memory.
template <bool kAligned, class E>
struct Quad {
  std::conditional_t<sizeof(E) == 2, uint2, uint4> word;

  __device__ __forceinline__ void load(const E* p, int64_t n) {
    if constexpr (kAligned) {
      word = *reinterpret_cast<const decltype(word)*>(p);
    } else {
      E* element = reinterpret_cast<E*>(&word);
#pragma unroll
      for (int i = 0; i < kOwn; ++i) element[i] = i < n ? p[i] : E{};
    }
  }
  __device__ __forceinline__ void store(E* p, int64_t n) const {
    if constexpr (kAligned) {
      *reinterpret_cast<decltype(word)*>(p) = word;
    } else {
      const E* element = reinterpret_cast<const E*>(&word);
#pragma unroll
      for (int i = 0; i < kOwn; ++i)
        if (i < n) p[i] = element[i];
    }
  }
  __device__ __forceinline__ void unpack(float (&x)[kOwn]) const {
    if constexpr (sizeof(E) == 4) {
      x[0] = __uint_as_float(word.x), x[1] = __uint_as_float(word.y);
      x[2] = __uint_as_float(word.z), x[3] = __uint_as_float(word.w);
    } else {
      x[0] = low_bf16(word.x), x[1] = high_bf16(word.x), x[2] = low_bf16(word.y), x[3] = high_bf16(word.y);
    }
  }
  __device__ __forceinline__ void pack(const float (&x)[kOwn]) {
    if constexpr (sizeof(E) == 4)
      word = make_uint4(__float_as_uint(x[0]), __float_as_uint(x[1]), __float_as_uint(x[2]), __float_as_uint(x[3]));
    else
      word = make_uint2(pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]));
  }
};

template <class E>
struct Params {
  Rows<const E> x;
  const float* weight;
  int64_t weight_stride;
  SequenceArrays seq;
  E* state;
  int64_t slot_stride, slots;
  Rows<E> out[3];
  int64_t part;  // channels of one output
  int64_t T, C;
  int64_t tile;  // tokens of a block
  bool silu;
  uint32_t* faults;

  __device__ __forceinline__ E* window(int32_t slot, int64_t row, int64_t c) const {
    return state + slot * slot_stride + row * C + c;
  }
};

template <int W, bool kAligned, class E>
struct Channels {
  const Params<E>& p;
  int64_t c, n;  // the first channel, and how many from it on
  Rows<E> out;   // of the first channel
  float weight[W][kOwn];

  __device__ Channels(const Params<E>& params)
      : p(params), c((int64_t{blockIdx.x} * kThreads + threadIdx.x) * kOwn), n(p.C - c) {
    const int part = static_cast<int>(c) / static_cast<int>(p.part);  // aligned: all four lie in one part
    if (n > 0) out = {p.out[part].data + (c - part * p.part), p.out[part].stride};
    if (n > 0)
#pragma unroll
      for (int j = 0; j < W; ++j) {
        Quad<kAligned, float> taps;
        taps.load(p.weight + j * p.weight_stride + c, n);
        taps.unpack(weight[j]);
      }
  }

  __device__ __forceinline__ void put(int64_t t, const float (&y)[kOwn]) const {
    Quad<kAligned, E> raw;
    raw.pack(y);
    if constexpr (kAligned) {
      raw.store(out.at(t), n);
    } else {
      const E* element = reinterpret_cast<const E*>(&raw.word);
#pragma unroll
      for (int i = 0; i < kOwn; ++i)
        if (i < n) p.out[(c + i) / p.part].at(t)[(c + i) % p.part] = element[i];
    }
  }
  __device__ __forceinline__ void zero(int64_t begin, int64_t end) const {
    const float zeros[kOwn] = {};
    if (n > 0)
      for (int64_t t = max(begin, int64_t{0}); t < min(end, p.T); ++t) put(t, zeros);
  }

  // Input i of sequence `row`; a negative i is before this call: the window, or zero for a fresh sequence.
  __device__ __forceinline__ Quad<kAligned, E> input(int row, int64_t i) const {
    Quad<kAligned, E> raw{};
    if (i >= 0)
      raw.load(p.x.at(p.seq.begin(row) + i) + c, n);
    else if (p.seq.fresh[row] == 0)
      raw.load(p.window(p.seq.slot_at(row, 0), p.seq.accepted[row] - 1 + W - 1 + i, c), n);
    return raw;
  }

  // Inputs [from, to) of the sequence; kStore also puts them into the window behind the last W-2 of history.
  template <bool kStore>
  __device__ __forceinline__ void run(int row, int64_t from, int64_t to) const {
    if (n <= 0) return;
    const int64_t begin = p.seq.begin(row);
    float past[W - 1][kOwn];
    Quad<kAligned, E> history[W - 1];
#pragma unroll
    for (int j = 0; j < W - 1; ++j) history[j] = input(row, from - (W - 1) + j);
#pragma unroll
    for (int j = 0; j < W - 1; ++j) {
      history[j].unpack(past[j]);
      if (kStore && j > 0) history[j].store(p.window(p.seq.slot_at(row, 0), j - 1, c), n);
    }
    constexpr int K = kTogether<kAligned>;
    auto take = [&](int64_t i, int64_t count) {  // of K at most, known to be K where it is
      Quad<kAligned, E> raw[K];
#pragma unroll
      for (int k = 0; k < K; ++k)
        if (k < count) raw[k].load(p.x.at(begin + i + k) + c, n);
#pragma unroll
      for (int k = 0; k < K; ++k) {
        if (k >= count) break;
        float x[kOwn], y[kOwn];
        raw[k].unpack(x);
#pragma unroll
        for (int e = 0; e < kOwn; ++e) {
          y[e] = 0;
#pragma unroll
          for (int j = 0; j < W - 1; ++j) y[e] = fmaf(weight[j][e], past[j][e], y[e]);
          y[e] = fmaf(weight[W - 1][e], x[e], y[e]);
        }
        if (p.silu)
#pragma unroll
          for (int e = 0; e < kOwn; ++e) y[e] = y[e] * (sizeof(E) == 4 ? sigmoid<true>(y[e]) : sigmoid_flushed(y[e]));
        put(begin + i + k, y);
        if constexpr (kStore) raw[k].store(p.window(p.seq.slot_at(row, 0), W - 2 + i + k, c), n);
#pragma unroll
        for (int j = 0; j < W - 2; ++j)
#pragma unroll
          for (int e = 0; e < kOwn; ++e) past[j][e] = past[j + 1][e];
#pragma unroll
        for (int e = 0; e < kOwn; ++e) past[W - 2][e] = x[e];
      }
    };
    int64_t i = from;
    for (; i + K <= to; i += K) take(i, K);
    if (i < to) take(i, to - i);
  }
};

// The lowest row whose tokens hold t; count when none does. A barrier on both sides.
__device__ __forceinline__ int row_of_token(const SequenceArrays& s, int64_t t, int* shared) {
  if (threadIdx.x == 0) *shared = s.count;
  __syncthreads();
  for (int n = static_cast<int>(threadIdx.x); n < s.count; n += kThreads)
    if (s.cu[n] <= t && t < s.cu[n + 1]) atomicMin(shared, n);
  __syncthreads();
  const int found = *shared;
  __syncthreads();
  return found;
}

template <int W, bool kAligned, class E>
__device__ __forceinline__ void decode_row(const Params<E>& p, const Channels<W, kAligned, E>& mine, int row) {
  const SequenceArrays& s = p.seq;
  if (s.length(row) == 0) return;
  const bool padding = s.slot_at(row, 0) == -1;
  if (padding || row_is_faulty<SlotColumns::first>(s, row, p.T, p.slots, p.faults))
    mine.zero(s.begin(row), s.cu[row + 1]);
  else
    mine.template run<true>(row, 0, s.length(row));
}

// The W-1 inputs that end before input `end` of the sequence, to rows 0.. of a slot.
template <int W, bool kAligned, class E>
__device__ __forceinline__ void store_window(const Params<E>& p, const Channels<W, kAligned, E>& mine, int row,
                                             int64_t end, int32_t slot) {
  if (mine.n <= 0) return;
  Quad<kAligned, E> x[W - 1];
#pragma unroll
  for (int j = 0; j < W - 1; ++j) x[j] = mine.input(row, end - (W - 1) + j);
#pragma unroll
  for (int j = 0; j < W - 1; ++j) x[j].store(p.window(slot, j, mine.c), mine.n);
}

// What a prefill row leaves behind: its snapshots, which still start from its old window, then the new one.
template <int W, bool kAligned, class E>
__device__ __forceinline__ void store_windows(const Params<E>& p, const Channels<W, kAligned, E>& mine, int row) {
  const SequenceArrays& s = p.seq;
  for (int q = 0; q < s.snapshots; ++q) {
    const int32_t* entry = s.snapshot + q * s.snapshot_stride;
    if (entry[2] == -1 || entry[0] != row) continue;
    const bool faulty = threadIdx.x == 0 && snapshot_faults<SlotColumns::first>(s, q, p.slots) != 0;
    if (__syncthreads_or(faulty) == 0) store_window(p, mine, row, entry[1], entry[2]);
  }
  store_window(p, mine, row, s.length(row), s.slot_at(row, 0));
}

template <int W, bool kAligned, class E>
__device__ __forceinline__ void prefill_part(const Params<E>& p, const Channels<W, kAligned, E>& mine, int row,
                                             int64_t from, int64_t to) {
  const int64_t len = p.seq.length(row), alone = min(int64_t{W - 1}, len);  // tokens that read the window
  if (from == 0) {
    mine.template run<false>(row, 0, max(to, alone));
    store_windows(p, mine, row);
  } else {
    __shared__ int found;
    if (from < alone && row_of_token(p.seq, p.seq.begin(row), &found) == row)
      from = alone;  // the tile before took them
    mine.template run<false>(row, from, to);
  }
}

template <int W, bool kAligned, class E>
__device__ __forceinline__ void token_tile(const Params<E>& p, const Channels<W, kAligned, E>& mine, int64_t first) {
  __shared__ int found;
  const SequenceArrays& s = p.seq;
  const int64_t last = min(first + p.tile, p.T);
  for (int64_t t = first; t < last;) {
    const int row = row_of_token(s, t, &found);
    int64_t end = last;
    if (row == s.count) {
      if (t < s.cu[s.count]) end = t + 1;  // a hole in a broken cu
      mine.zero(t, end);
    } else {
      end = min(last, int64_t{s.cu[row + 1]});
      if (row >= s.n_live) {
        if (threadIdx.x == 0) raise(p.faults, Fault::boundaries);
        mine.zero(t, end);
      } else if (row < s.n_prefill) {
        const bool padding = s.slot_at(row, 0) == -1;
        if (padding || row_is_faulty<SlotColumns::first>(s, row, p.T, p.slots, p.faults))
          mine.zero(t, end);
        else
          prefill_part(p, mine, row, t - s.begin(row), end - s.begin(row));
      }
    }
    t = end;
  }
}

// The faults of snapshots, whosever they are.
template <class E>
__device__ __forceinline__ void raise_snapshot_faults(const Params<E>& p) {
  const SequenceArrays& s = p.seq;
  for (int q = static_cast<int>(threadIdx.x); q < s.snapshots; q += kThreads) {
    const uint32_t faults = snapshot_faults<SlotColumns::first>(s, q, p.slots);
    if (faults != 0 && p.faults != nullptr) atomicOr(p.faults, faults);
  }
}

template <int W, bool kAligned, class E>
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor) convolve(const __grid_constant__ Params<E> p) {
  pdl_trigger();
  pdl_wait();
  const Channels<W, kAligned, E> mine(p);
  const int decode_rows = p.seq.n_live - p.seq.n_prefill, item = static_cast<int>(blockIdx.y);
  if (item < decode_rows) return decode_row(p, mine, p.seq.n_prefill + item);
  if (item == decode_rows && blockIdx.x == 0) raise_snapshot_faults(p);
  token_tile(p, mine, (item - decode_rows) * p.tile);
}

template <class E>
Params<E> params_of(const Exec& ex, const ShortConvArgs& a) {
  Params<E> p{.x = rows<const E>(a.x),
              .weight = a.weight.data,
              .weight_stride = a.weight.stride[0],
              .seq = sequence_arrays(a.seq),
              .state = static_cast<E*>(a.state.data),
              .slot_stride = a.state.stride[0],
              .slots = a.state.dim(0),
              .part = a.x.dim(1),
              .T = a.x.dim(0),
              .C = a.x.dim(1),
              .silu = a.activation == ConvActivation::silu,
              .faults = ex.faults};
  if (a.out.shape.rank != 0) {
    p.out[0] = rows<E>(a.out);
  } else {
    p.part /= 3;
    for (size_t i = 0; i < 3; ++i) p.out[i] = rows<E>(a.split[i]);
  }
  return p;
}

bool wide(const ShortConvArgs& a) {
  const int64_t part = a.out.shape.rank != 0 ? a.x.dim(1) : a.x.dim(1) / 3;
  return part % kOwn == 0 && all_aligned16(a.x, a.weight, a.state, a.out, a.split[0], a.split[1], a.split[2]);
}

template <class F>
void dispatch_taps(int64_t W, F&& f) {
  switch (W) {
    case 2:
      return f(std::integral_constant<int, 2>{});
    case 3:
      return f(std::integral_constant<int, 3>{});
    case 4:
      return f(std::integral_constant<int, 4>{});
    default:
      KDELTA_UNREACHABLE("taps", W);
  }
}

}  // namespace

void short_conv_cuda(const Exec& ex, const ShortConvArgs& a, const ShortConvDesc& d, void*) {
  const unsigned columns = grid_of(d.channels, kThreads * kOwn);
  // One wave: every multiprocessor gets the same number of tokens.
  const int64_t places = std::max<int64_t>(1, int64_t{d.target.multiprocessors} * kBlocksPerMultiprocessor / columns);
  const int64_t tile = std::max<int64_t>(8, (d.tokens + places - 1) / places);
  const int64_t tiles = std::max<int64_t>((d.tokens + tile - 1) / tile, a.seq.snapshot.null() ? 0 : 1);
  const int64_t items = a.seq.n_decode + tiles;
  dispatch_activation(a.x.dtype, [&](auto element) {
    using E = decltype(element);
    Params<E> p = params_of<E>(ex, a);
    p.tile = tile;
    dispatch_taps(a.weight.dim(0), [&](auto taps) {
      dispatch_bool(wide(a), [&](auto fast) {
        launch(ex, "short_conv",
               {.grid = dim3(columns, static_cast<unsigned>(items)),
                .block = kThreads,
                .pdl = pdl_pays(d.target, columns * items)},
               convolve<taps(), fast(), E>, p);
      });
    });
  });
}

}  // namespace kdelta
