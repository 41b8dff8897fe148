// One call of an op, run on copies of the same arrays by the CPU reference and by CUDA rows: every array must hold the
// same afterwards, within its bound, guards and everything unwritten bit for bit. Each CUDA row runs eagerly, then
// captured and replayed three times on fresh inputs.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kdelta/core/graph.h"
#include "kdelta/ops/common/op.h"
#include "tests/support/support.h"

namespace kdelta::test {

inline constexpr Device kCuda{DeviceKind::cuda, 0};

// An Exec of the device with its own stream, second queue, scratch and fault word.
class CudaExec {
 public:
  explicit CudaExec(int64_t scratch_bytes = int64_t{256} << 20);
  const Exec& exec() const { return exec_; }
  operator const Exec&() const { return exec_; }
  Exec& mutable_exec() { return exec_; }
  Stream& stream() { return stream_; }
  void force(const std::string& op, const std::string& variant) { options_.force[op] = variant; }
  // Waits, returns the fault bits raised so far and clears them.
  uint32_t take_faults();

 private:
  Stream stream_, side_stream_;
  Arena scratch_, side_scratch_;
  Event forked_, joined_;
  AuxQueue aux_;
  Buffer faults_;
  Options options_;
  Exec exec_;
};

// How far an element may be from the reference's: |got - want| <= relative |want| + absolute. All zero: the same bits.
// At most `share` of the elements may differ at all, a few always. With `rms`, the array as a whole instead:
// rms(got - want) <= rms * rms(want), zeros and NaN where they are wanted.
struct Bound {
  double relative = 0, absolute = 0, share = 1, rms = 0;
};
// Of a result in T whose fp32 value is good to `relative`: the reference is rounded to bf16 as well, so one that lies
// near the middle of two bf16 numbers may fall to either, a step apart; few do.
template <class T>
Bound rounded(double relative = 1e-5, double absolute = 1e-30) {
  if (sizeof(T) == 4) return {.relative = relative, .absolute = absolute};
  return {.relative = 0x1p-7, .absolute = absolute, .share = 5e-3};
}

class EffectCase {
 public:
  // Where the arrays of a call live: at(array) is the array on the host, or its copy on the device.
  class At {
   public:
    explicit At(const EffectCase* device_of) : case_(device_of) {}
    template <class T>
    View<T> operator()(Guarded<T>& a) const {
      if (case_ == nullptr) return a.view();
      return View<T>(static_cast<T*>(case_->device_address(&a)), a.shape());
    }
    bool on_device() const { return case_ != nullptr; }

   private:
    const EffectCase* case_;
  };

  // Registers an array of the call. `shift` moves its copy that many elements from a 256-byte boundary.
  template <class T>
  void array(const char* name, Guarded<T>& a, Bound bound = {}, int64_t shift = 0) {
    arrays_.push_back(std::make_unique<TypedArray<T>>(name, a, bound, shift));
  }

  std::function<void(Rng&)> fill;                         // writes the inputs; everything else is poison
  std::function<void(const Exec&, const At&)> call;       // the op
  std::function<void(const Exec&, const At&)> reference;  // what the CPU reference is asked; unset: `call`
  uint32_t faults = 0;                                    // bits that the device must raise

  // Runs every CUDA row of the op that this device has and that takes the call; at least one must.
  template <class Rows>
  void run(const char* op, const Rows& rows) {
    int ran = 0;
    for (const auto& row : rows) {
      if (machine_refusal(row, device_target()) != nullptr) continue;
      SCOPED_TRACE(str(op, ":", row.name));
      ran += run_row(op, row.name) ? 1 : 0;
    }
    EXPECT_GT(ran, 0) << op << ": no CUDA row takes this call";
  }
  // False when the row refuses the call; `refused` says why.
  std::string refused;
  bool run_row(const std::string& op, const std::string& variant);

  // For calls that a test makes by itself: the arrays as they are now to the device, and back.
  void upload(Stream& stream);
  void download(Stream& stream);

  static const Target& device_target();
  void* device_address(const void* array) const;

 private:
  struct Array {
    explicit Array(const char* n) : name(n) {}
    virtual ~Array() = default;
    virtual void poison() = 0;
    virtual void save_before() = 0;              // host array -> before
    virtual void save_want() = 0;                // host array -> want
    virtual void upload(Stream& stream) = 0;     // before -> device
    virtual void download(Stream& stream) = 0;   // device -> host array
    virtual std::string difference() const = 0;  // host array against want; empty: within the bound
    virtual void restore() = 0;                  // before -> host array
    virtual void* device() = 0;
    virtual const void* key() const = 0;
    const char* name;
  };

