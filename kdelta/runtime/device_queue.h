// The queues of one engine on a CUDA device: a main one, a second one for work beside it, the word in which kernels say
// what was wrong with a batch, and the whole numbers from 0 on.
#pragma once

#include "kdelta/core/buffer.h"
#include "kdelta/core/exec.h"

namespace kdelta::runtime {

class DeviceQueue {
 public:
  // `aux_scratch`: bytes that work beside the main queue borrows at most. `numbers`: how many of them number() knows.
  DeviceQueue(Device device, int64_t aux_scratch, int64_t numbers);
  DeviceQueue(const DeviceQueue&) = delete;
  DeviceQueue& operator=(const DeviceQueue&) = delete;

  Stream& stream() { return stream_; }
  // Points `ex` here.
  void attach(Exec& ex);
  // n as an array of one on the device. It never changes, so work that is enqueued may read it whenever it runs.
  View<const int32_t> number(int32_t n) const;
  // Waits for everything enqueued. Throws Error(failed) naming what kernels found wrong since the last time, or what
  // the device says of itself.
  void finish();

 private:
  Device device_;
  Stream stream_, side_;
  Event forked_, joined_;
  Arena side_scratch_;
  AuxQueue aux_;
  Buffer faults_, numbers_;
  HostBuffer seen_;
};

}  // namespace kdelta::runtime
