// A limit for tests whose waits have none of their own: destructors that join threads, a socket that nobody closes.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>

namespace kdelta::test {

// A test that has not come to its end in time, its fixture's destructor included, ends the program as a failure by its
// name: no thread that hangs can be told to stop. Made before the tests run.
class Deadline final : public testing::EmptyTestEventListener {
 public:
  // Of every test whose suite's name begins so; one that begins with Soak takes as long as it is told to.
  static bool install(std::chrono::seconds most, std::string suites = "") {
    testing::UnitTest::GetInstance()->listeners().Append(new Deadline(most, std::move(suites)));  // which owns it
    return true;
  }

 private:
  Deadline(std::chrono::seconds most, std::string suites) : most_(most), suites_(std::move(suites)) {}

  void OnTestStart(const testing::TestInfo& test) override {
    const std::string suite = test.test_suite_name();
    if (!suite.starts_with(suites_) || suite.starts_with("Soak")) return;
    ended_ = false;
    guard_ = std::thread([this, name = suite + "." + test.name()] {
      std::unique_lock lock(mutex_);
      if (changed_.wait_for(lock, most_, [&] { return ended_; })) return;
      std::printf("[  FAILED  ] %s: it hangs, after %lld s\n", name.c_str(), static_cast<long long>(most_.count()));
      std::fflush(stdout);
      std::_Exit(1);
    });
  }
  void OnTestEnd(const testing::TestInfo&) override {
    if (!guard_.joinable()) return;
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
      changed_.notify_all();
    }
    guard_.join();
  }

  const std::chrono::seconds most_;
  const std::string suites_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
  std::thread guard_;
};

}  // namespace kdelta::test
