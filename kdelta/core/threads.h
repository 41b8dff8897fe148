// A fixed team of threads for one engine. run() hands the same function to every member and returns when all are done;
// between calls members spin briefly, then sleep. Not fork-safe: the child of a fork has no team and run() says so.
#pragma once

#include <cstdint>
#include <memory>

namespace kdelta {

// A non-owning reference to a callable void(int); it must outlive the call it is passed to.
class RankFunction {
 public:
  template <class F>
  RankFunction(F& f) : object_(&f), call_([](void* o, int rank) { (*static_cast<F*>(o))(rank); }) {}
  void operator()(int rank) const { call_(object_, rank); }

 private:
  void* object_;
  void (*call_)(void*, int);
};

class ThreadPool {
 public:
  // threads <= 0: as many as the affinity mask and the cgroup CPU quota allow.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const;
  // f(rank) for every rank in [0, size()); rank 0 is the caller. The first exception thrown by any rank is rethrown
  // here. Not re-entrant: f must not call run() of the same pool.
  void run(RankFunction f);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// CPUs this process may use: affinity mask limited by the cgroup quota, at least 1.
int available_cpus();

}  // namespace kdelta
