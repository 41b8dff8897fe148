// What this machine can do at most, measured in the same run as the kernels that are compared with it. All threads of
// the team work at once. Every number is the best seen so far: other work on the machine can only lower it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "kdelta/core/buffer.h"
#include "kdelta/core/threads.h"

namespace kdelta::bench {

enum class RoofKind {
  read,       // bytes/s read from a footprint
  update,     // bytes/s read plus written, in place
  fma_f32,    // flop/s of fp32 multiply-add, best vector width
  dot_bf16,   // flop/s of vdpbf16ps; of fma_f32 when the machine has none
  tile_bf16,  // flop/s of AMX tdpbf16ps; of dot_bf16 when the machine has none
};

struct Roof {
  RoofKind kind = RoofKind::read;
  int64_t footprint = int64_t{1} << 30;  // read and update only; well above every cache unless a cache is meant

  auto operator<=>(const Roof&) const = default;
  bool is_bandwidth() const { return kind == RoofKind::read || kind == RoofKind::update; }
};

const char* to_string(RoofKind kind);

class RoofMeter {
 public:
  explicit RoofMeter(ThreadPool& team) : team_(team) {}

  // One measurement of some 50 ms. The first one of a bandwidth also finds the best number of streams and prefetch
  // distance.
  double sample(const Roof& roof);
  // The best sample so far, measured now if there is none.
  double best(const Roof& roof);
  // "8 streams, prefetch 1024 B" of the last search; empty for rates.
  std::string how(const Roof& roof) const;
  const std::map<Roof, double>& all() const { return best_; }

 private:
  struct Walk {
    int streams = 1;
    int prefetch = 0;  // bytes ahead, 0: none
  };
  char* memory(int64_t footprint);
  double bandwidth(const Roof& roof, const Walk& walk, int passes);
  void search(const Roof& roof);

  ThreadPool& team_;
  Buffer buffer_;
  std::map<Roof, double> best_;
  std::map<Roof, Walk> walk_;
};

// flop/s of one thread's inner loop, per instruction set; each returns the flops it executed in `rounds` rounds.
double fma_rounds_avx2(int64_t rounds);
double fma_rounds_avx512(int64_t rounds);
double dot_rounds_avx512_bf16(int64_t rounds);
double tile_rounds_amx(int64_t rounds);

}  // namespace kdelta::bench
