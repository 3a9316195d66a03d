#include "cost/regression_trees.h"

#include <fmt/format.h>

#include <utility>

namespace convene::cost {
namespace {

constexpr int32_t kMostLeaf = (1 << 30) / kMostTrees;

}  // namespace

Result<RegressionTrees> RegressionTrees::FromNodes(std::vector<Node> nodes, int num_terms) {
  if (nodes.size() > kMostTreeNodes) {
    return Error{
        fmt::format("trees have {} nodes; at most {} are read", nodes.size(), kMostTreeNodes)};
  }
  RegressionTrees trees;
  trees.right_.assign(nodes.size(), 0);
  // Nodes that split and whose right part is still to come.
  std::vector<int32_t> open;
  bool begins_right = false;
  for (size_t i = 0; i < nodes.size(); ++i) {
    const auto index = static_cast<int32_t>(i);
    if (begins_right) {
      trees.right_[open.back()] = index;
      open.pop_back();
    } else if (open.empty()) {
      trees.roots_.push_back(index);
    }
    begins_right = false;
    const Node& node = nodes[i];
    if (node.term == kLeaf) {
      if (node.value < -kMostLeaf || node.value > kMostLeaf) {
        return Error{
            fmt::format("a leaf of a tree adds {}; it may add {} at most", node.value, kMostLeaf)};
      }
      begins_right = !open.empty();
      continue;
    }
    if (node.term < 0 || node.term >= num_terms) {
      return Error{fmt::format("a tree compares term {}; there are {}", node.term, num_terms)};
    }
    open.push_back(index);
  }
  if (!open.empty()) return Error{"the nodes of trees end within a tree"};
  if (trees.num_trees() > kMostTrees) {
    return Error{
        fmt::format("there are {} trees; at most {} are read", trees.num_trees(), kMostTrees)};
  }
  trees.nodes_ = std::move(nodes);
  return trees;
}

int64_t RegressionTrees::Sum(std::span<const int32_t> terms) const {
  int64_t sum = 0;
  for (int32_t at : roots_) {
    while (nodes_[at].term != kLeaf) {
      at = terms[nodes_[at].term] < nodes_[at].value ? at + 1 : right_[at];
    }
    sum += nodes_[at].value;
  }
  return sum;
}

}  // namespace convene::cost
