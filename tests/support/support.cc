#include "tests/support/support.h"

#include <cmath>
#include <cstring>

#include "kdelta/core/check.h"

namespace kdelta::test {

TestExec::TestExec(int threads, int64_t scratch_bytes) : arena_(Device{}, scratch_bytes), threads_(threads) {
  exec_.scratch = &arena_;
  exec_.threads = &threads_;
  exec_.options = &options_;
}

template <class T>
T Guarded<T>::poison_value() {
  if constexpr (std::is_floating_point_v<T>) return std::numeric_limits<T>::quiet_NaN();
  T value;
  std::memset(&value, std::is_same_v<T, bf16> || std::is_same_v<T, f16> ? 0xff : 0xa5,
              sizeof(value));  // 0xffff is a NaN in both
  return value;
}

template <class T>
bool Guarded<T>::guards_intact() const {
  const T want = poison_value();
  const auto n = static_cast<int64_t>(storage_.size());
  for (int64_t i = 0; i < n; ++i) {
    if (i == kGuard) i = n - kGuard;
    if (std::memcmp(&storage_[static_cast<size_t>(i)], &want, sizeof(T)) != 0) return false;
  }
  return true;
}

template <class T>
bool Guarded<T>::is_poison(int64_t begin, int64_t count) const {
  const T want = poison_value();
  for (int64_t i = begin; i < begin + count; ++i)
    if (std::memcmp(data() + i, &want, sizeof(T)) != 0) return false;
  return true;
}

namespace {

template <class T>
T convert(float x) {
  if constexpr (std::is_same_v<T, bf16>)
    return to_bf16(x);
  else if constexpr (std::is_same_v<T, f16>)
    return to_f16(x);
  else
    return static_cast<T>(x);
}

}  // namespace

template <class T>
void fill_normal(Guarded<T>& array, Rng& rng, float scale, float mean) {
  std::normal_distribution<float> d(mean, scale);
  for (int64_t i = 0; i < array.size(); ++i) array[i] = convert<T>(d(rng));
}

template <class T>
void fill_uniform(Guarded<T>& array, Rng& rng, float lo, float hi) {
  std::uniform_real_distribution<float> d(lo, hi);
  for (int64_t i = 0; i < array.size(); ++i) array[i] = convert<T>(d(rng));
}

double relative_rmse(const std::vector<double>& got, const std::vector<double>& want) {
  KDELTA_CHECK(got.size() == want.size(), got.size(), " against ", want.size());
  double diff = 0, norm = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(got[i])) return std::numeric_limits<double>::infinity();
    diff += (got[i] - want[i]) * (got[i] - want[i]);
    norm += want[i] * want[i];
  }
  return std::sqrt(diff) / (std::sqrt(norm) + 1e-30);
}

double max_abs_diff(const std::vector<double>& got, const std::vector<double>& want) {
  KDELTA_CHECK(got.size() == want.size(), got.size(), " against ", want.size());
  double worst = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(got[i]) != std::isnan(want[i])) return std::numeric_limits<double>::infinity();
    if (!std::isnan(got[i])) worst = std::max(worst, std::fabs(got[i] - want[i]));
  }
  return worst;
}

template <class T>
bool same_bits(const Guarded<T>& a, const Guarded<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), static_cast<size_t>(a.size()) * sizeof(T)) == 0;
}

#define KDELTA_TEST_INSTANTIATE(T)                             \
  template class Guarded<T>;                                   \
  template void fill_normal(Guarded<T>&, Rng&, float, float);  \
  template void fill_uniform(Guarded<T>&, Rng&, float, float); \
  template bool same_bits(const Guarded<T>&, const Guarded<T>&);
KDELTA_TEST_INSTANTIATE(float)
KDELTA_TEST_INSTANTIATE(double)
KDELTA_TEST_INSTANTIATE(bf16)
KDELTA_TEST_INSTANTIATE(f16)
KDELTA_TEST_INSTANTIATE(int8_t)
KDELTA_TEST_INSTANTIATE(uint8_t)
KDELTA_TEST_INSTANTIATE(int32_t)
KDELTA_TEST_INSTANTIATE(int64_t)

}  // namespace kdelta::test
