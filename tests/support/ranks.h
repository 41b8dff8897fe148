// Runs a test on several ranks, each with an Exec and a thread of its own.
#pragma once

#include <atomic>
#include <functional>
#include <string>

#include "kdelta/core/communicator.h"
#include "tests/support/support.h"

namespace kdelta::test {

// f(exec, rank) on every rank, with a variant of one op forced.
inline void on_ranks(int ranks, const std::string& op, const std::string& variant,
                     const std::function<void(const Exec&, size_t)>& f) {
  run_ranks(ranks, [&](Communicator& comm) {
    TestExec own(comm.rank() % 2 == 0 ? 2 : 1, int64_t{1} << 20);
    own.force(op, variant);
    Exec ex = own;
    ex.comm = &comm;
    f(ex, static_cast<size_t>(comm.rank()));
  });
}

}  // namespace kdelta::test
