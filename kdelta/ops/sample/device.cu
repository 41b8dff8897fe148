// sample_device on CUDA. A team of blocks takes a row: it reads the logits once into its own memory (a cluster) or
// scratch (one block), changes the few that biases, bans and penalties name, finds the cut that top-k, top-p and min-p
// make, and draws. Probabilities are fp64, so that the tokens are those of the definition.
#include <bit>

#include "kdelta/ops/common/cuda/launch.cuh"
#include "kdelta/ops/common/cuda/views.cuh"
#include "kdelta/ops/sample/cuda_layout.h"
#include "kdelta/ops/sample/cuda_row.cuh"
#include "kdelta/ops/sample/variants.h"

namespace kdelta {
namespace {

using namespace cuda;
using namespace sample_cuda;

constexpr uint64_t kUnusable = ~uint64_t{0};  // above every number of a row
constexpr int kInPrompt = 1 << 30;            // in a count

struct Params {
  Rows<const float> logits;
  const SampleDeviceRow* rows;
  const LogitBias* bias;
  const int32_t* banned;
  int32_t* history;
  int64_t biases, bans, tokens;
  int32_t* token;
  float* logprob;
  Rows<int32_t> top_token;
  Rows<float> top_logprob;
  int V, W, slice;  // slice: ids of a block
  bool aligned;     // slices of rows begin at 16 bytes
  int mass_bits;    // of the largest probability as an integer; the sum of V of them fits 63 bits
  DeviceWork w;
  int64_t first;  // row of the batch
  uint32_t* faults;
};

// Philox4x32-10 as in philox.h.
__device__ double uniform(uint64_t seed, uint64_t index) {
  uint32_t c0 = static_cast<uint32_t>(index), c1 = static_cast<uint32_t>(index >> 32), c2 = 0, c3 = 0;
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint32_t a = __umulhi(0xD2511F53u, c0), a_low = 0xD2511F53u * c0;
    const uint32_t b = __umulhi(0xCD9E8D57u, c2), b_low = 0xCD9E8D57u * c2;
    c0 = b ^ c1 ^ k0, c1 = b_low, c2 = a ^ c3 ^ k1, c3 = a_low;
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
  }
  return static_cast<double>((uint64_t{c1} << 32 | c0) >> 11) * 0x1p-53;
}

// Rounded to fp32; what was finite stays so.
__device__ __forceinline__ float settle(double x) {
  constexpr double kLargest = 3.4028234663852886e38;
  if (x == -INFINITY) return -INFINITY;
  return positive_zero(static_cast<float>(fmin(fmax(x, -kLargest), kLargest)));
}

// exp((x - best) / temperature) for x <= best. To fp64 where a token has a sixteenth of the best one's probability;
// below that to 2^-23, which shows in the sum of many at 1e-8, and 0 below 2^-126. There the exponent is a sum of two
// fp32 numbers: fp64 instructions are what limits a row.
class Weight {
 public:
  __device__ Weight(float best, float temperature) : best_(best), inverse_(1 / static_cast<double>(temperature)) {
    constexpr float kLarge = 1e15f;
    const double rate = inverse_ * 1.4426950408889634;
    high_ = static_cast<float>(rate), low_ = static_cast<float>(rate - static_cast<double>(high_));
    plain_ = fabsf(best) < kLarge && temperature < kLarge && temperature > 1 / kLarge;
  }
  __device__ __forceinline__ double operator()(float x) const {
    const float d = __fsub_rn(x, best_), t = __fmul_rn(d, high_);  // no fused forms: what they lose comes below
    if (!plain_ || t > -4) return exp((static_cast<double>(x) - static_cast<double>(best_)) * inverse_);
    if (!(t > -126)) return 0;
    const float back = d - x, lost = (x - (d - back)) - (best_ + back);  // of the difference
    const float rest = fmaf(d, high_, -t) + fmaf(d, low_, lost * high_), whole = rintf(t);
    const float fraction = exp2f((t - whole) + rest);
    return static_cast<double>(fraction * __int_as_float((127 + static_cast<int>(whole)) << 23));
  }

