#include "strategy/role.h"

#include <gtest/gtest.h>

namespace convene::strategy {
namespace {

TEST(Roles, OfALayoutDivideHeadsSequencesSharesAndSlices) {
  const Roles roles = Layout{.attention_tp = 2, .attention_dp = 3, .expert_ep = 2, .expert_tp = 3};
  ASSERT_EQ(roles.num_ranks(), 6);
  EXPECT_EQ(roles.num_groups(), 3);
  EXPECT_TRUE(roles.are_whole());
  for (int rank = 0; rank < 6; ++rank) {
    const Role& role = roles.of(rank);
    EXPECT_EQ(role.attention, (AttentionRole{rank / 2, rank % 2, 2}));
    EXPECT_EQ(role.experts, (ExpertRole{rank / 3, rank % 3, 3}));
    EXPECT_EQ(role.has_head(), rank == 0);
    EXPECT_EQ(roles.RankOfPart(role.attention->group, role.attention->part), rank);
    EXPECT_EQ(roles.RankOfSlice(role.experts->share, role.experts->slice), rank);
  }
  EXPECT_EQ(Roles().of(0), Role{});
}

TEST(Roles, OfDisaggregatedExpertsHaveOneHalfEach) {
  const Roles roles = Roles::Disaggregated(2, 3);
  ASSERT_EQ(roles.num_ranks(), 5);
  EXPECT_FALSE(roles.are_whole());
  EXPECT_EQ(roles.num_groups(), 2);
  EXPECT_EQ(roles.num_expert_ranks(), 3);
  for (int rank = 0; rank < 5; ++rank) {
    EXPECT_EQ(roles.of(rank).owns_rows(), rank < 2);
    EXPECT_EQ(roles.of(rank).has_experts(), rank >= 2);
  }
  EXPECT_EQ(roles.of(1).attention->group, 1);
  EXPECT_EQ(roles.RankOfSlice(2, 0), 4);
  EXPECT_EQ(roles.ExpertsOf(1, 9), Part{});
  EXPECT_EQ(roles.ExpertsOf(3, 9), (Part{3, 3}));
}

const model::AttentionSpec kTwelveHeads{.num_heads = 12, .num_kv_heads = 3};

TEST(AttentionRole, PartsBeyondTheKvHeadsHoldCopiesOfThem) {
  const auto heads = [](int part, int parts) {
    return AttentionRole{.part = part, .parts = parts}.HeadsOf(kTwelveHeads);
  };
  for (int part = 0; part < 2; ++part) {
    EXPECT_EQ(heads(part, 2).kv, PartOf(3, part, 2));
    EXPECT_EQ(heads(part, 2).query, (Part{4 * part, 4 + 4 * part})) << "whole KV heads";
  }
  for (int part = 0; part < 6; ++part) {
    EXPECT_EQ(heads(part, 6).kv, (Part{part / 2, 1}));
    EXPECT_EQ(heads(part, 6).query, (Part{2 * part, 2}));
  }
}

TEST(AttentionRole, TellsWhatItsCacheHoldsAndHowManyHoldTheSame) {
  const auto cache = [](int part, int parts) {
    return AttentionRole{.part = part, .parts = parts}.CacheOf(kTwelveHeads);
  };
  EXPECT_EQ(cache(0, 1), (CacheParts{.heads = {0, 3}, .copies = 1}));
  EXPECT_EQ(cache(1, 2), (CacheParts{.heads = {1, 2}, .copies = 1}));
  EXPECT_EQ(cache(3, 6), (CacheParts{.heads = {1, 1}, .copies = 2}));
  EXPECT_EQ(AttentionRole().CacheOf({.num_heads = 12}), CacheParts());
  model::AttentionSpec latent{.num_heads = 12, .num_kv_heads = 12};
  latent.latent.emplace();
  for (const int parts : {1, 4}) {
    for (int part = 0; part < parts; ++part) {
      EXPECT_EQ((AttentionRole{.part = part, .parts = parts}.CacheOf(latent)),
                (CacheParts{.heads = {0, 1}, .copies = parts}));
    }
  }
}

TEST(AttentionRole, ExpandsThePromptsThatAreLongEnough) {
  EXPECT_FALSE((AttentionRole{.expand_from_tokens = 7}.Expands(6)));
  EXPECT_TRUE((AttentionRole{.expand_from_tokens = 7}.Expands(7)));
  EXPECT_FALSE((AttentionRole{.expand_from_tokens = 0}.Expands(1000))) << "0: none";
}

TEST(Roles, AttentionIsOnTheRanksThatTheLayoutNames) {
  const Layout layout{.attention_tp = 2,
                      .expert_ep = 2,
                      .expert_weights = {3, 1},
                      .disaggregates = true,
                      .attention_ranks = {1, 3}};
  const Roles roles = layout;
  EXPECT_EQ(roles.Names(),
            (std::vector<std::string>{"experts", "attention", "experts", "attention"}));
  EXPECT_EQ(roles.RankOfPart(0, 0), 1);
  EXPECT_EQ(roles.RankOfPart(0, 1), 3);
  EXPECT_EQ(roles.RankOfSlice(0, 0), 0);
  EXPECT_EQ(roles.RankOfSlice(1, 0), 2);
  EXPECT_EQ(roles.of(3).attention->part, 1);
  EXPECT_EQ(roles.of(2).experts->share, 1);
  EXPECT_EQ(roles.ExpertsOf(0, 8), (Part{0, 6}));
  EXPECT_EQ(roles.ExpertsOf(1, 8), Part());
  // Rank 0 samples, whatever else it does.
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(roles.of(rank).has_head(), rank == 0);
  // Those that are named are the first ones where none is.
  Layout first = layout;
  first.attention_ranks.clear();
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(first.attends(rank), rank < 2);
}

TEST(Roles, HaveOneFormOfLatentAttentionOnAllRanks) {
  for (const Roles& roles : {Roles({.attention_tp = 2, .attention_dp = 2, .expert_ep = 4}),
                             Roles::Disaggregated(2, 3)}) {
    const Roles changed = roles.ExpandingFrom(9);
    EXPECT_NE(changed, roles);
    EXPECT_EQ(changed.ExpandingFrom(kExpandFromTokens), roles) << "all else is the same";
    for (int rank = 0; rank < roles.num_ranks(); ++rank) {
      if (!roles.of(rank).owns_rows()) continue;
      EXPECT_EQ(roles.of(rank).attention->expand_from_tokens, kExpandFromTokens);
      EXPECT_EQ(changed.of(rank).attention->expand_from_tokens, 9);
    }
  }
}

TEST(Roles, OfStagesHaveSomeOfTheLayersEach) {
  const Roles roles = Layout{.stages = 3, .stage_weights = {1, 2, 1}};
  EXPECT_EQ(roles.num_ranks(), 3);
  EXPECT_EQ(roles.num_groups(), 1);
  EXPECT_EQ(roles.of(0).stage.LayersOf(10), (Part{0, 2}));
  EXPECT_EQ(roles.of(1).stage.LayersOf(10), (Part{2, 5}));
  EXPECT_EQ(roles.of(2).stage.LayersOf(10), (Part{7, 3}));
  for (int layer = 0; layer < 10; ++layer) {
    const int stage = layer < 2 ? 0 : layer < 7 ? 1 : 2;
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(roles.of(rank).stage.HasLayer(layer, 10), rank == stage);
    }
  }
  // The head is where it always is, its rows come from the last stage.
  EXPECT_TRUE(roles.of(0).has_head());
  EXPECT_FALSE(roles.of(2).has_head());
  EXPECT_EQ(roles.RankOfPart(0, 0), 2);
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(roles.of(rank).gives_output(), rank == 2);
  // To itself a rank is the only one.
  const Roles seen = roles.SeenFrom(1);
  EXPECT_EQ(seen.num_ranks(), 3);
  EXPECT_EQ(seen.RankOfSlice(0, 0), 1);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(seen.of(rank).owns_rows(), rank == 1);
    EXPECT_EQ(seen.of(rank).has_experts(), rank == 1);
  }
  const Roles other = Layout{.attention_dp = 2, .expert_ep = 2};
  EXPECT_EQ(other.SeenFrom(1), other);
}