  template <class T>
  struct TypedArray final : Array {
    TypedArray(const char* n, Guarded<T>& a, Bound b, int64_t s)
        : Array(n),
          array(a),
          before(a),
          want(a),
          bound(b),
          shift(s),
          memory(kCuda, (a.storage_size() + s) * static_cast<int64_t>(sizeof(T)) + 256) {}
    // The array itself, behind its guard, is at `shift` elements from a boundary: the guard is a multiple of 256 bytes
    // or is padded up to one.
    T* storage_on_device() const {
      constexpr int64_t kGuardBytes = Guarded<T>::kGuard * static_cast<int64_t>(sizeof(T));
      auto* base = static_cast<char*>(memory.data()) + (256 - kGuardBytes % 256) % 256;
      return reinterpret_cast<T*>(base) + shift;
    }
    int64_t bytes() const { return array.storage_size() * static_cast<int64_t>(sizeof(T)); }
    void poison() override { array.poison(); }
    void save_before() override { before = array; }
    void save_want() override { want = array; }
    void restore() override { array = before; }
    void upload(Stream& stream) override { copy_async(stream, storage_on_device(), before.storage(), bytes()); }
    void download(Stream& stream) override { copy_async(stream, array.storage(), storage_on_device(), bytes()); }
    void* device() override { return storage_on_device() + Guarded<T>::kGuard; }
    const void* key() const override { return &array; }

    static double number(T x) {
      if constexpr (std::is_same_v<T, bf16> || std::is_same_v<T, f16>)
        return static_cast<double>(to_float(x));
      else
        return static_cast<double>(x);
    }
    bool close(T got, T wanted) const {
      if (bound.relative == 0 && bound.absolute == 0) return false;
      const double g = number(got), w = number(wanted);
      if (std::isnan(g) || std::isnan(w)) return std::isnan(g) && std::isnan(w);
      return std::fabs(g - w) <= bound.relative * std::fabs(w) + bound.absolute;
    }
    std::string rms_difference(const T* got, const T* wanted) const {
      const int64_t guard = Guarded<T>::kGuard, n = array.storage_size();
      double error = 0, size = 0;
      for (int64_t i = 0; i < n; ++i) {
        if (std::memcmp(got + i, wanted + i, sizeof(T)) == 0 && !std::isfinite(number(got[i]))) continue;
        const double g = number(got[i]), w = number(wanted[i]);
        if (std::isnan(g) && std::isnan(w) && i >= guard && i < n - guard) continue;
        const bool exact = i < guard || i >= n - guard || w == 0;
        if (std::isnan(g) || std::isnan(w) || (exact && std::memcmp(got + i, wanted + i, sizeof(T)) != 0))
          return str(this->name, ": element ", i - guard, ": ", g, ", expected ", w);
        error += (g - w) * (g - w), size += w * w;
      }
      if (error <= bound.rms * bound.rms * size) return {};
      return str(this->name, ": relative error ", std::sqrt(error / size), ", at most ", bound.rms);
    }
    std::string difference() const override {
      int64_t wrong = 0, first = -1, unequal = 0;
      T* got = const_cast<Guarded<T>&>(array).storage();
      T* wanted = const_cast<Guarded<T>&>(want).storage();
      if (bound.rms > 0) return rms_difference(got, wanted);
      const int64_t guard = Guarded<T>::kGuard, n = array.storage_size();
      for (int64_t i = 0; i < n; ++i) {
        const bool is_guard = i < guard || i >= n - guard;
        if (std::memcmp(got + i, wanted + i, sizeof(T)) == 0) continue;
        if (!is_guard && close(got[i], wanted[i])) {
          unequal += std::isnan(number(got[i])) ? 0 : 1;  // one NaN is as good as another
          continue;
        }
        if (wrong++ == 0) first = i;
      }
      const double most = bound.share * static_cast<double>(array.size()) + 3;
      if (wrong == 0 && static_cast<double>(unequal) > most)
        return str(this->name, ": ", unequal, " of ", n - 2 * guard, " elements differ by a rounding, at most ", most);
      if (wrong == 0) return {};
      return str(this->name, ": ", wrong, " of ", n - 2 * guard, " elements, the first at ", first - guard, ": ",
                 number(got[first]), ", expected ", number(wanted[first]));
    }

    Guarded<T>& array;
    Guarded<T> before, want;
    Bound bound;
    int64_t shift;
    Buffer memory;
  };

  void prepare(uint64_t seed, const Exec& reference_exec, Stream& stream);
  void compare(CudaExec& device, const char* when);

  std::vector<std::unique_ptr<Array>> arrays_;
};

}  // namespace kdelta::test