 private:
  float best_, high_, low_;
  double inverse_;
  bool plain_;
};

// p <= 1 as an integer of `bits` <= 52 bits behind the point, what lies below cut off.
__device__ __forceinline__ uint64_t fixed_point(double p, int bits) {
  const auto word = static_cast<uint64_t>(__double_as_longlong(p));
  const int shift = 1075 - static_cast<int>(word >> 52) - bits;
  return shift > 52 ? 0 : (word & ((uint64_t{1} << 52) - 1) | uint64_t{1} << 52) >> shift;
}

__device__ __forceinline__ bool penalises(const SampleDeviceRow& r) {
  return r.repetition_penalty != 1 || r.presence_penalty != 0 || r.frequency_penalty != 0;
}
__device__ __forceinline__ bool lies_in(int64_t place, int64_t count, int64_t size) {
  return place >= 0 && count >= 0 && place <= size && count <= size - place;
}
__device__ bool places_are_right(const Params& p, const SampleDeviceRow& r) {
  return lies_in(r.bias, r.bias_count, p.biases) && lies_in(r.banned, r.banned_count, p.bans) &&
         (!penalises(r) || (lies_in(r.history, r.prompt, p.tokens) && r.output >= 0 &&
                            lies_in(r.history + r.prompt, r.output, p.tokens)));
}
__device__ bool numbers_are_right(const SampleDeviceRow& r) {
  return r.temperature >= 0 && isfinite(r.temperature) && r.top_p >= 0 && r.top_p <= 1 && r.min_p >= 0 &&
         r.min_p <= 1 && r.repetition_penalty > 0;
}

template <int kBlocks>
class Draw {
 public:
  __device__ Draw(const Params& p, const SampleDeviceRow& r, Row<kBlocks>& row, int64_t m)
      : p_(p), r_(r), row_(row), m_(m), raw_(p.logits.at(m)) {}

  // The token, -1: none.
  __device__ int run() {
    uint64_t best = load();
    if (best == kUnusable || value_of(best) == -INFINITY) return -1;
    raw_best_ = value_of(best);
    if (r_.top_logprobs >= 0) report();
    if (r_.bias_count > 0 || r_.banned_count > 0 || penalises(r_)) {
      best = process();
      if (best == kUnusable || value_of(best) == -INFINITY) return -1;
    }
    if (r_.temperature == 0) return id_of(best);
    return draw(value_of(best));
  }
  __device__ float logprob(int token) const { return logprob_of(raw_[token]); }

