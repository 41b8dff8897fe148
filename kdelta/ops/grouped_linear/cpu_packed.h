// grouped_linear with a Kernel of ops/common/cpu/packed.h. Per wave (packed_plan.h): the team packs the tokens, then
// the panels of all segments are handed out.
#pragma once

#include "kdelta/ops/common/cpu/packed.h"
#include "kdelta/ops/grouped_linear/cpu_kernel.h"
#include "kdelta/ops/grouped_linear/packed_plan.h"

namespace kdelta {

template <class Sizes>
KDELTA_INLINE int64_t cut_segments(const GroupedLinearArgs& a, int64_t E, TokenSegment* segments) {
  int64_t count = 0;
  for (int64_t e = 0; e < E; ++e) {
    const int64_t end = a.expert_begin.data[e + 1];
    for (int64_t p = a.expert_begin.data[e]; p < end; p += Sizes::kTokens)
      segments[count++] = {e, p, end - p < Sizes::kTokens ? end - p : Sizes::kTokens, 0};
  }
  return count;
}

// Gives the segments from `begin` on their places in the wave; returns the first that does not fit.
template <class Sizes>
KDELTA_INLINE int64_t fill_wave(TokenSegment* segments, int64_t begin, int64_t count, int64_t K, int64_t room) {
  int64_t used = 0, i = begin;
  for (; i < count; ++i) {
    const int64_t bytes = Sizes::packed(segments[i].count, K);
    if (used + bytes > room) break;
    segments[i].offset = used;
    used += bytes;
  }
  return i;
}

template <class Kernel>
void multiply_wave(const Exec& ex, const GroupedLinearArgs& a, const TokenSegment* segments, int64_t count,
                   char* packed, char* threads) {
  const int64_t panels = panel_count(a.w[0].rows), thread = Kernel::Sizes::thread(a.out.dim(0), a.x.dim(1));
  auto pack = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const TokenSegment& s = segments[i];
      Kernel::pack(pair_projection(a, s.expert, s.first, s.count), 0, s.count, packed + s.offset);
    }
  };
  parallel_for(ex, count, 1, pack);
  auto multiply = [&](int rank, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end;) {
      const TokenSegment& s = segments[i / panels];
      const int64_t first = i % panels, last = panels - first < end - i ? panels : first + end - i;
      Kernel::multiply(pair_projection(a, s.expert, s.first, s.count), packed + s.offset, first, last,
                       threads + rank * thread);
      i += last - first;
    }
  };
  parallel_for_ranked(ex, count * panels, group_grain(count * panels, ex.threads->size()), multiply);
}

template <class Kernel>
void grouped_linear_packed(const Exec& ex, const GroupedLinearArgs& a, const GroupedLinearDesc& d, void* scratch) {
  using Sizes = typename Kernel::Sizes;
  auto* segments = static_cast<TokenSegment*>(scratch);
  char* packed = static_cast<char*>(scratch) + segment_list_bytes<Sizes>(d.P, d.E);
  const int64_t room = wave_bytes<Sizes>(d.P, d.K), count = cut_segments<Sizes>(a, d.E, segments);
  for (int64_t begin = 0; begin < count;) {
    const int64_t end = fill_wave<Sizes>(segments, begin, count, d.K, room);
    multiply_wave<Kernel>(ex, a, segments + begin, end - begin, packed, packed + room);
    begin = end;
  }
}

}  // namespace kdelta
