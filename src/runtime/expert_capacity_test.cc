#include "runtime/expert_capacity.h"

#include <gtest/gtest.h>

namespace convene::runtime {
namespace {

using Weights = std::vector<float>;

Weights Applied(ExpertCapacity& capacity, const std::vector<CapacityRow>& rows,
                const std::vector<int32_t>& experts, int layer = 0) {
  Weights weights(rows.size(), 0.5f);
  capacity.Apply(layer, 4, rows, experts, weights);
  return weights;
}

TEST(ExpertCapacity, TokensTakePlacesInTheOrderOfTheirPositions) {
  ExpertCapacity capacity(2);
  EXPECT_EQ(Applied(capacity, {{0, true}, {0}, {0}, {0}, {0}}, {3, 1, 3, 3, 1}),
            (Weights{0.5f, 0.5f, 0.5f, 0, 0.5f}));
}

TEST(ExpertCapacity, SequencesAndLayersCountForThemselves) {
  ExpertCapacity capacity(1);
  EXPECT_EQ(Applied(capacity, {{0, true}, {0}, {7, true}, {7}}, {3, 3, 3, 1}),
            (Weights{0.5f, 0, 0.5f, 0.5f}));
  EXPECT_EQ(Applied(capacity, {{0, true}, {0}}, {3, 1}, 1), (Weights{0.5f, 0.5f}));
}

TEST(ExpertCapacity, APromptMayComeInPieces) {
  ExpertCapacity capacity(2);
  EXPECT_EQ(Applied(capacity, {{0, true}, {1, true}}, {3, 3}), (Weights{0.5f, 0.5f}));
  EXPECT_EQ(Applied(capacity, {{1}, {0}, {0}}, {3, 3, 3}), (Weights{0.5f, 0.5f, 0}));
  EXPECT_EQ(Applied(capacity, {{0, true}}, {3}), (Weights{0.5f})) << "a new sequence";
}

TEST(ExpertCapacity, GeneratedTokensAreNeverDropped) {
  ExpertCapacity capacity(1);
  EXPECT_EQ(Applied(capacity, {{0, true}, {0, false, false}, {0, false, false}}, {3, 3, 3}),
            (Weights{0.5f, 0.5f, 0.5f}));
}

TEST(ExpertCapacity, TakesZeroRows) {
  ExpertCapacity capacity(1);
  EXPECT_EQ(Applied(capacity, {}, {}), Weights{});
}

}  // namespace
}  // namespace convene::runtime
