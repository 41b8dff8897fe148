// An engine that waits for a test.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace kdelta::test {

// While it is shut the engine stands before its next step.
class Gate {
 public:
  std::function<void()> hook() {
    return [this] {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, std::chrono::seconds(40), [&] { return open_; });
    };
  }
  void set(bool open) {
    const std::lock_guard lock(mutex_);
    open_ = open;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = true;
};

template <class F>
bool soon(F condition) {
  for (int i = 0; i < 2000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

}  // namespace kdelta::test
