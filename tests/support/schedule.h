// A recorded graph as the schedule of ops that it is: "gates -> step" says that the op named step begins when gates has
// ended. Needs no device: nodes, edges and where each op's nodes begin go in.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "kdelta/core/check.h"
#include "kdelta/core/graph.h"

namespace kdelta::test {

struct RecordedOp {
  std::string op;
  size_t first = 0;  // its nodes are those from here to the first one of the next op
};

class Schedule {
 public:
  // `names` are the test's own for the ops, in the order in which they were enqueued, as "name" for any op or
  // "name=op" where the op has to be that one.
  Schedule(size_t nodes, const std::vector<Graph::Edge>& edges, const std::vector<RecordedOp>& ops,
           const std::vector<std::string>& names) {
    KDELTA_CHECK(ops.size() == names.size(), ops.size(), " ops were enqueued, ", names.size(),
                 " are named: ", listed(ops));
    for (size_t i = 0; i < ops.size(); ++i) {
      const size_t eq = names[i].find('=');
      names_.push_back(names[i].substr(0, eq));
      if (eq != std::string::npos)
        KDELTA_CHECK(names[i].substr(eq + 1) == ops[i].op, "op ", i, " is ", ops[i].op, ", named ", names[i]);
      const size_t end = i + 1 < ops.size() ? ops[i + 1].first : nodes;
      KDELTA_CHECK(ops[i].first < end && end <= nodes, "op ", i, ", ", ops[i].op, ", enqueued nothing");
    }
    std::vector<bool> node_followed(nodes);
    for (const Graph::Edge& e : edges) {
      node_followed.at(static_cast<size_t>(e.from)) = true;
      const size_t from = op_of(ops, e.from), to = op_of(ops, e.to);
      if (from == to) continue;
      const std::string text = names_[from] + " -> " + names_[to];
      if (std::find(edges_.begin(), edges_.end(), text) == edges_.end()) edges_.push_back(text);
    }
    for (size_t n = 0; n < nodes; ++n)
      if (!node_followed[n]) tails_.push_back(names_[op_of(ops, static_cast<int>(n))]);
  }
  // Who waits for whom, each pair once; within an op nothing is said.
  const std::vector<std::string>& edges() const { return edges_; }
  // The ops of nodes that nothing waits for: of a schedule that is joined, its last op alone.
  const std::vector<std::string>& tails() const { return tails_; }

 private:
  static std::string listed(const std::vector<RecordedOp>& ops) {
    std::string out;
    for (const RecordedOp& o : ops) out += (out.empty() ? "" : ", ") + o.op;
    return out;
  }
  static size_t op_of(const std::vector<RecordedOp>& ops, int node) {
    size_t i = ops.size();
    while (i > 0 && ops[i - 1].first > static_cast<size_t>(node)) --i;
    KDELTA_CHECK(i > 0, "node ", node, " lies in front of the first op");
    return i - 1;
  }

  std::vector<std::string> names_, edges_, tails_;
};

}  // namespace kdelta::test