TEST(ExpertSplit, WithEqualWeightsIsPartOf) {
  for (const int shares : {1, 2, 3, 7}) {
    for (const int weight : {1, 5}) {
      const ExpertSplit split(shares, std::vector<int>(static_cast<size_t>(shares), weight));
      for (const int num_experts : {1, 6, 8, 60, 65535}) {
        for (int share = 0; share < shares; ++share) {
          EXPECT_EQ(split.experts(share, num_experts), PartOf(num_experts, share, shares));
        }
        EXPECT_EQ(ExpertSplit(shares).experts(0, num_experts), split.experts(0, num_experts));
        EXPECT_EQ(split.FewestExperts(num_experts), num_experts / shares);
        EXPECT_EQ(split.MostExperts(num_experts), (num_experts + shares - 1) / shares);
      }
    }
  }
}

TEST(ExpertSplit, WithWeightsCoversAllExpertsOnce) {
  const std::vector<int> weights = {3, 1, 4096, 2};
  const ExpertSplit split(4, weights);
  for (const int num_experts : {1, 8, 4102, 65535}) {
    int next = 0;
    for (int share = 0; share < split.num_shares(); ++share) {
      const Part part = split.experts(share, num_experts);
      EXPECT_EQ(part.first, next);
      EXPECT_NEAR(part.size, num_experts * weights[share] / 4102.0, 1);
      next += part.size;
    }
    EXPECT_EQ(next, num_experts);
  }
  EXPECT_EQ(ExpertSplit(2, {3, 1}).experts(0, 8), (Part{0, 6}));
  EXPECT_EQ(ExpertSplit(2, {3, 1}).PartOfAmount(1, 2), 0.5);
  EXPECT_EQ(ExpertSplit(2, {99, 1}).FewestExperts(8), 1);
  EXPECT_EQ(ExpertSplit(2, {1, 99}).FewestExperts(8), 0);
}

TEST(Roles, DivideTheHeadByWholePanels) {
  const Roles roles = Layout{.attention_tp = 3, .expert_tp = 3, .divides_head = true};
  int next_token = 0;
  for (int rank = 0; rank < 3; ++rank) {
    const Part tokens = roles.of(rank).head->TokensOf(250);  // four panels
    EXPECT_EQ(tokens.first, next_token);
    EXPECT_EQ(tokens.first % kHeadPanelTokens, 0);
    EXPECT_GT(tokens.size, 0);
    next_token += tokens.size;
  }
  EXPECT_EQ(next_token, 250);
  EXPECT_EQ(HeadRole{}.TokensOf(250), (Part{0, 250}));
}

TEST(Roles, GoThroughADividedHeadSoManyRowsAtATime) {
  const Roles roles = Layout{.attention_tp = 2, .expert_tp = 2, .divides_head = true};
  EXPECT_EQ(HeadChunksOf(roles, 0), 1);
  EXPECT_EQ(HeadChunksOf(roles, kHeadRows), 1);
  EXPECT_EQ(HeadChunksOf(roles, kHeadRows + 1), 2);
  EXPECT_EQ(HeadChunksOf(Layout{.attention_tp = 2, .expert_tp = 2}, 1000), 1);
}

}  // namespace
}  // namespace convene::strategy
