#include "kdelta/api/roof/roof.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>

#include "kdelta/api/roof/roof_kernel.h"
#include "kdelta/core/check.h"
#include "kdelta/core/isa.h"

namespace kdelta::bench {
namespace {

using Clock = std::chrono::steady_clock;
typedef float Vec __attribute__((vector_size(16), aligned(16)));
constexpr int64_t kLine = 64;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Sums `streams` equal parts of [p, p + bytes) side by side. The sum is returned so that no load can be dropped.
template <int kStreams>
float read_streams(const char* p, int64_t bytes, int prefetch) {
  const int64_t part = bytes / kStreams / kLine * kLine;
  Vec acc[kStreams] = {};
  for (int64_t i = 0; i < part; i += kLine)
#pragma GCC unroll 16
    for (int s = 0; s < kStreams; ++s) {
      const char* q = p + s * part + i;
      if (prefetch != 0) __builtin_prefetch(q + prefetch, 0, 3);
      const auto* v = reinterpret_cast<const Vec*>(q);
      acc[s] += (v[0] + v[1]) + (v[2] + v[3]);
    }
  float sum = 0;
  for (const Vec& v : acc) sum += v[0] + v[1] + v[2] + v[3];
  return sum;
}

template <int kStreams>
float update_streams(char* p, int64_t bytes, int prefetch) {
  const int64_t part = bytes / kStreams / kLine * kLine;
  const Vec c = {0.5f, 0.5f, 0.5f, 0.5f};
  for (int64_t i = 0; i < part; i += kLine)
#pragma GCC unroll 16
    for (int s = 0; s < kStreams; ++s) {
      char* q = p + s * part + i;
      if (prefetch != 0) __builtin_prefetch(q + prefetch, 1, 3);
      auto* v = reinterpret_cast<Vec*>(q);
      v[0] *= c, v[1] *= c, v[2] *= c, v[3] *= c;
    }
  return 0;
}

float walk_part(RoofKind kind, char* p, int64_t bytes, int streams, int prefetch) {
  const bool read = kind == RoofKind::read;
  switch (streams) {
    case 1:
      return read ? read_streams<1>(p, bytes, prefetch) : update_streams<1>(p, bytes, prefetch);
    case 2:
      return read ? read_streams<2>(p, bytes, prefetch) : update_streams<2>(p, bytes, prefetch);
    case 4:
      return read ? read_streams<4>(p, bytes, prefetch) : update_streams<4>(p, bytes, prefetch);
    case 8:
      return read ? read_streams<8>(p, bytes, prefetch) : update_streams<8>(p, bytes, prefetch);
    case 16:
      return read ? read_streams<16>(p, bytes, prefetch) : update_streams<16>(p, bytes, prefetch);
    default:
      KDELTA_UNREACHABLE("streams", streams);
  }
}

double (*rate_kernel(RoofKind kind))(int64_t) {
  const IsaLevel isa = detect_isa();
  if (kind == RoofKind::tile_bf16 && isa >= IsaLevel::amx) return tile_rounds_amx;
  if (kind != RoofKind::fma_f32 && isa >= IsaLevel::avx512_bf16) return dot_rounds_avx512_bf16;
  if (isa >= IsaLevel::avx512) return fma_rounds_avx512;
  if (isa >= IsaLevel::avx2) return fma_rounds_avx2;
  return fma_rounds<simd::Portable>;
}

// flop/s of all threads. Rounds are handed out in small pieces, so that a thread that lost its core for a while does
// not hide what the others did.
double rate(ThreadPool& team, RoofKind kind, double seconds) {
  auto* kernel = rate_kernel(kind);
  constexpr int64_t kRounds = 20000;
  std::atomic<int64_t> flops{0};
  const auto start = Clock::now();
  auto work = [&](int) {
    while (seconds_since(start) < seconds) flops += static_cast<int64_t>(kernel(kRounds));
  };
  team.run(work);
  return static_cast<double>(flops.load()) / seconds_since(start);
}

}  // namespace

const char* to_string(RoofKind kind) {
  switch (kind) {
    case RoofKind::read:
      return "read";
    case RoofKind::update:
      return "update";
    case RoofKind::fma_f32:
      return "fma_f32";
    case RoofKind::dot_bf16:
      return "dot_bf16";
    case RoofKind::tile_bf16:
      return "tile_bf16";
  }
  KDELTA_UNREACHABLE("roof kind", kind);
}

char* RoofMeter::memory(int64_t footprint) {
  if (buffer_.bytes() < footprint + 16384) {
    buffer_ = Buffer(Device{}, footprint + 16384);  // a prefetch may run past the end
    std::memset(buffer_.data(), 0, static_cast<size_t>(buffer_.bytes()));
  }
  return static_cast<char*>(buffer_.data());
}

double RoofMeter::bandwidth(const Roof& roof, const Walk& walk, int passes) {
  char* base = memory(roof.footprint);
  // Small pieces of at least 64 KB, first come first served, as the ops do it.
  const int64_t piece = std::max<int64_t>(int64_t{64} << 10, std::min<int64_t>(int64_t{1} << 20, roof.footprint / 64));
  const int64_t pieces = roof.footprint / piece;
  std::atomic<int64_t> next{0};
  std::atomic<float> sink{0};
  auto work = [&](int) {
    float sum = 0;
    for (;;) {
      const int64_t i = next.fetch_add(1, std::memory_order_relaxed);
      if (i >= pieces * passes) break;
      sum += walk_part(roof.kind, base + i % pieces * piece, piece, walk.streams, walk.prefetch);
    }
    sink.store(sum, std::memory_order_relaxed);
  };
  const auto start = Clock::now();
  team_.run(work);
  const double moved = static_cast<double>(pieces) * static_cast<double>(piece) * passes;
  return moved * (roof.kind == RoofKind::update ? 2 : 1) / seconds_since(start);
}

void RoofMeter::search(const Roof& roof) {
  double best = 0;
  const int passes = static_cast<int>(std::max<int64_t>(1, (int64_t{256} << 20) / roof.footprint));
  bandwidth(roof, Walk{}, 1);
  for (int streams : {1, 2, 4, 8, 16})
    for (int prefetch : {0, 256, 512, 1024, 2048, 4096}) {
      const Walk walk{streams, prefetch};
      const double got = bandwidth(roof, walk, passes);
      if (got > best) best = got, walk_[roof] = walk;
    }
  best_[roof] = best;
}

double RoofMeter::sample(const Roof& roof) {
  double got = 0;
  if (roof.is_bandwidth()) {
    if (walk_.count(roof) == 0) search(roof);
    const int passes = static_cast<int>(std::max<int64_t>(1, (int64_t{1} << 30) / roof.footprint));
    got = bandwidth(roof, walk_[roof], passes);
  } else {
    got = rate(team_, roof.kind, 0.05);
  }
  double& best = best_[roof];
  best = std::max(best, got);
  return got;
}

double RoofMeter::best(const Roof& roof) {
  if (best_.count(roof) == 0)
    for (int i = 0; i < 3; ++i) sample(roof);
  return best_[roof];
}

std::string RoofMeter::how(const Roof& roof) const {
  const auto it = walk_.find(roof);
  return it == walk_.end() ? "" : str(it->second.streams, " streams, prefetch ", it->second.prefetch, " B");
}

}  // namespace kdelta::bench
