// A recorded sequence of device work, replayed with one launch. Addresses and sizes are fixed at capture; contents are
// read at replay.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "kdelta/core/exec.h"

namespace kdelta {

class Graph {
 public:
  // Runs `enqueue` while ex.stream records; nothing executes. Throws what `enqueue` throws, Error(internal) for a fork
  // that was not joined and Error(failed) for anything that cannot be captured (an allocation, a synchronisation).
  static Graph capture(const Exec& ex, const std::function<void()>& enqueue);
  ~Graph();
  Graph(Graph&& other) noexcept;
  Graph& operator=(Graph&& other) noexcept;

  void launch(Stream& stream) const;

  // Nodes that `stream`, which is capturing, has recorded so far: nodes() will list them in that order.
  static size_t recorded_so_far(const Stream& stream);

  // The structure, for tests of order and overlap.
  struct Node {
    std::string kind;  // "kernel", "copy", "fill", "empty", "other"
    std::string name;  // of a kernel: its function; empty otherwise
  };
  struct Edge {
    int from, to;       // indices of nodes()
    bool programmatic;  // the later kernel may begin before the earlier one has ended
    bool operator==(const Edge&) const = default;
  };
  std::vector<Node> nodes() const;
  std::vector<Edge> edges() const;

 private:
  Graph(Device device, void* graph, void* executable) : device_(device), graph_(graph), executable_(executable) {}

  Device device_;
  [[maybe_unused]] void* graph_ = nullptr;  // a build without CUDA never has one
  [[maybe_unused]] void* executable_ = nullptr;
};

}  // namespace kdelta
