#include "kdelta/model/dummy.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kdelta/core/check.h"
#include "kdelta/core/moves.h"

namespace kdelta {
namespace {

// Codes repeat after this many bytes, a prime, so that no two rows of a matrix are alike: what is random about weights
// matters less than that terabytes of them are made at the speed of a copy.
constexpr int64_t kPeriod = 1048573;

uint64_t mixed(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// FP4: all codes, whose magnitudes are 0 to 6. E4M3 codes are ordered like their values: the 16 from 0.5 on, of either
// sign, far from what is not finite.
std::vector<uint8_t> make_pattern(DType dtype) {
  std::vector<uint8_t> codes(static_cast<size_t>(kPeriod));
  constexpr uint8_t kHalf = 0x30;
  for (size_t i = 0; i < codes.size(); ++i) {
    const auto random = static_cast<uint8_t>(mixed((i + 1) * 0x9e3779b97f4a7c15u) >> 32);
    codes[i] = dtype == DType::f4_e2m1 ? random : static_cast<uint8_t>((random & 0x80) | (kHalf + (random & 0x0f)));
  }
  return codes;
}

const std::vector<uint8_t>& pattern(DType dtype) {
  static const std::vector<uint8_t> fp4 = make_pattern(DType::f4_e2m1), e4m3 = make_pattern(DType::f8_e4m3);
  return dtype == DType::f4_e2m1 ? fp4 : e4m3;
}

// Root of the mean square of all codes' values.
float spread(DType dtype) {
  constexpr int64_t kSome = 4096;
  constexpr uint8_t kOne = 127;
  const std::vector<uint8_t> scales(kSome / kMxBlock, kOne);
  std::vector<float> values(kSome);
  dequantize_row({.data = pattern(dtype).data(),
                  .scale = scales.data(),
                  .dtype = dtype,
                  .rows = 1,
                  .cols = kSome,
                  .row_bytes = kSome,
                  .scale_row_bytes = kSome / kMxBlock},
                 0, values.data());
  double sum = 0;
  for (const float v : values) sum += static_cast<double>(v) * v;
  return static_cast<float>(std::sqrt(sum / kSome));
}

}  // namespace

Precision DummyFormats::precision(const PlacedSpec& placed) {
  const std::string module = placed.prefix + placed.spec.names[0];
  if (placed.spec.kind != WeightKind::matrix) return Precision::floating;
  if (placed.spec.group.empty()) return described_.meant_for(module);
  const auto [group, added] = groups_.try_emplace({placed.prefix, placed.spec.group}, Precision::floating);
  if (added) group->second = described_.meant_for(module);
  return group->second;
}

Matrix DummyFormats::matrix(const PlacedSpec& placed) {
  const Precision p = precision(placed);
  const DType dtype = p == Precision::mxfp4 ? DType::f4_e2m1 : p == Precision::mxfp8 ? DType::f8_e4m3 : DType::bf16;
  const std::string module = placed.prefix + placed.spec.names[0];
  const int64_t rows = placed.spec.shape[0], cols = placed.spec.shape[1];
  Matrix m = dense_matrix(nullptr, dtype, rows, cols);
  if (!m.is_mx()) return m;
  if (cols % kMxBlock != 0)
    fail(ErrorCode::bad_file, "config.json: quantization_config: ", module, ": ", to_string(p),
         " needs columns in multiples of ", kMxBlock, ", it has ", cols);
  if (!placed.spec.absorbed) m.input = described_.input_of(module, p);
  return m;
}

DeviceWeights::Uniform dummy_values(const PlacedSpec& placed, uint64_t seed, const Shard& shard) {
  const WeightSpec& spec = placed.spec;
  // A weight's own, whatever else a rank holds; of this rank where ranks differ.
  uint64_t hash = 0xcbf29ce484222325u ^ seed;  // FNV-1a
  for (const char c : placed.prefix + spec.names[0]) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
  if (spec.shard != ShardRule::whole) hash += static_cast<uint64_t>(shard.rank) * 0x9e3779b97f4a7c15u;
  // A layer keeps the size of its input: the variance of a uniform value is a third of its square.
  if (std::holds_alternative<Matrix*>(spec.target))
    return {.center = 0, .scale = std::sqrt(3.0f / static_cast<float>(spec.shape[1])), .seed = hash};
  // Scores are apart by about 0.2; what is added to them evens out what experts get, and a random one of that size
  // would send every token to the same few.
  if (spec.names[0].ends_with("e_score_correction_bias")) return {.center = 0, .scale = 0.01f, .seed = hash};
  return {.center = spec.kind == WeightKind::vector ? 1.0f : 0.0f, .scale = 0.25f, .seed = hash};
}

void dummy_codes(DType dtype, uint64_t seed, int64_t begin, std::span<uint8_t> out) {
  const std::vector<uint8_t>& codes = pattern(dtype);
  auto at = static_cast<int64_t>((mixed(seed) % kPeriod + static_cast<uint64_t>(begin)) % kPeriod);
  for (size_t done = 0; done < out.size(); at = 0) {
    const size_t count = std::min(out.size() - done, static_cast<size_t>(kPeriod - at));
    std::copy_n(codes.begin() + at, count, out.begin() + static_cast<std::ptrdiff_t>(done));
    done += count;
  }
}

uint8_t dummy_scale(DType dtype, const DeviceWeights::Uniform& values) {
  static const float fp4 = spread(DType::f4_e2m1), e4m3 = spread(DType::f8_e4m3);
  const float wanted = values.scale / std::sqrt(3.0f), codes = dtype == DType::f4_e2m1 ? fp4 : e4m3;
  return static_cast<uint8_t>(std::clamp(127 + static_cast<int>(std::lround(std::log2(wanted / codes))), 1, 254));
}

}  // namespace kdelta
