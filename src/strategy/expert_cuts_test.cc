#include "strategy/expert_cuts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace convene::strategy {
namespace {

using testing::ElementsAre;

Pipeline CutAt(std::vector<double> cuts) {
  const int chunks = static_cast<int>(cuts.size()) + 1;
  return {.chunks = chunks, .cut = ChunkCut::kExperts, .cuts = std::move(cuts)};
}

TEST(ExpertEnds, AreEvenWithoutCuts) {
  EXPECT_THAT(ExpertEnds({.chunks = 4}, 8), ElementsAre(2, 4, 6, 8));
  EXPECT_THAT(ExpertEnds({.chunks = 3}, 7), ElementsAre(3, 5, 7));
  EXPECT_THAT(ExpertEnds({.chunks = 1}, 5), ElementsAre(5));
}

TEST(ExpertEnds, AreAtTheNearestExpertToEachCut) {
  EXPECT_THAT(ExpertEnds(CutAt({0.25, 0.5}), 32), ElementsAre(8, 16, 32));
  EXPECT_THAT(ExpertEnds(CutAt({0.2, 0.9}), 8), ElementsAre(2, 7, 8));
}

TEST(ExpertEnds, LeaveAnExpertForEachChunk) {
  EXPECT_THAT(ExpertEnds(CutAt({0.01, 0.02, 0.03}), 8), ElementsAre(1, 2, 3, 8));
  EXPECT_THAT(ExpertEnds(CutAt({0.97, 0.98, 0.99}), 8), ElementsAre(5, 6, 7, 8));
}

TEST(ExpertEnds, LeaveChunksEmptyWhereExpertsAreFewer) {
  EXPECT_THAT(ExpertEnds({.chunks = 4}, 2), ElementsAre(1, 2, 2, 2));
  EXPECT_THAT(ExpertEnds(CutAt({0.3, 0.6}), 0), ElementsAre(0, 0, 0));
  EXPECT_THAT(ExpertEnds(CutAt({0.3, 0.6}), 1), ElementsAre(1, 1, 1));
}

}  // namespace
}  // namespace convene::strategy
