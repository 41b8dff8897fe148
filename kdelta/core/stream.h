// Queues of a CUDA device, the events that order them, and copies. No CUDA type appears here: handles are opaque, and a
// CPU-only build links core/no_cuda, whose constructors refuse by name. The CPU backend needs none of this.
#pragma once

#include "kdelta/core/device.h"

namespace kdelta {

// A mark in a queue.
class Event {
 public:
  enum class Timing : uint8_t { off, on };
  explicit Event(Device device, Timing timing = Timing::off);
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  // Whether the work before the last record() is done; waits for it. An event never recorded is done.
  bool done() const;
  void synchronize() const;
  void* handle() const { return handle_; }

 private:
  Device device_;
  void* handle_ = nullptr;
};

// Device time between two recorded marks with timing on; waits for the later one.
double seconds_between(const Event& begin, const Event& end);

// A queue of its own: ordered with no other but by events. Errors of work enqueued earlier surface as Error(failed)
// naming the device.
class Stream {
 public:
  explicit Stream(Device device);
  // A queue of the caller's (a cudaStream_t; null: the device's default one), which must outlive it. Makes its device
  // the thread's current one.
  Stream(Device device, void* borrowed);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  Device device() const { return device_; }
  void record(Event& event);      // marks the tail of what is enqueued
  void wait(const Event& event);  // what is enqueued from now on begins behind the mark
  void synchronize() const;
  bool idle() const;
  bool capturing() const;
  void* handle() const { return handle_; }

 private:
  Device device_;
  void* handle_ = nullptr;
  [[maybe_unused]] bool owned_ = true;  // a build without CUDA never has one
};

// The stream that a device's one-off work (uploads, tests) shares; made on first use, lives until the program ends.
Stream& default_stream(Device device);

// Enqueue only. Either side may be host or device memory; only pinned host memory is copied without staging.
void copy_async(Stream& stream, void* to, const void* from, int64_t bytes);
// `rows` rows of `width` bytes, `to_stride` and `from_stride` bytes apart.
void copy_rows_async(Stream& stream, void* to, int64_t to_stride, const void* from, int64_t from_stride, int64_t width,
                     int64_t rows);
void fill_async(Stream& stream, void* data, uint8_t byte, int64_t bytes);

// Host memory that a device copies from and to directly: pinned for CUDA, plain for the CPU.
class HostBuffer {
 public:
  HostBuffer(Device device, int64_t bytes);
  ~HostBuffer();
  HostBuffer(const HostBuffer&) = delete;
  HostBuffer& operator=(const HostBuffer&) = delete;

  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  Device device_;
  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace kdelta
