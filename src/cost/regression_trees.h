// A sum of regression trees over whole numbers, as a random forest or boosting leaves it. It is
// evaluated here; how trees are grown is cost/xgboost/.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"

namespace convene::cost {

inline constexpr int kMostTrees = 256;
inline constexpr int kMostTreeNodes = 1 << 17;  // of all trees together

// Nodes of all trees, one tree after the other, each in preorder: after a node that splits comes
// its left part as a whole, and then its right part.
class RegressionTrees {
 public:
  struct Node {
    int32_t term = 0;   // the value that is compared; kLeaf: none, the node is a leaf
    int32_t value = 0;  // left if below it; of a leaf: what it adds
    bool operator==(const Node&) const = default;
  };
  static constexpr int32_t kLeaf = -1;

  RegressionTrees() = default;

  // Errors: nodes that end within a tree, a term that is not in [0, num_terms), more trees or
  // nodes than the limits above, a leaf beyond +-2^30 / kMostTrees.
  static Result<RegressionTrees> FromNodes(std::vector<Node> nodes, int num_terms);

  // The sum of one leaf of each tree. `terms` has at least the num_terms of FromNodes.
  int64_t Sum(std::span<const int32_t> terms) const;

  std::span<const Node> nodes() const { return nodes_; }
  int num_trees() const { return static_cast<int>(roots_.size()); }
  bool operator==(const RegressionTrees& other) const { return nodes_ == other.nodes_; }

 private:
  std::vector<Node> nodes_;
  std::vector<int32_t> right_;  // by node: its right part; 0 of leaves
  std::vector<int32_t> roots_;
};

}  // namespace convene::cost
