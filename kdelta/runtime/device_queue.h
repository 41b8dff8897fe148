// The queues of one engine on a CUDA device: a main one, a second one for work beside it, and the word in which kernels
// say what was wrong with a batch.
#pragma once

#include "kdelta/core/buffer.h"
#include "kdelta/core/exec.h"

namespace kdelta::runtime {

class DeviceQueue {
 public:
  // `aux_scratch`: bytes that work beside the main queue borrows at most.
  DeviceQueue(Device device, int64_t aux_scratch);
  DeviceQueue(const DeviceQueue&) = delete;
  DeviceQueue& operator=(const DeviceQueue&) = delete;

  Stream& stream() { return stream_; }
  // Points `ex` here.
  void attach(Exec& ex);
  // Waits for everything enqueued. Throws Error(failed) naming what kernels found wrong since the last time, or what
  // the device says of itself.
  void finish();

 private:
  Device device_;
  Stream stream_, side_;
  Event forked_, joined_;
  Arena side_scratch_;
  AuxQueue aux_;
  Buffer faults_;
  HostBuffer seen_;
};

}  // namespace kdelta::runtime
