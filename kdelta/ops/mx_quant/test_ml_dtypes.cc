// The formats and the quantiser against the PyPI package ml-dtypes: every code, and a million random blocks for every
// format and rule. tools/make_mx_golden.py made the file and the blocks; its words are the definition.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <sstream>

#include "kdelta/ops/common/dispatch.h"
#include "kdelta/ops/mx_quant/test_oracle.h"

namespace kdelta {
namespace {

using test::Guarded;
using test::MxResult;
using test::TestExec;

constexpr int kChunks = 20;
constexpr int64_t kBlocks = 50000, kElements = kBlocks * kMxBlock;
constexpr const char* kRules[] = {"floor", "rceil", "even"};

const char* name_of(DType format) {
  return format == DType::f8_e4m3 ? "e4m3" : format == DType::f8_e5m2 ? "e5m2" : "e2m1";
}

struct Golden {
  std::map<std::string, std::map<int, uint32_t>> values;        // by format and code
  std::map<std::string, std::pair<uint64_t, uint64_t>> blocks;  // "e4m3 floor 0"

  Golden() {
    std::ifstream in("tests/golden/ml_dtypes/mx.txt");
    std::string line;
    while (std::getline(in, line)) {
      std::istringstream words(line);
      std::string kind, format, rule;
      words >> kind >> format;
      if (kind == "value") {
        int code = 0;
        uint32_t bits = 0;
        words >> code >> std::hex >> bits;
        values[format][code] = bits;
      } else if (kind == "blocks") {
        int chunk = 0;
        uint64_t codes = 0, scales = 0;
        words >> rule >> chunk >> std::hex >> codes >> scales;
        blocks[format + " " + rule + " " + std::to_string(chunk)] = {codes, scales};
      }
    }
  }
};

const Golden& golden() {
  static const Golden g;
  return g;
}

uint64_t splitmix(uint64_t n) {
  uint64_t z = (n + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

Guarded<float> random_blocks(int chunk) {
  Guarded<float> x({kBlocks, kMxBlock});
  for (int64_t b = 0; b < kBlocks; ++b) {
    const auto block = static_cast<uint64_t>(chunk * kBlocks + b);
    const uint64_t base = splitmix(block ^ uint64_t{1} << 60), exponent = (base & 0xff) % 255, kind = (base >> 8) % 64;
    for (uint64_t i = 0; i < kMxBlock; ++i) {
      const uint64_t e = splitmix(block * kMxBlock + i), below = (e >> 32) % 24;
      const uint64_t field = exponent > below ? exponent - below : 0;
      uint64_t mantissa = e & 0x7fffff;
      if (kind % 4 == 1) mantissa &= 0x7f0000;
      if (kind % 4 == 2) mantissa &= 0x780000;
      uint64_t bits = (e >> 63) << 31 | field << 23 | mantissa;
      if (kind == 60) bits &= 0x80000000u;
      if (kind >= 62 && i == (base >> 16) % kMxBlock) bits = kind == 62 ? 0x7fc00000u : 0xff800000u;
      x[b * kMxBlock + static_cast<int64_t>(i)] = std::bit_cast<float>(static_cast<uint32_t>(bits));
    }
  }
  return x;
}

template <class F>
uint64_t checksum(int64_t n, const F& value) {
  static const std::vector<uint64_t> weights = [] {
    std::vector<uint64_t> w(kElements);
    for (uint64_t i = 0; i < w.size(); ++i) w[i] = splitmix(i);
    return w;
  }();
  uint64_t sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += (uint64_t{value(i)} + 1) * weights[static_cast<size_t>(i)];
  return sum;
}

// All 256 codes of E4M3, E5M2 and E8M0, the 16 of E2M1.
TEST(MlDtypesValues, EveryCodeHasItsValue) {
  const auto expect = [](const std::string& format, int codes, auto value) {
    const auto& table = golden().values.at(format);
    ASSERT_EQ(table.size(), static_cast<size_t>(codes));
    for (const auto& [code, bits] : table) {
      const float want = std::bit_cast<float>(bits), got = value(static_cast<uint8_t>(code));
      if (std::isnan(want))
        EXPECT_TRUE(std::isnan(got)) << format << " " << code;
      else
        EXPECT_EQ(std::bit_cast<uint32_t>(got), bits) << format << " " << code;
    }
  };
  expect("e4m3", 256, f8_e4m3_to_float);
  expect("e5m2", 256, f8_e5m2_to_float);
  expect("e8m0", 256, e8m0_to_float);
  expect("e2m1", 16, e2m1_to_float);
}

class MlDtypes : public test::OpVariantTest {
 protected:
  MlDtypes() : OpVariantTest("mx_quantize") {}
};
KDELTA_INSTANTIATE_VARIANTS(MlDtypes, mx_quantize_variants());

TEST_P(MlDtypes, AMillionRandomBlocksOfEveryFormatAndRuleHaveItsCodesAndScales) {
  // The definition is slow and the same for all blocks; it takes every tenth chunk.
  const int step = GetParam() == "reference" ? 10 : 1;
  for (int chunk = 0; chunk < kChunks; chunk += step) {
    Guarded<float> x = random_blocks(chunk);
    for (DType format : test::kMxFormats)
      for (MxScaleRule rule : test::kMxRules) {
        const MxResult got = test::quantised(ex, x, format, rule);
        const std::string key = str(name_of(format), " ", kRules[static_cast<size_t>(rule)], " ", chunk);
        const auto& want = golden().blocks.at(key);
        const uint8_t* codes = got.codes.data();
        EXPECT_EQ(
            format == DType::f4_e2m1
                ? checksum(kElements, [&](int64_t i) { return static_cast<uint8_t>(codes[i / 2] >> (i % 2 * 4) & 15); })
                : checksum(kElements, [&](int64_t i) { return codes[i]; }),
            want.first)
            << "codes of " << key;
        EXPECT_EQ(checksum(kBlocks, [&](int64_t i) { return got.scale[i]; }), want.second) << "scales of " << key;
      }
  }
}

}  // namespace
}  // namespace kdelta
