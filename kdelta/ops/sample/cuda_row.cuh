// A row of logits that a team works on: order, selection without a sort, and the place where a cumulated sum passes a
// number. Top-k, top-p and min-p each keep a prefix of the order "larger value, then lower id": one Cut.
#pragma once

#include "kdelta/ops/sample/cuda_list.cuh"

namespace kdelta::sample_cuda {

// Larger numbers have larger keys. No NaN, no -0.
__device__ __forceinline__ uint32_t key_of(float x) {
  const uint32_t bits = __float_as_uint(x);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float value_of(uint32_t key) {
  return __uint_as_float((key & 0x80000000u) != 0 ? key & 0x7fffffffu : ~key);
}
// One word whose order is the order of tokens.
__device__ __forceinline__ uint64_t pack(float x, int id) {
  return static_cast<uint64_t>(key_of(x)) << 32 | ~static_cast<uint32_t>(id);
}
__device__ __forceinline__ int id_of(uint64_t packed) {
  return static_cast<int>(~static_cast<uint32_t>(packed));
}
__device__ __forceinline__ float value_of(uint64_t packed) {
  return value_of(static_cast<uint32_t>(packed >> 32));
}
__device__ __forceinline__ float positive_zero(float x) {
  return x == 0 ? 0.0f : x;
}

// The last token that stays.
struct Cut {
  uint32_t key = 0;
  int id = 0x7fffffff;
  __device__ __forceinline__ bool keeps(uint32_t k, int i) const { return k > key || (k == key && i <= id); }
};

inline constexpr int kBins = 256;

template <int kBlocks>
struct RowShared {
  typename Team<kBlocks>::Shared team;
  uint64_t bin[2][kBins];  // in turn: one may be read by others while the next is filled
  uint64_t found[3];
  uint64_t place[2];  // in turn
  double warp_sum[kWarps];
  uint64_t list[kListed];  // of the first block
  int listed;
};

template <int kBlocks>
class Row {
 public:
  // x: this block's slice, ids [begin, begin + n).
  __device__ Row(RowShared<kBlocks>& s, float* slice, int first, int count)
      : team(s.team), x(slice), begin(first), n(count), s_(s) {}

  // Where the weight, added up from the first bin on, reaches `want`: the bin, the weight in front of it and its own.
  struct Crossing {
    int bin;
    uint64_t before, here, want;
  };
  // elements(f) calls f(bin, weight) for the thread's share. wanted(weight of all) is cut to what there is.
  template <class Elements, class Wanted>
  __device__ Crossing cross(Elements&& elements, Wanted&& wanted) {
    uint64_t* bin = s_.bin[bin_turn_];
    bin_turn_ ^= 1;
    for (int b = static_cast<int>(threadIdx.x); b < kBins; b += kThreads) bin[b] = 0;
    __syncthreads();
    elements([&](int b, uint64_t weight) {
      if (weight != 0) add(bin + b, weight);
    });
    Team<kBlocks>::sync();
    uint64_t mine = 0, total = 0;
    const int b = static_cast<int>(threadIdx.x);
    if (b < kBins)
#pragma unroll
      for (int r = 0; r < kBlocks; ++r) mine += Team<kBlocks>::peek(bin + b, r);
    const uint64_t before = team.scan(mine, &total), want = min(wanted(total), total);
    if (before < want && want <= before + mine)
      s_.found[0] = static_cast<uint64_t>(b), s_.found[1] = before, s_.found[2] = mine;
    __syncthreads();
    const Crossing c{static_cast<int>(s_.found[0] & 255), s_.found[1], s_.found[2], want};
    __syncthreads();
    return c;
  }

  // The shortest prefix of the order whose weight is at least wanted(weight of all). Keys below `floor` do not matter;
  // weight(key, id) is the same for equal keys that weigh anything, and those are the lowest ids of their key.
  template <class Weight>
  __device__ Cut select(uint32_t floor, Weight&& weight, uint64_t wanted) {
    uint32_t prefix = 0;
    uint64_t want = wanted, here = 0;
#pragma unroll 1
    for (int shift = 24; shift >= 0; shift -= 8) {
      const Crossing c = cross(
          [&](auto&& f) {
            for (int i = static_cast<int>(threadIdx.x); i < n; i += kThreads) {
              const uint32_t key = key_of(x[i]);
              if (key < floor || (shift < 24 && key >> (shift + 8 & 31) != prefix)) continue;
              f(static_cast<int>(255 - (key >> shift & 255)), weight(key, begin + i));
            }
          },
          [&](uint64_t) { return want; });
      prefix = prefix << 8 | static_cast<uint32_t>(255 - c.bin);
      want -= min(c.before, want - 1);
      here = c.here;
    }
    const uint64_t each = weight(prefix, 0), ties = each == 0 ? 1 : here / each;
    const uint64_t needed = each == 0 ? 1 : (want + each - 1) / each;
    if (needed >= ties) return {prefix, 0x7fffffff};
    const double place = static_cast<double>(needed) - 1;
    return {prefix,
            locate([&](uint32_t key, int) { return key == prefix ? 1.0 : 0.0; }, [&](double) { return place; })};
  }

  // A key below which none of the k best tokens lies, k < vocabulary; 0 when that would take longer than it saves.
  // `own`: the largest key of this thread, `largest`: of all. The k-th of the threads' is no larger than the k-th of
  // all.
  __device__ uint32_t floor_of(uint64_t k, uint32_t own, uint32_t largest) {
    if (k > kBlocks * kThreads / 4) return 0;
    constexpr int kShift = 16;  // 256 bins span two powers of two below the largest
    const Crossing c = cross([&](auto&& f) { f(static_cast<int>(min(largest - own >> kShift, 255u)), 1); },
                             [&](uint64_t) { return k; });
    const uint32_t reach = static_cast<uint32_t>(c.bin + 1) << kShift;
    return c.bin < 255 && reach <= largest ? largest - reach : 0;
  }
  __device__ Cut best(uint64_t k, uint32_t floor) {
    return select(
        floor, [](uint32_t, int) { return uint64_t{1}; }, k);
  }

  // The tokens of which take(logit, id) holds to the first block's list, in no order: how many; -1, and nothing is
  // written, when the list does not hold them.
  template <class Take>
  __device__ int collect(Take&& take) {
    uint64_t mine = 0, block = 0, all[kBlocks];
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x); i < n; i += kThreads) mine += take(x[i], begin + i) ? 1 : 0;
    uint64_t place = team.scan(mine, &block), total = 0;
    team.gather(block, all);
#pragma unroll
    for (int r = 0; r < kBlocks; ++r) {
      if (r < Team<kBlocks>::rank()) place += all[r];
      total += all[r];
    }
    if (total > kListed) return -1;
    if (mine > 0)
      for (int i = static_cast<int>(threadIdx.x); i < n; i += kThreads)
        if (take(x[i], begin + i)) Team<kBlocks>::poke(s_.list + place++, 0, pack(x[i], begin + i));
    Team<kBlocks>::sync();
    return static_cast<int>(total);
  }
  // The word that first(list), run by the first block alone, gives: for all.
  template <class First>
  __device__ uint64_t ask_list(First&& first) {
    uint64_t* place = &s_.place[place_turn_];
    place_turn_ ^= 1;
    if (Team<kBlocks>::rank() == 0) {
      const uint64_t word = first(s_.list);
      if (threadIdx.x == 0) *place = word;
    }
    Team<kBlocks>::sync();
    return Team<kBlocks>::peek(place, 0);
  }
  // Of the first n words of the list, in their order, the one at which the sum of weights passes target(all of it); as
  // locate(). The first block alone.
  template <class Weight, class Target>
  __device__ int locate_listed(int n_listed, Weight&& weight, Target&& target) {
    const auto at = [&](int i) { return i < n_listed ? weight(s_.list[i]) : 0.0; };
    double sum = 0;
    for (int i = static_cast<int>(threadIdx.x); i < n_listed; i += kThreads) sum += at(i);
    const double total = team.in_block(sum, [](double a, double b) { return a + b; });
    if (threadIdx.x == 0) s_.listed = -1;
    __syncthreads();
    if (total > 0) scan_block(at, 0, n_listed, target(total), 0, [&](int i) { s_.listed = i; });
    __syncthreads();
    return s_.listed;
  }

