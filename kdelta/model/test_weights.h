// A small KDA layer's weights in memory, for tests of binding, composing and updating.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "kdelta/model/bind.h"
#include "tests/support/op_test.h"

namespace kdelta::test {

struct MemoryTensor {
  DType dtype = DType::bf16;
  std::vector<int64_t> shape;
  std::vector<uint8_t> bytes;
};
using MemoryTensors = std::map<std::string, MemoryTensor>;

inline MemoryTensor random_matrix(DType dtype, int64_t rows, int64_t cols, uint64_t seed) {
  Rng rng(seed);
  MemoryTensor t{dtype, {rows, cols}, std::vector<uint8_t>(static_cast<size_t>(rows * cols * dtype_bytes(dtype)))};
  std::normal_distribution<float> normal;
  for (int64_t i = 0; i < rows * cols; ++i) {
    const float x = normal(rng);
    const bf16 half = to_bf16(x);
    if (dtype == DType::f32) std::memcpy(&t.bytes[static_cast<size_t>(4 * i)], &x, 4);
    if (dtype == DType::bf16) std::memcpy(&t.bytes[static_cast<size_t>(2 * i)], &half, 2);
  }
  return t;
}

inline MemoryTensor random_bytes(DType dtype, std::vector<int64_t> shape, uint64_t seed, int most = 128) {
  Rng rng(seed);
  int64_t n = 1;
  for (int64_t d : shape) n *= d;
  MemoryTensor t{dtype, std::move(shape), std::vector<uint8_t>(static_cast<size_t>(n))};
  for (uint8_t& b : t.bytes) b = static_cast<uint8_t>(rng() % static_cast<uint64_t>(most));
  return t;
}

// Rows [begin, begin + count) of t.
inline MemoryTensor rows_of(const MemoryTensor& t, int64_t begin, int64_t count) {
  MemoryTensor part = t;
  const auto row = static_cast<int64_t>(t.bytes.size()) / t.shape[0];
  part.shape[0] = count;
  part.bytes.assign(t.bytes.begin() + begin * row, t.bytes.begin() + (begin + count) * row);
  return part;
}

// The matrices of a layer that this rank holds, as bytes without gaps.
inline std::vector<uint8_t> bytes_of(const Matrix& m) {
  std::vector<uint8_t> out;
  const int64_t row = (m.cols * dtype_bits(m.dtype) + 7) / 8;
  for (int64_t r = 0; r < m.rows; ++r) {
    out.insert(out.end(), m.row(r), m.row(r) + row);
    if (m.is_mx()) out.insert(out.end(), m.scale_row(r), m.scale_row(r) + m.cols / kMxBlock);
  }
  return out;
}

inline std::vector<float> floats_of(const View<const float>& v) {
  return {v.data, v.data + v.shape.numel()};
}

// H heads of K rows for one rank of `ranks`; D inputs.
struct SmallLayer {
  static constexpr int64_t K = 8, D = 64, kTaps = 4;
  int64_t heads, ranks;
  Matrix q, k, v, b, f, g, o;
  View<const float> a_log, dt_bias, conv;

  explicit SmallLayer(int64_t local_heads, int64_t number_of_ranks = 1) : heads(local_heads), ranks(number_of_ranks) {}

