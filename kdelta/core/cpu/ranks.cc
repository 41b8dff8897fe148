#include <condition_variable>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "kdelta/core/check.h"
#include "kdelta/core/communicator.h"

namespace kdelta {

int PlannedRanks::rank() const {
  return rank_;
}
int PlannedRanks::ranks() const {
  return ranks_;
}
void PlannedRanks::fail(const char*) noexcept {}
std::span<const void* const> PlannedRanks::meet(const char* op, const Shape&, const void*) {
  check_failed(__FILE__, __LINE__, str(op, " meets while a step is planned"));
}
void PlannedRanks::leave() {
  check_failed(__FILE__, __LINE__, "leaves while a step is planned");
}

namespace {

// What the ranks share. A collective is two barriers: in meet(), where a rank that is gone stops everybody, and in
// leave(), where those who are there wait for each other even when one is gone, because they may be reading each
// other's memory.
class HostGroup {
 public:
  explicit HostGroup(int ranks) : brought_(static_cast<size_t>(ranks)), gone_(static_cast<size_t>(ranks)) {}

  int ranks() const { return static_cast<int>(brought_.size()); }

  std::span<const void* const> meet(int rank, const char* op, const Shape& shape, const void* mine) {
    std::unique_lock lock(mutex_);
    if (!trouble_.empty()) refuse(op);
    if (arrived_ == 0) {
      first_ = rank;
      op_ = op;
      shape_ = shape;
    } else if (std::string_view(op) != op_ || !(shape == shape_)) {
      break_with(str("rank ", first_, " of ", ranks(), " came to ", op_, " ", to_string(shape_), ", rank ", rank,
                     " to ", op, " ", to_string(shape)));
      refuse(op);
    }
    brought_[static_cast<size_t>(rank)] = mine;
    if (!wait(lock, [this] { return !trouble_.empty(); })) refuse(op);
    return brought_;
  }

  void leave() {
    std::unique_lock lock(mutex_);
    if (!wait(lock, [this] { return arrived_ + gone_count_ >= ranks(); })) refuse("leave");
  }

  // Null reason: ended.
  void go(int rank, const char* reason) noexcept {
    const std::lock_guard lock(mutex_);
    const auto i = static_cast<size_t>(rank);
    if (!gone_[i]) {
      gone_[i] = true;
      ++gone_count_;
    }
    changed_.notify_all();
    if (!trouble_.empty()) return;
    trouble_ = "a rank failed";  // short enough to need no memory
    try {
      trouble_ = reason == nullptr ? str("rank ", rank, " of ", ranks(), " has ended")
                                   : str("rank ", rank, " of ", ranks(), " failed: ", reason);
    } catch (const std::exception&) {
    }
  }

 private:
  // The last to come lets all go on: true. False: `stop` came true first.
  template <class Stop>
  bool wait(std::unique_lock<std::mutex>& lock, const Stop& stop) {
    const uint64_t mine = round_;
    if (++arrived_ == ranks()) {
      arrived_ = 0;
      ++round_;
      changed_.notify_all();
      return true;
    }
    changed_.notify_all();
    changed_.wait(lock, [&] { return round_ != mine || stop(); });
    return round_ != mine;
  }
  void break_with(const std::string& trouble) {
    trouble_ = trouble;
    changed_.notify_all();
  }
  [[noreturn]] void refuse(const char* op) const { kdelta::fail(ErrorCode::failed, op, ": ", trouble_); }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<const void*> brought_;
  std::vector<bool> gone_;
  int arrived_ = 0, gone_count_ = 0, first_ = 0;
  uint64_t round_ = 0;  // barriers that all ranks have passed
  std::string_view op_;
  Shape shape_;
  std::string trouble_;  // empty: none
};

class HostRank final : public Communicator {
 public:
  HostRank(HostGroup& group, int rank) : group_(group), rank_(rank) {}
  int rank() const override { return rank_; }
  int ranks() const override { return group_.ranks(); }
  std::span<const void* const> meet(const char* op, const Shape& shape, const void* mine) override {
    return group_.meet(rank_, op, shape, mine);
  }
  void leave() override { group_.leave(); }
  void fail(const char* reason) noexcept override { group_.go(rank_, reason); }

 private:
  HostGroup& group_;
  int rank_;
};

}  // namespace

void run_ranks(int ranks, const std::function<void(Communicator&)>& f) {
  if (ranks < 1) fail(ErrorCode::invalid_argument, "ranks: ", ranks, ", expected at least 1");
  HostGroup group(ranks);
  std::mutex mutex;
  std::exception_ptr first;
  const auto keep = [&] {
    const std::lock_guard lock(mutex);
    if (!first) first = std::current_exception();
  };
  const auto run = [&](int rank) {
    HostRank comm(group, rank);
    try {
      f(comm);
      group.go(rank, nullptr);
    } catch (const std::exception& e) {
      keep();  // before the others hear of it, so that theirs come later
      comm.fail(e.what());
    } catch (...) {
      keep();
      comm.fail("an exception of unknown type");
    }
  };
  std::vector<std::thread> threads;
  try {
    for (int rank = 1; rank < ranks; ++rank) threads.emplace_back(run, rank);
    run(0);
  } catch (const std::system_error& e) {
    for (int rank = static_cast<int>(threads.size()) + 1; rank < ranks; ++rank) group.go(rank, e.what());
    group.go(0, "not started");
    for (std::thread& t : threads) t.join();
    fail(ErrorCode::out_of_memory, "ranks: cannot start thread ", threads.size() + 1, " of ", ranks - 1, ": ",
         e.what());
  }
  for (std::thread& t : threads) t.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace kdelta
