// What was captured of a bucket: one graph of a whole decode step, or a graph for every piece of a mixed one.
#pragma once

#include <vector>

#include "kdelta/core/graph.h"
#include "kdelta/model/model.h"

namespace kdelta::runtime {

class Recording final : public Pieces {
 public:
  // A piece that comes for the first time is captured; then, and every other time, it is launched.
  void run(const Exec& ex, size_t piece, const std::function<void()>& enqueue) override;
  std::span<const Graph> graphs() const { return graphs_; }

 private:
  std::vector<Graph> graphs_;
};

}  // namespace kdelta::runtime