 private:
  template <class F>
  __device__ void each(F&& f) const {
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x); i < row_.n; i += kThreads) f(i);
  }
  __device__ uint64_t largest(uint64_t x) {
    own_ = static_cast<uint32_t>(x >> 32);
    return row_.team.reduce(x, [](uint64_t a, uint64_t b) { return a > b ? a : b; });
  }
  __device__ double sum(double x) {
    return row_.team.reduce(x, [](double a, double b) { return a + b; });
  }

  // Copies the slice; the largest, kUnusable with a NaN or +infinity.
  __device__ uint64_t load() {
    uint64_t best = 0;
    const auto take = [&](int i, float v) {
      row_.x[i] = v = positive_zero(v);
      const uint64_t packed = v < INFINITY ? pack(v, row_.begin + i) : kUnusable;
      best = packed > best ? packed : best;
    };
    constexpr int kTogether = 8;
    const float* from = raw_ + row_.begin;
    const int tid = static_cast<int>(threadIdx.x), words = p_.aligned ? row_.n / 4 : 0;
    for (int base = tid; base < words; base += kTogether * kThreads) {
      float4 v[kTogether];
#pragma unroll
      for (int j = 0; j < kTogether; ++j)
        if (base + j * kThreads < words) v[j] = __ldcs(reinterpret_cast<const float4*>(from) + base + j * kThreads);
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
        const int i = 4 * (base + j * kThreads);
        if (i < 4 * words) take(i, v[j].x), take(i + 1, v[j].y), take(i + 2, v[j].z), take(i + 3, v[j].w);
      }
    }
    for (int i = 4 * words + tid; i < row_.n; i += kThreads) take(i, from[i]);
    return largest(best);
  }

  __device__ float logprob_of(float logit) const {
    return static_cast<float>(static_cast<double>(logit) - static_cast<double>(raw_best_) - log_total_);
  }

  // Log-probabilities of the raw logits: the normaliser, and the best tokens in order.
  __device__ void report() {
    double total = 0;
    const Weight weight(raw_best_, 1);
    each([&](int i) { total += weight(row_.x[i]); });
    log_total_ = log(sum(total));
    const int wanted = min(min(r_.top_logprobs, p_.W), p_.V);
    if (wanted <= 0) return;
    Cut cut;
    if (wanted < p_.V) {
      const auto k = static_cast<uint64_t>(wanted);
      cut = row_.best(k, row_.floor_of(k, own_, key_of(raw_best_)));
    }
    // The list has an order only after the next step: every entry's place is the number of better ones.
    const auto stays = [&](int i) { return cut.keeps(key_of(row_.x[i]), row_.begin + i); };
    uint64_t mine = 0, all[kBlocks], block = 0;
    each([&](int i) { mine += stays(i) ? 1 : 0; });
    uint64_t place = row_.team.scan(mine, &block);
    row_.team.gather(block, all);
#pragma unroll
    for (int r = 0; r < kBlocks; ++r)
      if (r < Team<kBlocks>::rank()) place += all[r];
    uint64_t* list = p_.w.list + (m_ - p_.first) * p_.W;
    each([&](int i) {
      if (stays(i)) list[place++] = pack(row_.x[i], row_.begin + i);
    });
    __threadfence();
    Team<kBlocks>::sync();
    for (int j = Team<kBlocks>::rank() * kThreads + static_cast<int>(threadIdx.x); j < wanted;
         j += kBlocks * kThreads) {
      const uint64_t entry = __ldcg(reinterpret_cast<const unsigned long long*>(list + j));
      int better = 0;
      for (int i = 0; i < wanted; ++i)
        better += __ldcg(reinterpret_cast<const unsigned long long*>(list + i)) > entry ? 1 : 0;
      if (value_of(entry) == -INFINITY) continue;  // of probability 0
      p_.top_token.at(m_)[better] = id_of(entry);
      p_.top_logprob.at(m_)[better] = logprob_of(value_of(entry));
    }
  }

  // Biases, bans and penalties; the largest afterwards, kUnusable with an id outside of the vocabulary.
  __device__ uint64_t process() {
    bool wrong = false;
    const auto place_of = [&](int32_t id) {  // in the slice
      wrong |= id < 0 || id >= p_.V;
      const int i = id - row_.begin;
      return i >= 0 && i < row_.n ? i : -1;
    };
    __syncthreads();
    const LogitBias* bias = p_.bias + r_.bias;
    for (int j = static_cast<int>(threadIdx.x); j < r_.bias_count; j += kThreads) {
      const int i = place_of(bias[j].token);
      bool first = i >= 0;  // the first of a token's biases adds them all, in their order
      for (int k = 0; k < j && first; ++k) first = bias[k].token != bias[j].token;
      if (!first) continue;
      float v = row_.x[i];
      for (int k = j; k < r_.bias_count; ++k)
        if (bias[k].token == bias[j].token) v = settle(static_cast<double>(v) + static_cast<double>(bias[k].bias));
      row_.x[i] = v;
    }
    __syncthreads();
    for (int j = static_cast<int>(threadIdx.x); j < r_.banned_count; j += kThreads) {
      const int i = place_of(p_.banned[r_.banned + j]);
      if (i >= 0) row_.x[i] = -INFINITY;
    }
    __syncthreads();
    if (penalises(r_)) penalise(place_of);
    uint64_t best = 0;
    each([&](int i) {
      const uint64_t packed = pack(row_.x[i], row_.begin + i);
      best = packed > best ? packed : best;
    });
    if (wrong) raise(p_.faults, Fault::token);
    return largest(wrong ? kUnusable : best);
  }

  template <class Place>
  __device__ void penalise(Place&& place_of) {
    int* count = p_.w.count + (m_ - p_.first) * p_.V + row_.begin;
    each([&](int i) { count[i] = 0; });
    __syncthreads();
    const int32_t* history = p_.history + r_.history;
    const int first = r_.repetition_penalty != 1 ? 0 : r_.prompt, last = r_.prompt + r_.output;
    for (int j = first + static_cast<int>(threadIdx.x); j < last; j += kThreads) {
      const int i = place_of(history[j]);
      if (i < 0) continue;
      if (j < r_.prompt)
        atomicOr(count + i, kInPrompt);
      else
        atomicAdd(count + i, 1);
    }
    __syncthreads();
    const double repetition = static_cast<double>(r_.repetition_penalty);
    each([&](int i) {
      const int seen = __ldcg(count + i), times = seen & (kInPrompt - 1);
      if (seen == 0) return;
      double v = static_cast<double>(row_.x[i]);
      v = v > 0 ? v / repetition : v * repetition;
      if (times > 0)  // rounded as the definition rounds: no fused multiply-add
        v = __dsub_rn(v, __dadd_rn(__dmul_rn(static_cast<double>(r_.frequency_penalty), static_cast<double>(times)),
                                   static_cast<double>(r_.presence_penalty)));
      row_.x[i] = settle(v);
    });
    __syncthreads();
  }

  __device__ int draw(float best) {
    const Weight weight(best, r_.temperature);
    const auto probability = [&](uint32_t key) { return weight(value_of(key)); };
    const auto mass_of = [&](uint32_t key) { return fixed_point(probability(key), p_.mass_bits); };
    const double part = static_cast<double>(r_.top_p), least = static_cast<double>(r_.min_p);
    const double u = uniform(r_.seed, static_cast<uint64_t>(r_.output));
    // As integers, so that a sum has no order. The resolution, 2^-44 of the best at 163,840 tokens, is that of the cut.
    const auto wanted = [&](uint64_t total) -> uint64_t {
      return max(__double2ull_ru(part * static_cast<double>(total)), 1ull);
    };
    const auto draws = [&](double p) { return p >= least ? p : 0.0; };
    Cut by_rank, by_mass;
    if (r_.top_k > 0 && r_.top_k < p_.V) {
      const auto k = static_cast<uint64_t>(r_.top_k);
      const uint32_t floor = row_.floor_of(k, own_, key_of(best));
      const int listed = floor == 0 ? -1 : row_.collect([&](float x, int) { return key_of(x) >= floor; });
      if (listed >= 0)
        return static_cast<int>(row_.ask_list([&](uint64_t* list) {
          sort_list(list, listed);
          int kept = min(listed, r_.top_k);
          if (r_.top_p < 1)
            kept = prefix_of(
                row_.team, list, kept, [&](uint64_t x) { return mass_of(static_cast<uint32_t>(x >> 32)); }, wanted);
          // A draw goes by rising id: the complement of the id comes in front.
          for (int i = static_cast<int>(threadIdx.x); i < kept; i += kThreads) list[i] = list[i] << 32 | list[i] >> 32;
          sort_list(list, kept);
          const int at = row_.locate_listed(
              kept, [&](uint64_t x) { return draws(probability(static_cast<uint32_t>(x))); },
              [&](double total) { return u * total; });
          return static_cast<uint64_t>(at < 0 ? ~uint64_t{0} : ~(list[at] >> 32) & 0xffffffffu);
        }));
      by_rank = row_.best(k, floor);
    }
    if (r_.top_p < 1) by_mass = cut_by_mass(best, by_rank, mass_of, wanted);
    return row_.locate(
        [&](uint32_t key, int id) {
          return by_rank.keeps(key, id) && by_mass.keeps(key, id) ? draws(probability(key)) : 0.0;
        },
        [&](double total) { return u * total; });
  }

  // Bins of an eighth of a power of two of the probability find the cut roughly, with all tokens looked at once; those
  // of its bin are then sorted.
  template <class Mass, class Wanted>
  __device__ Cut cut_by_mass(float best, const Cut& by_rank, Mass&& mass_of, Wanted&& wanted) {
    const float rate = static_cast<float>(1.4426950408889634 / static_cast<double>(r_.temperature));
    const auto bin_of = [&](float x) {  // never falls as x falls
      const float d = __fsub_rn(best, x), t = d == 0 ? 0.0f : __fmul_rn(d, rate);
      return t < 31.75f ? static_cast<int>(t * 8) : kBins - 1;
    };
    const auto mass = [&](uint32_t key, int id) { return by_rank.keeps(key, id) ? mass_of(key) : 0; };
    const auto c = row_.cross(
        [&](auto&& f) {
          uint64_t rest = 0;            // of the last bin, where most tokens may lie
          constexpr int kTogether = 4;  // so that one's latencies lie under another's
          for (int base = static_cast<int>(threadIdx.x); base < row_.n; base += kTogether * kThreads) {
            int bin[kTogether];
            uint64_t m[kTogether];
#pragma unroll
            for (int j = 0; j < kTogether; ++j) {
              const int i = base + j * kThreads;
              const float x = row_.x[min(i, row_.n - 1)];
              bin[j] = bin_of(x), m[j] = i < row_.n ? mass(key_of(x), row_.begin + i) : 0;
              if (bin[j] == kBins - 1) rest += m[j], m[j] = 0;
            }
#pragma unroll
            for (int j = 0; j < kTogether; ++j) f(bin[j], m[j]);
          }
          f(kBins - 1, rest);
        },
        wanted);
    const int listed =
        row_.collect([&](float x, int id) { return bin_of(x) == c.bin && by_rank.keeps(key_of(x), id); });
    if (listed <= 0) return row_.select(by_rank.key, mass, c.want);
    const uint64_t last = row_.ask_list([&](uint64_t* list) {
      sort_list(list, listed);
      return list[prefix_of(
                      row_.team, list, listed, [&](uint64_t x) { return mass_of(static_cast<uint32_t>(x >> 32)); },
                      [&](uint64_t) { return c.want - c.before; }) -
                  1];
    });
    return {static_cast<uint32_t>(last >> 32), id_of(last)};
  }

  const Params& p_;
  const SampleDeviceRow& r_;
  Row<kBlocks>& row_;
  int64_t m_;
  const float* raw_;
  float raw_best_ = 0;
  uint32_t own_ = 0;  // key of the largest logit among this thread's
  double log_total_ = 0;
};

