// The compiled kernels of sample, for choose(), tests and benchmarks.
#pragma once

#include "kdelta/ops/common/op.h"
#include "kdelta/ops/sample/sample.h"
#include "kdelta/ops/sample/sample_device.h"

namespace kdelta {

struct SampleDesc {
  Target target;
  int64_t rows = 0, vocabulary = 0;
};

using SampleVariant = Variant<SampleArgs, SampleDesc>;
std::span<const SampleVariant> sample_variants();

int64_t sample_cpu_scratch(const SampleDesc& d);
// Throws Error(invalid_argument) naming row m, field and value.
void check_sample_row(const SampleRow& row, int64_t vocabulary, int64_t m);

#define KDELTA_VARIANT(name, needs, refuse, scratch) \
  void sample_##name(const Exec&, const SampleArgs&, const SampleDesc&, void*);
#include "kdelta/ops/sample/variants.inc"
#undef KDELTA_VARIANT

struct SampleDeviceDesc {
  Target target;
  int64_t rows = 0, vocabulary = 0, most = 0;  // most: W
};

using SampleDeviceVariant = Variant<SampleDeviceArgs, SampleDeviceDesc>;
std::span<const SampleDeviceVariant> sample_device_variants();

const char* sample_device_cuda_cluster_refuse(const SampleDeviceDesc& d);
int64_t sample_device_cuda_scratch(const SampleDeviceDesc& d);
int64_t sample_device_cuda_cluster_scratch(const SampleDeviceDesc& d);

#define KDELTA_VARIANT(name, needs, refuse, scratch) \
  void sample_device_##name(const Exec&, const SampleDeviceArgs&, const SampleDeviceDesc&, void*);
#include "kdelta/ops/sample/device_variants.inc"
#undef KDELTA_VARIANT

}  // namespace kdelta
