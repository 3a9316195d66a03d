// Into how many parts a layer's experts are cut, and when they are read, by the room that memory
// has.
#include "strategy/paging.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace convene::strategy {
namespace {

// Layers with so many experts each, 0: a dense one; two of them are chosen by a token.
model::ModelSpec SpecOfPaging(const std::vector<int>& experts) {
  model::ModelSpec spec;
  for (const int count : experts) {
    model::LayerSpec& layer = spec.layers.emplace_back();
    if (count > 0) layer.moe = model::MoeSpec{.num_experts = count, .top_k = 2};
  }
  return spec;
}

TEST(Paging, CutsALayerSoThatTwoPartsHaveRoom) {
  const model::ModelSpec spec = SpecOfPaging({0, 8, 8, 8});
  EXPECT_EQ(MostExperts(spec), 8);
  EXPECT_EQ(CountExperts(spec), 24);
  EXPECT_EQ(FewestExpertsInMemory(spec), 2);
  for (int room = 2; room <= 24; ++room) {
    const Paging paging = PagingOf(spec, /*encoder=*/false, room, /*num_tokens=*/1000);
    const int part = (8 + paging.chunks - 1) / paging.chunks;
    EXPECT_LE(2 * part, room) << room;
    EXPECT_GE(paging.chunks, 2) << "one is read while the other one is computed";
    EXPECT_GE(paging.depth, 2);
    EXPECT_LE(paging.depth, paging.chunks + 1) << "a layer ahead at most";
    EXPECT_LE(paging.depth * part, std::max(room, 2 * part));
  }
}

TEST(Paging, WhatStaysInEachLayerLeavesRoomForWhatIsOnItsWay) {
  const model::ModelSpec spec = SpecOfPaging({0, 64, 64, 64, 64});
  constexpr int kLayers = 4;
  for (int room = 2; room < kLayers * 64; ++room) {
    const Paging paging = PagingOf(spec, /*encoder=*/false, room, /*num_tokens=*/1000);
    const auto needed = [&](int staying) {
      return kLayers * staying +
             paging.depth * ((64 - staying + paging.chunks - 1) / paging.chunks);
    };
    const int staying = StayingExperts(spec, room, paging);
    EXPECT_TRUE(staying == 0 || needed(staying) <= room) << room;
    EXPECT_GT(needed(staying + 1), room) << "one more of each layer would not fit";
    EXPECT_DOUBLE_EQ(paging.missing, 1 - staying / 64.0);
  }
  EXPECT_EQ(PagingOf(spec, false, kLayers * 64, 1000).missing, 0);
}

// Of a layer's experts those that tokens chose are wanted, one part of them after the other.
TEST(Paging, OfFewTokensAllIsFoundButForWhatIsOnItsWay) {
  const model::ModelSpec spec = SpecOfPaging({64, 64, 64, 64});
  for (const int num_tokens : {1, 4, 16, 64}) {
    const double chosen = 64 * (1 - std::pow(1 - 2 / 64.0, num_tokens));
    for (const int room : {64, 128, 200}) {
      const Paging paging = PagingOf(spec, false, room, num_tokens);
      ASSERT_TRUE(paging.after_routing);
      EXPECT_GE(paging.missing, 1 - room / 256.0);
      const double on_their_way = paging.depth * (chosen / paging.chunks);
      EXPECT_LE(paging.missing, 1 - (room - on_their_way) / 256.0) << num_tokens << " " << room;
    }
  }
}

TEST(Paging, RanksOfAStepHaveThePagingOfTheOneWithTheMostExperts) {
  const model::ModelSpec spec = SpecOfPaging({8, 8});
  const Roles roles = Layout{.attention_dp = 3, .expert_ep = 3};
  int all = 0;
  for (int rank = 0; rank < 3; ++rank) {
    const int count = CountExperts(spec, {roles, rank});
    EXPECT_EQ(count, 2 * MostExperts(spec, {roles, rank}));
    EXPECT_LE(count, CountExperts(spec, LargestOwner(spec, roles)));
    all += count;
  }
  EXPECT_EQ(all, 16);
  const ExpertOwner largest = LargestOwner(spec, roles);
  EXPECT_EQ(MostExperts(spec, largest), 3);
  EXPECT_EQ(FewestExpertsInMemory(spec, largest), 2);
  const Paging paging = PagingOf(spec, /*encoder=*/false, 2, /*num_tokens=*/1000, largest);
  EXPECT_EQ(paging.chunks, 3);
  EXPECT_DOUBLE_EQ(paging.missing, 1) << "both are on their way";
}

TEST(Paging, WaitsForWhatFewTokensChooseAndReadsAllForMany) {
  const model::ModelSpec spec = SpecOfPaging({64, 64});
  const Paging few = PagingOf(spec, false, 16, 1);
  EXPECT_TRUE(few.after_routing);
  EXPECT_TRUE(few.predicts);
  const Paging many = PagingOf(spec, false, 16, 512);
  EXPECT_FALSE(many.after_routing);
  EXPECT_FALSE(many.predicts);
  EXPECT_FALSE(PagingOf(spec, false, 128, 1).predicts) << "all are in memory";
  EXPECT_EQ(PagingOf(spec, false, 200, 512).missing, 0);
}

}  // namespace
}  // namespace convene::strategy
