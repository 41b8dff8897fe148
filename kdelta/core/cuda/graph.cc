#include "kdelta/core/graph.h"

#include <cxxabi.h>

#include <cstdlib>
#include <memory>
#include <utility>

#include "kdelta/core/check.h"
#include "kdelta/core/cuda/runtime.h"

namespace kdelta {
namespace {

cudaGraph_t graph_of(void* p) {
  return static_cast<cudaGraph_t>(p);
}

std::vector<cudaGraphNode_t> nodes_of(void* graph, Device device) {
  size_t count = 0;
  cuda_check(cudaGraphGetNodes(graph_of(graph), nullptr, &count), device, "graph nodes");
  std::vector<cudaGraphNode_t> nodes(count);
  if (count > 0) cuda_check(cudaGraphGetNodes(graph_of(graph), nodes.data(), &count), device, "graph nodes");
  return nodes;
}

std::string demangled(const char* name) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> text(abi::__cxa_demangle(name, nullptr, nullptr, &status), std::free);
  return status == 0 ? text.get() : name;
}

Graph::Node describe(cudaGraphNode_t node, Device device) {
  cudaGraphNodeType type{};
  cuda_check(cudaGraphNodeGetType(node, &type), device, "graph node");
  switch (type) {
    case cudaGraphNodeTypeKernel: {
      cudaKernelNodeParams params{};
      const char* name = nullptr;
      cuda_check(cudaGraphKernelNodeGetParams(node, &params), device, "graph kernel");
      cuda_check(cudaFuncGetName(&name, params.func), device, "kernel name");
      return {"kernel", demangled(name)};
    }
    case cudaGraphNodeTypeMemcpy:
      return {"copy", ""};
    case cudaGraphNodeTypeMemset:
      return {"fill", ""};
    case cudaGraphNodeTypeEmpty:
      return {"empty", ""};
    default:
      return {"other", ""};
  }
}

}  // namespace

Graph Graph::capture(const Exec& ex, const std::function<void()>& enqueue) {
  KDELTA_CHECK(ex.stream != nullptr, "capture without a stream");
  cudaStream_t stream = native(*ex.stream);
  cudaGraph_t graph = nullptr;
  cuda_check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), ex.device, "capture");
  auto abandon = [&] {
    if (cudaStreamEndCapture(stream, &graph) == cudaSuccess && graph != nullptr) (void)cudaGraphDestroy(graph);
    (void)cudaGetLastError();
    if (ex.aux != nullptr) ex.aux->open = false;
  };
  try {
    enqueue();
    ex.expect_joined();
  } catch (...) {
    abandon();
    throw;
  }
  cuda_check(cudaStreamEndCapture(stream, &graph), ex.device, "end of capture");
  cudaGraphExec_t executable = nullptr;
  const cudaError_t status = cudaGraphInstantiate(&executable, graph, 0);
  if (status != cudaSuccess) (void)cudaGraphDestroy(graph);
  cuda_check(status, ex.device, "graph instantiation");
  return Graph(ex.device, graph, executable);
}

Graph::~Graph() {
  if (executable_ != nullptr) (void)cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(executable_));
  if (graph_ != nullptr) (void)cudaGraphDestroy(graph_of(graph_));
}
Graph::Graph(Graph&& other) noexcept
    : device_(other.device_),
      graph_(std::exchange(other.graph_, nullptr)),
      executable_(std::exchange(other.executable_, nullptr)) {}
Graph& Graph::operator=(Graph&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(graph_, other.graph_);
  std::swap(executable_, other.executable_);
  return *this;
}

void Graph::launch(Stream& stream) const {
  cuda_check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(executable_), native(stream)), device_, "graph launch");
}

size_t Graph::recorded_so_far(const Stream& stream) {
  cudaStreamCaptureStatus status{};
  cudaGraph_t graph = nullptr;
  cuda_check(cudaStreamGetCaptureInfo(native(stream), &status, nullptr, &graph, nullptr, nullptr, nullptr),
             stream.device(), "capture");
  KDELTA_CHECK(status == cudaStreamCaptureStatusActive, "the stream is not capturing");
  return nodes_of(graph, stream.device()).size();
}

std::vector<Graph::Node> Graph::nodes() const {
  std::vector<Node> out;
  for (cudaGraphNode_t node : nodes_of(graph_, device_)) out.push_back(describe(node, device_));
  return out;
}

std::vector<Graph::Edge> Graph::edges() const {
  const std::vector<cudaGraphNode_t> nodes = nodes_of(graph_, device_);
  size_t count = 0;
  cuda_check(cudaGraphGetEdges(graph_of(graph_), nullptr, nullptr, nullptr, &count), device_, "graph edges");
  std::vector<cudaGraphNode_t> from(count), to(count);
  std::vector<cudaGraphEdgeData> data(count);
  if (count > 0)
    cuda_check(cudaGraphGetEdges(graph_of(graph_), from.data(), to.data(), data.data(), &count), device_,
               "graph edges");
  auto index = [&](cudaGraphNode_t node) {
    for (size_t i = 0; i < nodes.size(); ++i)
      if (nodes[i] == node) return static_cast<int>(i);
    KDELTA_UNREACHABLE("graph node", -1);
  };
  std::vector<Edge> out;
  for (size_t i = 0; i < count; ++i)
    out.push_back({index(from[i]), index(to[i]), data[i].type == cudaGraphDependencyTypeProgrammatic});
  return out;
}

}  // namespace kdelta
