// A row of logits that a team works on: order, selection without a sort, and the place where a cumulated sum passes a
// number. Top-k, top-p and min-p each keep a prefix of the order "larger value, then lower id": one Cut.
#pragma once

#include "kdelta/ops/sample/cuda_team.cuh"

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

inline constexpr int kBins = 2048;

template <int kBlocks>
struct RowShared {
  typename Team<kBlocks>::Shared team;
  uint64_t bin[kBins];
  uint64_t found[3];
  double warp_sum[kWarps];
};

template <int kBlocks>
class Row {
 public:
  // x: this block's slice, ids [begin, begin + n).
  __device__ Row(RowShared<kBlocks>& s, float* slice, int first, int count)
      : team(s.team), x(slice), begin(first), n(count), s_(s) {}

  // The shortest prefix of the order whose weight is at least wanted(weight of all) (>= 1). weight(key, id) is the same
  // for equal keys that weigh anything, and those are the lowest ids of their key. Three passes: 11, 11 and 10 bits.
  template <class Weight, class Wanted>
  __device__ Cut select(Weight&& weight, Wanted&& wanted) {
    uint32_t prefix = 0;
    uint64_t want = 0, before = 0, here = 0;
#pragma unroll 1
    for (int level = 0; level < 3; ++level) {
      const int shift = level == 0 ? 21 : level == 1 ? 10 : 0, bins = level == 2 ? 1024 : 2048;
      for (int b = static_cast<int>(threadIdx.x); b < bins; b += kThreads) s_.bin[b] = 0;
      __syncthreads();
      for (int i = static_cast<int>(threadIdx.x); i < n; i += kThreads) {
        const uint32_t key = key_of(x[i]);
        if (level > 0 && key >> (shift == 10 ? 21 : 10) != prefix) continue;
        const uint64_t w = weight(key, begin + i);
        if (w != 0)
          atomicAdd(reinterpret_cast<unsigned long long*>(&s_.bin[key >> shift & (bins - 1)]),
                    static_cast<unsigned long long>(w));
      }
      Team<kBlocks>::sync();
      cross(bins, level == 0, wanted, want, before, here, prefix);
    }
    const uint64_t each = weight(prefix, 0), ties = each == 0 ? 1 : here / each;
    const uint64_t needed = each == 0 ? 1 : (want - before + each - 1) / each;
    if (needed >= ties) return {prefix, 0x7fffffff};
    const double place = static_cast<double>(needed) - 1;
    return {prefix, locate([&](uint32_t key, int) { return key == prefix ? 1.0 : 0.0; },
                           [&](double) { return place; })};
  }

  // The first id whose weight, added up by rising id, passes target(weight of all); the last that weighs anything when
  // none does; -1 when nothing does.
  template <class Weight, class Target>
  __device__ int locate(Weight&& weight, Target&& target) {
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int share = (n + kThreads - 1) / kThreads * 32, first = min(warp * share, n), last = min(first + share, n);
    const auto at = [&](int i) { return i < last ? weight(key_of(x[i]), begin + i) : 0.0; };
    double sum = 0;
    for (int i = first + lane; i < last; i += 32) sum += at(i);
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (lane == 0) s_.warp_sum[warp] = sum;
    if (threadIdx.x == 0) s_.found[0] = static_cast<uint64_t>(int64_t{-1});
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
      if (pass(s_.warp_sum, goal, before) == warp) {
        const int id = scan_warp(at, first, last, lane, goal, before);
        if (lane == 0) s_.found[0] = static_cast<uint64_t>(static_cast<int64_t>(id));
      }
    }
    Team<kBlocks>::sync();
    const int id = owner < 0 ? -1 : static_cast<int>(static_cast<int64_t>(Team<kBlocks>::peek(&s_.found[0], owner)));
    Team<kBlocks>::sync();  // nobody writes `found` again before all have read it
    return id;
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

  template <class At>
  __device__ int scan_warp(At&& at, int first, int last, int lane, double goal, double before) {
    int fallback = -1;
    for (int base = first; base < last; base += 32) {
      const double w = at(base + lane);
      double sum = w;
#pragma unroll
      for (int offset = 1; offset < 32; offset *= 2) {
        const double other = __shfl_up_sync(0xffffffffu, sum, offset);
        if (lane >= offset) sum += other;
      }
      const unsigned some = __ballot_sync(0xffffffffu, w > 0);
      const unsigned passed = __ballot_sync(0xffffffffu, w > 0 && before + sum > goal);
      if (passed != 0) return begin + base + __ffs(static_cast<int>(passed)) - 1;
      if (some != 0) fallback = begin + base + 31 - __clz(static_cast<int>(some));
      before += __shfl_sync(0xffffffffu, sum, 31);
    }
    return fallback;
  }

  // The bin, from the top, in which the weight reaches `want`. Block r of the team adds up the r-th part of the bins.
  template <class Wanted>
  __device__ void cross(int bins, bool first_level, Wanted&& wanted, uint64_t& want, uint64_t& before, uint64_t& here,
                        uint32_t& prefix) {
    const int part = bins / kBlocks, each = (part + kThreads - 1) / kThreads;
    const int from = static_cast<int>(threadIdx.x) * each, rank = Team<kBlocks>::rank();
    const auto weight_of = [&](int j) {  // j-th bin of the part, from the top
      uint64_t sum = 0;
#pragma unroll
      for (int r = 0; r < kBlocks; ++r) sum += Team<kBlocks>::peek(&s_.bin[bins - 1 - rank * part - j], r);
      return sum;
    };
    uint64_t mine = 0, block = 0, all[kBlocks];
    for (int j = from; j < min(from + each, part); ++j) mine += weight_of(j);
    const uint64_t in_front = team.scan(mine, &block);
    team.gather(block, all);
    if (first_level) {
      uint64_t total = 0;
#pragma unroll
      for (int r = 0; r < kBlocks; ++r) total += all[r];
      want = wanted(total);
    }
    int owner = -1;
    uint64_t sum = before, start = before;
#pragma unroll
    for (int r = 0; r < kBlocks; ++r) {
      if (owner < 0 && sum + all[r] >= want && all[r] > 0) owner = r, start = sum;
      sum += all[r];
    }
    if (owner == rank) {
      uint64_t at = start + in_front;
      for (int j = from; j < min(from + each, part) && at < want; ++j) {
        const uint64_t w = weight_of(j);
        if (at + w >= want) {
          s_.found[0] = static_cast<uint64_t>(bins - 1 - rank * part - j);
          s_.found[1] = at;
          s_.found[2] = w;
          break;
        }
        at += w;
      }
    }
    Team<kBlocks>::sync();
    prefix = prefix * static_cast<uint32_t>(bins) + static_cast<uint32_t>(Team<kBlocks>::peek(&s_.found[0], owner));
    before = Team<kBlocks>::peek(&s_.found[1], owner);
    here = Team<kBlocks>::peek(&s_.found[2], owner);
    Team<kBlocks>::sync();
  }

  RowShared<kBlocks>& s_;
};

}  // namespace kdelta::sample_cuda
