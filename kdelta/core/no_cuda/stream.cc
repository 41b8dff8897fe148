// Streams and graphs of a build without CUDA. Nothing can be constructed, so the members are never reached.
#include "kdelta/core/stream.h"

#include "kdelta/core/cpu/memory.h"
#include "kdelta/core/graph.h"
#include "kdelta/core/no_cuda/refuse.h"

namespace kdelta {

Event::Event(Device device, Timing) {
  refuse_cuda(device);
}
Event::~Event() = default;
bool Event::done() const {
  refuse_cuda(device_);
}
void Event::synchronize() const {
  refuse_cuda(device_);
}
double seconds_between(const Event&, const Event&) {
  refuse_cuda({DeviceKind::cuda, 0});
}

Stream::Stream(Device device) {
  refuse_cuda(device);
}
Stream::Stream(Device device, void*) : device_(device), owned_(false) {
  refuse_cuda(device);
}
Stream::~Stream() = default;
void Stream::record(Event&) {
  refuse_cuda(device_);
}
void Stream::wait(const Event&) {
  refuse_cuda(device_);
}
void Stream::synchronize() const {
  refuse_cuda(device_);
}
bool Stream::idle() const {
  refuse_cuda(device_);
}
bool Stream::capturing() const {
  refuse_cuda(device_);
}
Stream& default_stream(Device device) {
  refuse_cuda(device);
}
void copy_async(Stream& stream, void*, const void*, int64_t) {
  refuse_cuda(stream.device());
}
void copy_rows_async(Stream& stream, void*, int64_t, const void*, int64_t, int64_t, int64_t) {
  refuse_cuda(stream.device());
}
void fill_async(Stream& stream, void*, uint8_t, int64_t) {
  refuse_cuda(stream.device());
}

HostBuffer::HostBuffer(Device device, int64_t bytes) : device_(device), bytes_(bytes) {
  if (device.kind != DeviceKind::cpu) refuse_cuda(device);
  data_ = cpu_allocate(bytes);
}
HostBuffer::~HostBuffer() {
  cpu_free(data_);
}

Graph Graph::capture(const Exec& ex, const std::function<void()>&) {
  refuse_cuda(ex.device);
}
Graph::~Graph() = default;
Graph::Graph(Graph&&) noexcept = default;
Graph& Graph::operator=(Graph&&) noexcept = default;
void Graph::launch(Stream&) const {
  refuse_cuda(device_);
}
size_t Graph::recorded_so_far(const Stream& stream) {
  refuse_cuda(stream.device());
}
std::vector<Graph::Node> Graph::nodes() const {
  refuse_cuda(device_);
}
std::vector<Graph::Edge> Graph::edges() const {
  refuse_cuda(device_);
}

}  // namespace kdelta
