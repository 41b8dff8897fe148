// What a layer reads on the device: random weights for its specs, random activations.
#pragma once

#include <deque>
#include <functional>
#include <random>

#include "kdelta/layers/spec.h"
#include "tests/gpu/effect_case.h"

namespace kdelta::test {

class LayerArrays {
 public:
  explicit LayerArrays(Stream& stream, uint64_t seed = 9) : stream_(stream), rng_(seed) {}
  void seed(uint64_t seed) { rng_.seed(seed); }

  template <class T>
  T* put(const std::vector<T>& values) {
    buffers_.emplace_back(kCuda, static_cast<int64_t>(values.size() * sizeof(T)));
    copy_async(stream_, buffers_.back().data(), values.data(), buffers_.back().bytes());
    stream_.synchronize();
    return static_cast<T*>(buffers_.back().data());
  }
  template <class T>
  T* random(int64_t n, float size) {
    std::normal_distribution<float> normal(0, size);
    std::vector<T> values(static_cast<size_t>(n));
    for (T& v : values) v = from_float<T>(normal(rng_));
    return put(values);
  }
  // Weights of a layer, the matrices of one shape and format at one distance. Those that `coded` names are MXFP8 and
  // take MXFP8 inputs, the others are bf16.
  void bind(const std::vector<WeightSpec>& specs, const std::function<bool(const std::string&)>& coded = {}) {
    std::vector<bf16> dense;
    for (const WeightSpec& spec : specs)
      if (is_dense(spec, coded)) add_values(dense, spec.shape.numel());
    const bf16* next = put(dense);
    for (const WeightSpec& spec : specs) {
      if (Matrix* const* m = std::get_if<Matrix*>(&spec.target)) {
        const int64_t rows = spec.shape[0], cols = spec.shape[1];
        if (is_dense(spec, coded)) {
          **m = dense_matrix(next, DType::bf16, rows, cols);
          next += spec.shape.numel();
        } else {
          **m = dense_matrix(bytes(rows * cols, 0, 0x60), DType::f8_e4m3, rows, cols,
                             bytes(rows * cols / kMxBlock, 112, 6));
          (*m)->input = {.format = DType::f8_e4m3};
        }
      } else {
        const Shape shape = spec.kind == WeightKind::conv_taps ? Shape{spec.shape[1], spec.shape[0]} : spec.shape;
        *std::get<View<const float>*>(spec.target) = View<const float>(random<float>(shape.numel(), 0.5f), shape);
      }
    }
  }

 private:
  static bool is_dense(const WeightSpec& spec, const std::function<bool(const std::string&)>& coded) {
    return std::holds_alternative<Matrix*>(spec.target) && !(coded && coded(spec.names[0]));
  }
  void add_values(std::vector<bf16>& to, int64_t n) {
    std::normal_distribution<float> normal(0, 0.06f);
    for (int64_t i = 0; i < n; ++i) to.push_back(from_float<bf16>(normal(rng_)));
  }
  uint8_t* bytes(int64_t n, uint64_t first, uint64_t count) {
    std::vector<uint8_t> values(static_cast<size_t>(n));
    for (uint8_t& v : values) v = static_cast<uint8_t>(first + rng_() % count);
    return put(values);
  }
  Stream& stream_;
  Rng rng_;
  std::deque<Buffer> buffers_;
};

}  // namespace kdelta::test
