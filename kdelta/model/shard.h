// Which part of a model one rank of several holds: heads, widths, experts and vocabulary are dealt out in equal parts,
// in order; latents, norms, routers and residual mixers every rank holds whole.
#pragma once

#include <cstdint>

#include "kdelta/core/check.h"

namespace kdelta {

// How routed experts are dealt: whole ones, or a part of the width of each.
enum class ExpertSplit : uint8_t { experts, width };

struct Shard {
  int rank = 0, ranks = 1;
  ExpertSplit split = ExpertSplit::experts;

  // This rank's part of `total`. Throws Error(unsupported) naming both numbers when the ranks cannot have equal parts.
  int64_t share(int64_t total, const char* what) const {
    if (total % ranks != 0)
      fail(ErrorCode::unsupported, what, ": ", total, " cannot be dealt to ", ranks, " ranks in equal parts");
    return total / ranks;
  }
};

// Throws Error(invalid_argument) unless 0 <= rank < ranks.
inline void check_shard(const Shard& s) {
  if (s.ranks < 1 || s.rank < 0 || s.rank >= s.ranks)
    fail(ErrorCode::invalid_argument, "shard: rank ", s.rank, " of ", s.ranks, ", expected a rank in 0..ranks-1");
}

}  // namespace kdelta