// kBlocks > 1: a cluster, each block with its slice in shared memory.
template <int kBlocks>
__global__ void __launch_bounds__(kThreads, kBlocks == 1 ? 1 : 2) draw_rows(const __grid_constant__ Params p) {
  extern __shared__ float slice[];
  __shared__ RowShared<kBlocks> shared;
  __shared__ SampleDeviceRow r;
  pdl_trigger();
  pdl_wait();
  const int64_t m = p.first + Team<kBlocks>::row();
  if (threadIdx.x == 0) r = p.rows[m];
  __syncthreads();
  const int rank = Team<kBlocks>::rank(), begin = min(rank * p.slice, p.V), n = min(p.slice, p.V - begin);
  float* x = kBlocks == 1 ? p.w.x + (m - p.first) * p.V : slice;
  Row<kBlocks> row(shared, x, begin, n);
  Draw<kBlocks> draw(p, r, row, m);
  const auto no_report = [&] {
    for (int i = rank * kThreads + static_cast<int>(threadIdx.x); i < p.W; i += kBlocks * kThreads)
      p.top_token.at(m)[i] = -1, p.top_logprob.at(m)[i] = 0;
    if (p.W > 0) Team<kBlocks>::sync();
  };
  no_report();
  int token = -1;
  if (r.live != 0) {
    if (!places_are_right(p, r)) {
      if (rank == 0 && threadIdx.x == 0) raise(p.faults, Fault::token);
    } else if (numbers_are_right(r)) {
      token = draw.run();
    }
  }
  if (token < 0) no_report();
  if (rank == 0 && threadIdx.x == 0) {
    p.token[m] = token;
    p.logprob[m] = token >= 0 && r.top_logprobs >= 0 ? draw.logprob(token) : 0;
  }
  Team<kBlocks>::sync();  // nobody leaves while another reads its memory
}