  // The first id whose weight, added up by rising id, passes target(weight of all); the last that weighs anything when
  // none does; -1 when nothing does.
  template <class Weight, class Target>
  __device__ int locate(Weight&& weight, Target&& target) {
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int share = (n + kThreads - 1) / kThreads * 32, first = min(warp * share, n), last = min(first + share, n);
    const auto at = [&](int i) { return i < last ? weight(key_of(x[i]), begin + i) : 0.0; };
    double sum = 0;
#pragma unroll 4
    for (int i = first + lane; i < last; i += 32) sum += at(i);
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (lane == 0) s_.warp_sum[warp] = sum;
    uint64_t* place = &s_.place[place_turn_];
    place_turn_ ^= 1;
    __syncthreads();
    double mine = 0, all[kBlocks], total = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) mine += s_.warp_sum[w];
    team.gather(mine, all);
#pragma unroll
    for (int r = 0; r < kBlocks; ++r) total += all[r];
    const double goal = target(total);
    double before = 0;
    const int owner = pass(all, goal, before);
    if (owner == Team<kBlocks>::rank()) {
      const int there = pass(s_.warp_sum, goal, before);
      const int from = min(there * share, n), to = min(from + share, n);
      __syncthreads();  // the sums are read
      scan_block([&](int i) { return i < to ? weight(key_of(x[i]), begin + i) : 0.0; }, from, to, goal, before,
                 [&](int i) { *place = static_cast<uint64_t>(static_cast<int64_t>(begin + i)); });
    }
    Team<kBlocks>::sync();
    return owner < 0 ? -1 : static_cast<int>(static_cast<int64_t>(Team<kBlocks>::peek(place, owner)));
  }

  Team<kBlocks> team;
  float* x;
  int begin, n;

 private:
  // Index of the part in which the sum passes the goal; adds the parts in front of it to `before`.
  template <int kParts>
  __device__ static int pass(const double (&part)[kParts], double goal, double& before) {
    int found = -1;
    double sum = before;  // in front of part i
    bool passed = false;
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      if (!passed && part[i] > 0) {
        found = i;
        before = sum;
        passed = sum + part[i] > goal;
      }
      sum += part[i];
    }
    return found;
  }

  // Sum of lower lanes and this one.
  __device__ static double warp_scan(double x, int lane) {
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const double other = __shfl_up_sync(0xffffffffu, x, offset);
      if (lane >= offset) x += other;
    }
    return x;
  }
  // In [first, last): first the warp that holds the place, then the lane, a run of indices for each, then the index,
  // with which one thread calls found(), if any weighs anything. All of the block.
  template <class At, class Found>
  __device__ void scan_block(At&& at, int first, int last, double goal, double before, Found&& found) {
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int each = (last - first + kThreads - 1) / kThreads, mine_from = first + static_cast<int>(threadIdx.x) * each;
    double mine = 0;
    for (int i = 0; i < each; ++i) mine += at(mine_from + i);
    const double sum = warp_scan(mine, lane);
    if (lane == 31) s_.warp_sum[warp] = sum;
    __syncthreads();
    if (pass(s_.warp_sum, goal, before) != warp) return;
    const unsigned some = __ballot_sync(0xffffffffu, mine > 0);
    const unsigned passed = __ballot_sync(0xffffffffu, mine > 0 && before + sum > goal);
    const int owner = passed != 0 ? __ffs(static_cast<int>(passed)) - 1 : 31 - __clz(static_cast<int>(some));
    if (lane != owner) return;
    before += sum - mine;
    int index = -1;
    for (int i = 0; i < each; ++i) {
      const double w = at(mine_from + i);
      if (w <= 0) continue;
      index = mine_from + i;
      before += w;
      if (before > goal) break;
    }
    found(index);
  }

  // Two words of 32 bits: such additions the memory does itself.
  __device__ static void add(uint64_t* to, uint64_t x) {
    auto* word = reinterpret_cast<uint32_t*>(to);
    const auto low = static_cast<uint32_t>(x), high = static_cast<uint32_t>(x >> 32);
    const uint32_t old = atomicAdd(word, low), carry = old + low < old ? 1 : 0;
    if (high + carry != 0) atomicAdd(word + 1, high + carry);
  }

  int bin_turn_ = 0, place_turn_ = 0;
  RowShared<kBlocks>& s_;
};

}  // namespace kdelta::sample_cuda
