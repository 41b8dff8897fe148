#include "kdelta/runtime/device_queue.h"

#include <numeric>
#include <vector>

#include "kdelta/core/check.h"
#include "kdelta/core/error.h"
#include "kdelta/core/fault.h"
#include "kdelta/core/moves.h"

namespace kdelta::runtime {

DeviceQueue::DeviceQueue(Device device, int64_t aux_scratch, int64_t numbers)
    : device_(device),
      stream_(device),
      side_(device),
      forked_(device),
      joined_(device),
      side_scratch_(device, aux_scratch),
      aux_{.stream = &side_, .scratch = &side_scratch_, .forked = &forked_, .joined = &joined_},
      faults_(device, sizeof(uint32_t)),
      numbers_(device, numbers * 4),
      seen_(device, sizeof(uint32_t)) {
  fill_async(stream_, faults_.data(), 0, faults_.bytes());
  std::vector<int32_t> all(static_cast<size_t>(numbers));
  std::iota(all.begin(), all.end(), 0);
  if (numbers > 0) copy_now(&stream_, numbers_.data(), all.data(), numbers_.bytes());
  stream_.synchronize();
}

View<const int32_t> DeviceQueue::number(int32_t n) const {
  KDELTA_CHECK(n >= 0 && n < numbers_.bytes() / 4, "number ", n, " of ", numbers_.bytes() / 4);
  return {static_cast<const int32_t*>(numbers_.data()) + n, {1}};
}

void DeviceQueue::attach(Exec& ex) {
  ex.device = device_;
  ex.stream = &stream_;
  ex.aux = &aux_;
  ex.faults = static_cast<uint32_t*>(faults_.data());
}

void DeviceQueue::finish() {
  copy_async(stream_, seen_.data(), faults_.data(), faults_.bytes());
  stream_.synchronize();
  const uint32_t faults = *seen_.as<uint32_t>();
  if (faults == 0) return;
  fill_async(stream_, faults_.data(), 0, faults_.bytes());
  fail(ErrorCode::failed, to_string(device_), ": kernels refused rows of the step: ", fault_names(faults));
}

}  // namespace kdelta::runtime