__global__ void append_tokens(const __grid_constant__ Params p, int64_t M) {
  pdl_trigger();
  pdl_wait();
  for (int64_t m = threadIdx.x; m < M; m += blockDim.x) {
    const SampleDeviceRow& r = p.rows[m];
    const int64_t place = r.history + r.prompt + r.output;
    if (r.kept != 0 && p.token[m] >= 0 && place >= 0 && place < p.tokens) p.history[place] = p.token[m];
  }
}

template <int kBlocks>
void run(const Exec& ex, const SampleDeviceArgs& a, const SampleDeviceDesc& d, void* scratch) {
  Params p{.logits = rows<const float>(a.logits),
           .rows = a.rows.data,
           .bias = a.bias.data,
           .banned = a.banned.data,
           .history = a.history.data,
           .biases = a.bias.dim(0),
           .bans = a.banned.dim(0),
           .tokens = a.history.dim(0),
           .token = a.token.data,
           .logprob = a.logprob.data,
           .top_token = rows<int32_t>(a.top_token),
           .top_logprob = rows<float>(a.top_logprob),
           .V = static_cast<int>(d.vocabulary),
           .W = static_cast<int>(d.most),
           .slice = static_cast<int>(slice_of(d.vocabulary, kBlocks)),
           .aligned = reinterpret_cast<uintptr_t>(a.logits.data) % 16 == 0 && a.logits.stride[0] % 4 == 0,
           .mass_bits = std::min(52, 62 - static_cast<int>(std::bit_width(static_cast<uint64_t>(d.vocabulary)))),
           .w = device_work(d, kBlocks, scratch),
           .faults = ex.faults};
  for (p.first = 0; p.first < d.rows; p.first += kMostRows) {
    const auto blocks = static_cast<unsigned>(std::min(kMostRows, d.rows - p.first) * kBlocks);
    launch(ex, "sample_device",
           {.grid = blocks,
            .block = kThreads,
            .shared_bytes = kBlocks == 1 ? 0 : p.slice * 4,
            .cluster = kBlocks,
            .pdl = pdl_pays(d.target, blocks)},
           draw_rows<kBlocks>, p);
  }
  if (a.append && d.rows > 0)
    launch(ex, "sample_device", {.grid = 1, .block = 256, .pdl = pdl_pays(d.target, 1)}, append_tokens, p, d.rows);
}

}  // namespace

void sample_device_cuda(const Exec& ex, const SampleDeviceArgs& a, const SampleDeviceDesc& d, void* scratch) {
  run<1>(ex, a, d, scratch);
}
void sample_device_cuda_cluster(const Exec& ex, const SampleDeviceArgs& a, const SampleDeviceDesc& d, void* scratch) {
  run<kClusterBlocks>(ex, a, d, scratch);
}

}  // namespace kdelta
