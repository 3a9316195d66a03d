#include "cost/regression_trees.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace convene::cost {
namespace {

using ::testing::HasSubstr;
using Node = RegressionTrees::Node;

constexpr int32_t kLeaf = RegressionTrees::kLeaf;

TEST(RegressionTrees, SumOneLeafOfEachTree) {
  // x0 < 10 ? (x1 < 5 ? 1 : 2) : 3, and a tree that is a leaf.
  const auto trees = RegressionTrees::FromNodes(
      {{0, 10}, {1, 5}, {kLeaf, 1}, {kLeaf, 2}, {kLeaf, 3}, {kLeaf, 100}}, 2);
  ASSERT_TRUE(trees) << trees.error().message;
  EXPECT_EQ(trees->num_trees(), 2);
  EXPECT_EQ(trees->Sum(std::vector<int32_t>{9, 4}), 101);
  EXPECT_EQ(trees->Sum(std::vector<int32_t>{9, 5}), 102);
  EXPECT_EQ(trees->Sum(std::vector<int32_t>{10, 4}), 103);
}

TEST(RegressionTrees, ADeepRightSideIsFound) {
  // Each split has a leaf on its left.
  std::vector<Node> nodes;
  for (int depth = 0; depth < 1000; ++depth) {
    nodes.push_back({0, depth});
    nodes.push_back({kLeaf, depth});
  }
  nodes.push_back({kLeaf, 1000});
  const auto trees = RegressionTrees::FromNodes(nodes, 1);
  ASSERT_TRUE(trees) << trees.error().message;
  EXPECT_EQ(trees->num_trees(), 1);
  EXPECT_EQ(trees->Sum(std::vector<int32_t>{499}), 500);
  EXPECT_EQ(trees->Sum(std::vector<int32_t>{5000}), 1000);
}

TEST(RegressionTrees, NoTreesSumToZero) {
  const auto trees = RegressionTrees::FromNodes({}, 1);
  ASSERT_TRUE(trees);
  EXPECT_EQ(trees->Sum(std::vector<int32_t>{1}), 0);
}

TEST(RegressionTrees, DamagedNodesAreRefused) {
  const auto message = [](std::vector<Node> nodes) {
    const auto trees = RegressionTrees::FromNodes(std::move(nodes), 2);
    return trees ? "accepted" : trees.error().message;
  };
  EXPECT_THAT(message({{0, 1}}), HasSubstr("end within a tree"));
  EXPECT_THAT(message({{0, 1}, {kLeaf, 1}}), HasSubstr("end within a tree"));
  EXPECT_THAT(message({{2, 1}, {kLeaf, 1}, {kLeaf, 1}}), HasSubstr("term 2"));
  EXPECT_THAT(message({{-2, 1}, {kLeaf, 1}, {kLeaf, 1}}), HasSubstr("term -2"));
  EXPECT_THAT(message({{kLeaf, 1 << 30}}), HasSubstr("at most"));
  EXPECT_THAT(message(std::vector<Node>(kMostTrees + 1, {kLeaf, 0})), HasSubstr("257 trees"));
  EXPECT_THAT(message(std::vector<Node>(kMostTreeNodes + 1, {kLeaf, 0})), HasSubstr("nodes"));
}

}  // namespace
}  // namespace convene::cost
