#include "planner/disaggregated_roles.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>

#include "planner/invented_costs_test.h"

namespace convene::planner {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

struct AskedOfRoles {
  explicit AskedOfRoles(std::vector<RankTraits> ranks, int length = 512, int count = 6) {
    costs = InventedCosts(static_cast<int>(ranks.size()), 1e10);
    question.ranks = std::move(ranks);
    question.sequences =
        std::vector(static_cast<size_t>(count),
                    strategy::SequenceRows{.num_tokens = length, .prompt_length = length});
    question.pricer =
        [this](const cost::MachineState& state) -> Result<std::unique_ptr<StepPricer>> {
      return std::unique_ptr<StepPricer>(std::make_unique<MeasuredPricer>(costs, state));
    };
  }

  cost::StepCosts costs;
  model::ModelSpec spec = InventedSpec(4);
  RolesQuestion question{.spec = spec};
};

RolesChoice Best(const AskedOfRoles& asked) {
  const auto choices = RankRoles(asked.question);
  CHECK(choices.ok(), "{}", choices.error().message);
  return choices->front();
}

TEST(DisaggregatedRoles, AlikeRanksAreNotToldApart) {
  const AskedOfRoles asked(std::vector(4, RankTraits()));
  const auto choices = RankRoles(asked.question);
  ASSERT_TRUE(choices) << choices.error().message;
  ASSERT_EQ(choices->size(), 3u);  // 1, 2 or 3 ranks with attention
  std::set<size_t> counts;
  for (const RolesChoice& choice : *choices) {
    counts.insert(choice.attention.size());
    EXPECT_EQ(choice.attention.front(), 0);
    EXPECT_TRUE(choice.expert_weights.empty());
    EXPECT_GE(choice.seconds(), choices->front().seconds());
  }
  EXPECT_EQ(counts.size(), 3u);
  const auto equal = BestEqualRoles(asked.question);
  ASSERT_TRUE(equal);
  EXPECT_DOUBLE_EQ(equal->seconds(), choices->front().seconds());
}

TEST(DisaggregatedRoles, ARankWithAQuarterOfTheCoresGetsLessToDo) {
  // By rank: the slow one is first, in the middle, or last.
  for (const int slow : {0, 1, 2}) {
    std::vector<RankTraits> ranks(3);
    ranks[static_cast<size_t>(slow)].machine = {.memory = 1, .compute = 4};
    AskedOfRoles asked(ranks);
    // Experts are most of the work.
    for (model::LayerSpec& layer : asked.spec.layers) {
      layer.moe->top_k = 6;
      layer.moe->intermediate_size = 1024;
    }
    const RolesChoice best = Best(asked);
    const auto equal = BestEqualRoles(asked.question);
    ASSERT_TRUE(equal) << equal.error().message;
    EXPECT_GE(equal->seconds() / best.seconds(), 1.15)
        << Words(best) << " against " << Words(*equal);
    // It is not what the step waits for: it has the smaller share, or a part of attention that no
    // one is slower in.
    for (size_t i = 0; i < best.experts.size(); ++i) {
      if (best.experts[i] == slow && best.experts.size() > 1) {
        EXPECT_LT(best.expert_weights[i], best.expert_weights[1 - i]) << Words(best);
      }
    }
  }
}

TEST(DisaggregatedRoles, OfOneTokenEachTheRankWithFastMemoryReadsMost) {
  // Steps that read memory: the experts of all layers are most of it, shared by two ranks, or the
  // fast rank has them alone.
  std::vector<RankTraits> ranks(3);
  ranks[1].machine = {.memory = 0.125, .compute = 1};
  AskedOfRoles asked(ranks, /*length=*/1, /*count=*/16);
  const RolesChoice best = Best(asked);
  const auto position = std::find(best.experts.begin(), best.experts.end(), 1);
  ASSERT_NE(position, best.experts.end()) << Words(best);
  if (best.experts.size() > 1) {
    const auto i = static_cast<size_t>(position - best.experts.begin());
    EXPECT_GT(best.expert_weights[i], best.expert_weights[1 - i]) << Words(best);
  }
}

TEST(DisaggregatedRoles, WhatDoesNotFitIsLeftOut) {
  std::vector<RankTraits> ranks(3);
  for (RankTraits& rank : ranks) rank.memory_bytes = 100;
  ranks[2].memory_bytes = 1000;
  AskedOfRoles asked(ranks);
  asked.question.memory = {.attention_bytes = 10, .sequence_bytes = 1, .expert_bytes = 50};
  // 16 experts of 50 bytes: rank 2 alone has room for them all, and any other one for two.
  const RolesChoice best = Best(asked);
  EXPECT_THAT(best.experts, ElementsAre(2));
  EXPECT_THAT(best.attention, ElementsAre(0, 1));
  asked.question.memory.expert_bytes = 500;
  const auto none = RankRoles(asked.question);
  ASSERT_FALSE(none);
  EXPECT_THAT(none.error().message, HasSubstr("no division of 3 ranks"));
  EXPECT_THAT(none.error().message, HasSubstr("the experts"));
}

TEST(DisaggregatedRoles, OneRankOrNoSequencesAreErrors) {
  const AskedOfRoles one(std::vector(1, RankTraits()));
  EXPECT_THAT(RankRoles(one.question).error().message, HasSubstr("two ranks"));
  const AskedOfRoles none(std::vector(2, RankTraits()), 1, 0);
  EXPECT_THAT(RankRoles(none.question).error().message, HasSubstr("without sequences"));
}

TEST(DisaggregatedRoles, HasWords) {
  EXPECT_EQ(Words(RolesChoice{.attention = {2}, .experts = {0, 1}, .expert_weights = {3, 1}}),
            "attention on rank 2; experts on ranks 0, 1 as 3:1");
}

}  // namespace
}  // namespace convene::planner
