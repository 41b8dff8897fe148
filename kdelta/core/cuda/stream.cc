#include "kdelta/core/stream.h"

#include <array>
#include <memory>
#include <mutex>

#include "kdelta/core/check.h"
#include "kdelta/core/cpu/memory.h"
#include "kdelta/core/cuda/runtime.h"

namespace kdelta {
namespace {

void select(Device device) {
  (void)device_properties(device);  // refuses by name what is not there
  cuda_check(cudaSetDevice(device.index), device, "select");
}

}  // namespace

Event::Event(Device device, Timing timing) : device_(device) {
  select(device);
  cudaEvent_t event = nullptr;
  const unsigned flags = timing == Timing::on ? cudaEventDefault : cudaEventDisableTiming;
  cuda_check(cudaEventCreateWithFlags(&event, flags), device, "event");
  handle_ = event;
}
Event::~Event() {
  (void)cudaEventDestroy(native(*this));
}
bool Event::done() const {
  const cudaError_t status = cudaEventQuery(native(*this));
  if (status == cudaErrorNotReady) return false;
  cuda_check(status, device_, "earlier work");
  return true;
}
void Event::synchronize() const {
  cuda_check(cudaEventSynchronize(native(*this)), device_, "earlier work");
}

double seconds_between(const Event& begin, const Event& end) {
  end.synchronize();
  float ms = 0;
  cuda_check(cudaEventElapsedTime(&ms, native(begin), native(end)), {DeviceKind::cuda, 0}, "time between events");
  return static_cast<double>(ms) * 1e-3;
}

Stream::Stream(Device device) : device_(device) {
  select(device);
  cudaStream_t stream = nullptr;
  cuda_check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), device, "stream");
  handle_ = stream;
}
Stream::Stream(Device device, void* borrowed) : device_(device), handle_(borrowed), owned_(false) {
  select(device);
}
Stream::~Stream() {
  if (owned_) (void)cudaStreamDestroy(native(*this));
}
void Stream::record(Event& event) {
  cuda_check(cudaEventRecord(native(event), native(*this)), device_, "record");
}
void Stream::wait(const Event& event) {
  cuda_check(cudaStreamWaitEvent(native(*this), native(event), 0), device_, "wait");
}
void Stream::synchronize() const {
  cuda_check(cudaStreamSynchronize(native(*this)), device_, "earlier work");
}
bool Stream::idle() const {
  const cudaError_t status = cudaStreamQuery(native(*this));
  if (status == cudaErrorNotReady) return false;
  cuda_check(status, device_, "earlier work");
  return true;
}
bool Stream::capturing() const {
  cudaStreamCaptureStatus status{};
  cuda_check(cudaStreamIsCapturing(native(*this), &status), device_, "capture status");
  return status != cudaStreamCaptureStatusNone;
}

// Never destroyed: at exit the driver may be gone already.
Stream& default_stream(Device device) {
  constexpr int kMaxDevices = 64;
  static std::array<Stream*, kMaxDevices> streams{};
  static std::array<std::once_flag, kMaxDevices> made;
  (void)device_properties(device);
  const auto i = static_cast<size_t>(device.index);
  std::call_once(made[i], [&] { streams[i] = new Stream(device); });
  return *streams[i];
}

void copy_async(Stream& stream, void* to, const void* from, int64_t bytes) {
  if (bytes == 0) return;
  cuda_check(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, native(stream)), stream.device(),
             "copy");
}

void copy_rows_async(Stream& stream, void* to, int64_t to_stride, const void* from, int64_t from_stride, int64_t width,
                     int64_t rows) {
  if (width == 0 || rows == 0) return;
  cuda_check(
      cudaMemcpy2DAsync(to, static_cast<size_t>(to_stride), from, static_cast<size_t>(from_stride),
                        static_cast<size_t>(width), static_cast<size_t>(rows), cudaMemcpyDefault, native(stream)),
      stream.device(), "copy of rows");
}

void fill_async(Stream& stream, void* data, uint8_t byte, int64_t bytes) {
  if (bytes == 0) return;
  cuda_check(cudaMemsetAsync(data, byte, static_cast<size_t>(bytes), native(stream)), stream.device(), "fill");
}

HostBuffer::HostBuffer(Device device, int64_t bytes) : device_(device), bytes_(bytes) {
  if (device.kind == DeviceKind::cpu) {
    data_ = cpu_allocate(bytes);
    return;
  }
  select(device);
  if (bytes > 0)
    cuda_check(cudaHostAlloc(&data_, static_cast<size_t>(bytes), cudaHostAllocPortable), device, "pinned memory");
}
HostBuffer::~HostBuffer() {
  if (device_.kind == DeviceKind::cpu)
    cpu_free(data_);
  else
    (void)cudaFreeHost(data_);
}

}  // namespace kdelta
