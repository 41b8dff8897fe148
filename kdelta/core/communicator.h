// The ranks that compute one model together: each holds its part of the weights and runs the same ops in the same
// order; in some of them (all_reduce, all_gather) they meet. A member of Exec; null: there is one rank.
//
// Ranks see each other's memory here, as threads of one process do: a collective is to meet, read what the others
// brought, write, and leave. A transport that moves data itself (NCCL) needs none of that: it will be a kind of its own
// with rows of its own in the variants.inc of the collectives.
#pragma once

#include <functional>
#include <span>

#include "kdelta/core/shape.h"

namespace kdelta {

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int ranks() const = 0;

  // A collective begins: what every rank brought, in rank order, once all ranks have come with the same op and shape.
  // `op` is a literal. Between meet() and leave() nobody changes or frees what the others read.
  // Throws Error(failed), on every rank alike, when ranks come with different ops or shapes, and when a rank failed or
  // ended: whatever goes wrong, no rank waits for one that does not come. Such ranks never meet again.
  virtual std::span<const void* const> meet(const char* op, const Shape& shape, const void* mine) = 0;
  // Returns when all ranks have left. Throws like meet().
  virtual void leave() = 0;

  // This rank cannot go on with the step: all others learn it where they would meet it. Needs no memory.
  virtual void fail(const char* reason) noexcept = 0;
};

// Rank numbers for planning a step: nobody may meet.
class PlannedRanks final : public Communicator {
 public:
  PlannedRanks(int rank, int ranks) : rank_(rank), ranks_(ranks) {}
  // Not inline: a kernel that asks a Communicator must not hold code of its own for one of them.
  int rank() const override;
  int ranks() const override;
  std::span<const void* const> meet(const char* op, const Shape& shape, const void* mine) override;
  void leave() override;
  void fail(const char*) noexcept override;

 private:
  int rank_, ranks_;
};

// Calls f on `ranks` threads (rank 0 on the caller's), each with the communicator of its rank, and returns when all
// have returned. A rank whose f throws has failed, one whose f returns has ended. Rethrows the first exception. Throws
// Error(invalid_argument) for ranks < 1, Error(out_of_memory) when threads cannot be had.
void run_ranks(int ranks, const std::function<void(Communicator&)>& f);

}  // namespace kdelta
