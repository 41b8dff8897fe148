// How far a whole step is from what the machine can do: the least time its ops could have taken, one after the other.
#pragma once

#include "kdelta/api/roof/roof.h"
#include "kdelta/core/exec.h"

namespace kdelta::bench {

// Per second, all threads together.
struct RoofRates {
  double bytes = 0;          // read from a footprint
  double bf16_products = 0;  // flops of the best bf16 instruction
  double fp32_products = 0;  // flops of fp32 multiply-add
};

// One sample of each. `footprint`: bytes that a step goes through (any number), so that a model in a cache meets the
// cache's rate.
RoofRates sample_rates(RoofMeter& meter, int64_t footprint);

// Sums over the ops it sees, each at the rate of its bytes or of its products, whichever takes longer. Costs are what
// an op must move and compute at least, from sizes that the host knows: where only an upper bound of those is known
// (experts that are met, contexts of a mixed batch) the time is too long by that.
class RoofTime final : public OpObserver {
 public:
  explicit RoofTime(const RoofRates& rates) : rates_(rates) {}
  void on_op(std::string_view op, std::string_view variant, const Cost& cost) override;
  double seconds() const { return seconds_; }

 private:
  RoofRates rates_;
  double seconds_ = 0;
};

}  // namespace kdelta::bench
