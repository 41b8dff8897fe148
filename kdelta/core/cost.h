// What a call must move and compute at least: the numerators of every percent-of-roof figure.
#pragma once

namespace kdelta {

struct Cost {
  double bytes = 0;  // read + written, each operand once
  double flops = 0;  // multiply and add count as two
  Cost& operator+=(const Cost& o) {
    bytes += o.bytes;
    flops += o.flops;
    return *this;
  }
};

}  // namespace kdelta