  std::vector<PlacedSpec> specs() {
    const int64_t P = heads * K;
    const auto matrix = [](const char* name, Shape shape, ShardRule shard, const char* group, Matrix* target) {
      return PlacedSpec{"l.", {.names = {name}, .shape = shape, .shard = shard, .group = group, .target = target}};
    };
    return {matrix("q", {P, D}, ShardRule::rows, "q, k and v", &q),
            matrix("k", {P, D}, ShardRule::rows, "q, k and v", &k),
            matrix("v", {P, D}, ShardRule::rows, "q, k and v", &v),
            matrix("b", {heads, D}, ShardRule::rows, "gates", &b),
            matrix("g", {P, D}, ShardRule::rows, "gates", &g),
            matrix("o", {D, P}, ShardRule::columns, "", &o),
            {"l.",
             {.names = {"f_b", "f_a"},
              .kind = WeightKind::product,
              .shape = {P, D},
              .inner = K,
              .shard = ShardRule::rows,
              .group = "gates",
              .target = &f}},
            {"l.",
             {.names = {"A_log"},
              .kind = WeightKind::head_scalar,
              .shape = {heads},
              .suffix = "",
              .shard = ShardRule::rows,
              .target = &a_log}},
            {"l.",
             {.names = {"dt_bias"},
              .kind = WeightKind::vector,
              .shape = {P},
              .suffix = "",
              .shard = ShardRule::rows,
              .target = &dt_bias}},
            {"l.",
             {.names = {"qc", "kc", "vc"},
              .kind = WeightKind::conv_taps,
              .shape = {3 * P, kTaps},
              .shard = ShardRule::rows,
              .merged = "conv",
              .target = &conv}}};
  }

  // Everything a model of all ranks stores.
  MemoryTensors whole(uint64_t seed = 1) const {
    const int64_t H = heads * ranks, P = H * K;
    MemoryTensors t = {{"l.q.weight", random_matrix(DType::bf16, P, D, seed + 1)},
                       {"l.k.weight", random_matrix(DType::bf16, P, D, seed + 2)},
                       {"l.v.weight", random_matrix(DType::bf16, P, D, seed + 3)},
                       {"l.b.weight", random_matrix(DType::bf16, H, D, seed + 4)},
                       {"l.g.weight", random_matrix(DType::bf16, P, D, seed + 5)},
                       {"l.o.weight", random_matrix(DType::bf16, D, P, seed + 6)},
                       {"l.f_b.weight", random_matrix(DType::bf16, P, K, seed + 7)},
                       {"l.f_a.weight", random_matrix(DType::bf16, K, D, seed + 8)},
                       {"l.A_log", random_matrix(DType::f32, 1, H, seed + 9)},
                       {"l.dt_bias", random_matrix(DType::f32, 1, P, seed + 10)}};
    t.at("l.A_log").shape = {H};
    t.at("l.dt_bias").shape = {P};
    for (const char* part : {"qc", "kc", "vc"}) {
      MemoryTensor taps = random_matrix(DType::f32, P, kTaps, ++seed + 20);
      taps.shape = {P, 1, kTaps};
      t["l." + std::string(part) + ".weight"] = taps;
    }
    return t;
  }

  // All that the layer holds, as bytes.
  std::vector<uint8_t> everything() const {
    std::vector<uint8_t> all;
    for (const Matrix* m : {&q, &k, &v, &b, &g, &o, &f}) {
      const std::vector<uint8_t> bytes = bytes_of(*m);
      all.insert(all.end(), bytes.begin(), bytes.end());
    }
    for (const View<const float>* values : {&a_log, &dt_bias, &conv}) {
      const auto* bytes = reinterpret_cast<const uint8_t*>(values->data);
      all.insert(all.end(), bytes, bytes + values->shape.numel() * 4);
    }
    return all;
  }
};

inline void put(WeightUpdate& update, const std::string& name, const MemoryTensor& t) {
  EXPECT_TRUE(update.put(name, t.dtype, t.shape, t.bytes.data())) << name;
}

inline void put_all(BoundWeights& weights, const MemoryTensors& tensors) {
  WeightUpdate update(weights);
  for (const auto& [name, tensor] : tensors) put(update, name, tensor);
  update.commit();
}

inline BindOptions bind_options(int rank = 0, int ranks = 1) {
  BindOptions o{.shard = {rank, ranks}, .options = {}};
  o.options.threads = 2;
  return o;
}

inline BoundWeights load_all(SmallLayer& layer, const MemoryTensors& tensors, int rank = 0) {
  BoundWeights w = BoundWeights::expect(layer.specs(), bind_options(rank, static_cast<int>(layer.ranks)));
  w.allocate();
  put_all(w, tensors);
  w.finalize();
  return w;
}

}  // namespace kdelta::test
