#include <gtest/gtest.h>

#include "kdelta/api/roof/roof_time.h"

namespace kdelta::bench {
namespace {

TEST(RoofTime, IsTheSumOverOpsOfWhatTakesLongerBytesOrProductsOfTheVariant) {
  RoofTime time({.bytes = 100, .bf16_products = 1000, .fp32_products = 10});
  EXPECT_EQ(time.seconds(), 0);
  time.on_op("linear", "avx512_bf16", {.bytes = 200, .flops = 1000});  // 2 s of bytes, 1 s of products
  EXPECT_DOUBLE_EQ(time.seconds(), 2);
  time.on_op("linear", "amx", {.bytes = 200, .flops = 3000});  // 3 s of products
  EXPECT_DOUBLE_EQ(time.seconds(), 5);
  time.on_op("mla", "avx512", {.bytes = 200, .flops = 100});  // 10 s of fp32 products
  EXPECT_DOUBLE_EQ(time.seconds(), 15);
}

TEST(RoofTime, SampledRatesAreRates) {
  ThreadPool team(2);
  RoofMeter meter(team);
  const RoofRates rates = sample_rates(meter, 1234567);  // any size will do
  // No machine that runs this is slower than 10 MB or 10 million operations a second.
  EXPECT_GT(rates.bytes, 1e7);
  EXPECT_GT(rates.bf16_products, 1e7);
  EXPECT_GT(rates.fp32_products, 1e7);
}

}  // namespace
}  // namespace kdelta::bench
