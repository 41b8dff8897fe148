#include "kdelta/core/threads.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <exception>
#include <fstream>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "kdelta/core/check.h"

namespace kdelta {
namespace {

void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

// About 20 us of pauses: longer than the gap between two ops of one step, shorter than a scheduler tick.
constexpr int kSpins = 2000;

int cgroup_quota() {
  std::ifstream in("/sys/fs/cgroup/cpu.max");
  std::string quota;
  double period = 0;
  if (!(in >> quota >> period) || quota == "max" || period <= 0) return 1 << 20;
  return std::max(1, static_cast<int>(std::ceil(std::stod(quota) / period)));
}

}  // namespace

int available_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  const int mask = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
  return std::max(1, std::min(mask, cgroup_quota()));
}

struct ThreadPool::Impl {
  explicit Impl(int n) : size(n), owner(getpid()) {
    try {
      for (int rank = 1; rank < size; ++rank) members.emplace_back([this, rank] { work(rank); });
    } catch (const std::system_error& e) {
      stop();  // the threads that did start must end before their object does
      fail(ErrorCode::out_of_memory, "threads: cannot start thread ", members.size() + 1, " of ", n - 1, ": ",
           e.what());
    } catch (...) {
      stop();
      throw;
    }
  }

  ~Impl() { stop(); }

  void stop() {
    // After fork() the child has this object but none of the threads: joining would wait for ever.
    if (getpid() != owner) {
      for (std::thread& t : members) t.detach();
      return;
    }
    stopping = true;
    publish();
    for (std::thread& t : members) t.join();
  }

  void publish() {
    {
      std::lock_guard lock(mutex);
      generation.fetch_add(1, std::memory_order_release);
    }
    wake.notify_all();
  }

  void call(int rank) {
    try {
      (*task)(rank);
    } catch (...) {
      std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
    }
  }

  void work(int rank) {
    uint64_t seen = 0;
    for (;;) {
      for (int i = 0; i < kSpins && generation.load(std::memory_order_acquire) == seen; ++i) pause_cpu();
      if (generation.load(std::memory_order_acquire) == seen) {
        std::unique_lock lock(mutex);
        wake.wait(lock, [&] { return generation.load(std::memory_order_acquire) != seen; });
      }
      ++seen;
      if (stopping) return;
      call(rank);
      pending.fetch_sub(1, std::memory_order_acq_rel);
    }
  }

  void run(RankFunction f) {
    KDELTA_CHECK(getpid() == owner, "a thread pool cannot be used in the child of fork()");
    if (size == 1) return f(0);
    task = &f;
    error = nullptr;
    pending.store(size - 1, std::memory_order_relaxed);
    publish();
    call(0);
    for (int i = 0; pending.load(std::memory_order_acquire) != 0; ++i) {
      if (i < kSpins * 10)
        pause_cpu();
      else
        std::this_thread::yield();  // a member was descheduled: do not fight it for the core
    }
    task = nullptr;
    if (error) std::rethrow_exception(error);
  }

  const int size;
  const pid_t owner;
  std::vector<std::thread> members;
  std::mutex mutex;
  std::condition_variable wake;
  std::atomic<uint64_t> generation{0};
  std::atomic<int> pending{0};
  std::atomic<bool> stopping{false};
  const RankFunction* task = nullptr;
  std::exception_ptr error;
};

ThreadPool::ThreadPool(int threads) : impl_(std::make_unique<Impl>(threads > 0 ? threads : available_cpus())) {}
ThreadPool::~ThreadPool() = default;
int ThreadPool::size() const {
  return impl_->size;
}
void ThreadPool::run(RankFunction f) {
  impl_->run(f);
}

}  // namespace kdelta
