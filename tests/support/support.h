// What every test needs: an Exec over a fresh arena, guarded and poisoned buffers, distinct random data, and the two
// error measures. Poison surrounds each buffer: reading it shows as NaN, writing it is found by check_guards().
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kdelta/core/exec.h"

namespace kdelta::test {

// An Exec with its own threads, options and arena.
class TestExec {
 public:
  explicit TestExec(int threads = 2, int64_t scratch_bytes = int64_t{64} << 20);
  const Exec& exec() const { return exec_; }
  operator const Exec&() const { return exec_; }
  Options& options() { return options_; }
  Arena& arena() { return arena_; }
  // A copy of the Exec that only plans.
  Exec planning() const {
    Exec ex = exec_;
    ex.planning = true;
    return ex;
  }
  // Options::force[op] = variant for every following call.
  void force(const std::string& op, const std::string& variant) { options_.force[op] = variant; }

 private:
  Options options_;
  Arena arena_;
  ThreadPool threads_;
  Exec exec_;
};

using Rng = std::mt19937_64;

// A dense array of T inside a larger allocation filled with poison (NaN for floats, 0xA5 bytes otherwise).
template <class T>
class Guarded {
 public:
  static constexpr int64_t kGuard = 128;

  explicit Guarded(const Shape& shape) : shape_(shape), storage_(static_cast<size_t>(shape.numel() + 2 * kGuard)) {
    poison(0, static_cast<int64_t>(storage_.size()));
  }
  View<T> view() { return View<T>(data(), shape_); }
  operator View<T>() { return view(); }
  operator View<const T>() { return view(); }
  T* data() { return storage_.data() + kGuard; }
  const T* data() const { return storage_.data() + kGuard; }
  T& operator[](int64_t i) { return data()[i]; }
  const T& operator[](int64_t i) const { return data()[i]; }
  int64_t size() const { return shape_.numel(); }
  const Shape& shape() const { return shape_; }
  // The whole allocation: guard, array, guard.
  T* storage() { return storage_.data(); }
  int64_t storage_size() const { return static_cast<int64_t>(storage_.size()); }
  // As it was born: all poison.
  void poison() { poison(0, storage_size()); }
  // True when nobody wrote outside the array.
  bool guards_intact() const;
  // True when elements [begin, begin + count) hold the poison that they were born with.
  bool is_poison(int64_t begin, int64_t count) const;
  // True when nobody wrote anything, inside or outside.
  bool untouched() const { return is_poison(0, size()) && guards_intact(); }

 private:
  static T poison_value();
  void poison(int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) storage_[static_cast<size_t>(i)] = poison_value();
  }
  Shape shape_;
  std::vector<T> storage_;
};

// Normal(0, scale) values, all distinct in practice, rounded to T.
template <class T>
void fill_normal(Guarded<T>& array, Rng& rng, float scale = 1.0f, float mean = 0.0f);
// Uniform in [lo, hi).
template <class T>
void fill_uniform(Guarded<T>& array, Rng& rng, float lo, float hi);

// rms(a - b) / (rms(b) + 1e-30), the measure of design.md 4; NaN in `got` gives infinity.
double relative_rmse(const std::vector<double>& got, const std::vector<double>& want);
double max_abs_diff(const std::vector<double>& got, const std::vector<double>& want);

// An array of any element type as doubles.
template <class T>
std::vector<double> doubles(const Guarded<T>& array) {
  std::vector<double> out(static_cast<size_t>(array.size()));
  for (int64_t i = 0; i < array.size(); ++i) {
    if constexpr (std::is_same_v<T, bf16> || std::is_same_v<T, f16>)
      out[static_cast<size_t>(i)] = to_float(array[i]);
    else
      out[static_cast<size_t>(i)] = static_cast<double>(array[i]);
  }
  return out;
}

// Bitwise equality of two arrays.
template <class T>
bool same_bits(const Guarded<T>& a, const Guarded<T>& b);

}  // namespace kdelta::test
