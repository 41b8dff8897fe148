#include "kdelta/api/roof/roof_time.h"

#include <algorithm>

namespace kdelta::bench {

RoofRates sample_rates(RoofMeter& meter, int64_t footprint) {
  // Whole MiB, because the meter's pieces are aligned parts of it; past 1 GiB no cache holds any of them.
  constexpr int64_t kMiB = int64_t{1} << 20;
  const int64_t bytes = std::clamp((footprint + kMiB - 1) / kMiB, int64_t{1}, int64_t{1024}) * kMiB;
  return {.bytes = meter.sample({.kind = RoofKind::read, .footprint = bytes}),
          .bf16_products = meter.sample({.kind = RoofKind::tile_bf16}),
          .fp32_products = meter.sample({.kind = RoofKind::fma_f32})};
}

void RoofTime::on_op(std::string_view, std::string_view variant, const Cost& cost) {
  // Variants are named after what they need, so the name says with which instruction products are made.
  const bool bf16 = variant.find("bf16") != std::string_view::npos || variant.find("amx") != std::string_view::npos;
  seconds_ += std::max(cost.bytes / rates_.bytes, cost.flops / (bf16 ? rates_.bf16_products : rates_.fp32_products));
}

}  // namespace kdelta::bench
