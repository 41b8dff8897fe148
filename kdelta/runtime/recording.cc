#include "kdelta/runtime/recording.h"

#include "kdelta/core/check.h"

namespace kdelta::runtime {

void Recording::run(const Exec& ex, size_t piece, const std::function<void()>& enqueue) {
  KDELTA_CHECK(piece <= graphs_.size(), "piece ", piece, " behind ", graphs_.size());
  if (piece == graphs_.size()) graphs_.push_back(Graph::capture(ex, enqueue));
  graphs_[piece].launch(*ex.stream);
}

}  // namespace kdelta::runtime
