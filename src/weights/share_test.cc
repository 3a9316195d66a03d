#include "weights/share.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "base/check.h"
#include "checkpoint/checkpoint.h"

namespace convene::weights {
namespace {

using testing::HasSubstr;

model::ModelSpec SpecWith(int num_heads, int num_kv_heads, int num_experts = 8,
                          int intermediate_size = 96) {
  model::ModelSpec spec;
  model::LayerSpec& layer = spec.layers.emplace_back();
  layer.attention = {.num_heads = num_heads, .num_kv_heads = num_kv_heads, .head_dim = 16};
  layer.moe = {.num_experts = num_experts, .top_k = 2, .intermediate_size = intermediate_size};
  return spec;
}

Result<model::ModelSpec> Local(const model::ModelSpec& spec, const Share& share,
                               kernels::WeightFormat format = kernels::WeightFormat::kBf16) {
  return LocalSpec(spec, share, {.matrices = format});
}

TEST(Share, IsWhatTheLayoutGivesTheRank) {
  const strategy::Layout layout{
      .attention_tp = 2, .attention_dp = 2, .expert_ep = 1, .expert_tp = 4};
  EXPECT_EQ(ShareOf(layout, 3), (Share{.attention_part = 1,
                                       .attention_parts = 2,
                                       .expert_share = 0,
                                       .expert_shares = 1,
                                       .expert_slice = 3,
                                       .expert_slices = 4,
                                       .head = {}}));
  EXPECT_EQ(ShareOf({}, 0), Share{});
}

TEST(Share, OfADenseBlockIsASliceWhereTheLayoutDividesIt) {
  model::ModelSpec spec = SpecWith(8, 8);
  spec.layers[0].moe.reset();
  spec.layers[0].dense_intermediate_size = 100;
  const strategy::Layout layout{
      .attention_tp = 4, .attention_dp = 2, .expert_ep = 8, .divides_dense = true};
  int next = 0;
  for (int rank = 0; rank < 4; ++rank) {
    const Share share = ShareOf(layout, rank);
    EXPECT_EQ(share.divides_dense, true);
    const strategy::Part slice = DenseSliceOf(spec.layers[0], share, {});
    EXPECT_EQ(slice.first, next);
    next += slice.size;
    EXPECT_EQ(Local(spec, share)->layers[0].dense_intermediate_size, slice.size);
    // The other group has the same.
    EXPECT_EQ(DenseSliceOf(spec.layers[0], ShareOf(layout, rank + 4), {}), slice);
    // int4: whole groups.
    const WeightFormats int4{.matrices = kernels::WeightFormat::kInt4, .group = 32};
    EXPECT_EQ(DenseSliceOf(spec.layers[0], share, int4).first % 32, 0);
  }
  EXPECT_EQ(next, 100);
  spec.layers[0].dense_intermediate_size = 3;
  EXPECT_THAT(Local(spec, ShareOf(layout, 0)).error().message,
              HasSubstr("dense blocks with an intermediate size of 3 cannot be cut into 4 slices"));
}

TEST(Share, OfRanksWithAttentionOrExpertsAloneLacksTheRest) {
  const strategy::Layout layout{.attention_tp = 2, .expert_ep = 3, .disaggregates = true};
  model::ModelSpec spec = SpecWith(4, 4);
  spec.layers[0].moe->shared_intermediate_size = 32;
  spec.layers.push_back(spec.layers[0]);
  spec.layers[1].moe.reset();
  spec.layers[1].dense_intermediate_size = 64;
  for (int rank = 0; rank < 5; ++rank) {
    const Share share = ShareOf(layout, rank);
    EXPECT_EQ(share.with_attention, rank < 2);
    EXPECT_EQ(share.with_experts, rank >= 2);
    EXPECT_EQ(share.with_head(), rank == 0);
    const auto local = Local(spec, share);
    ASSERT_TRUE(local) << local.error().message;
    const model::LayerSpec& layer = local->layers[0];
    EXPECT_EQ(layer.attention.num_heads, rank < 2 ? 2 : 0);
    EXPECT_EQ(layer.moe->num_experts, 8);
    EXPECT_EQ(layer.moe->shared_intermediate_size, rank < 2 ? 32 : 0);
    EXPECT_EQ(layer.moe->intermediate_size, rank < 2 ? 0 : 96);
    EXPECT_EQ(local->layers[1].dense_intermediate_size, rank < 2 ? 64 : 0);
    EXPECT_EQ(ExpertsOf(*layer.moe, share).size, rank < 2 ? 0 : rank == 2 ? 2 : 3);
  }
}

TEST(LocalSpec, SaysOfAnEncoderThatItsExpertsStayWithItsAttention) {
  const strategy::Layout layout{.disaggregates = true};
  model::ModelSpec spec = SpecWith(4, 4);
  spec.encoder_layers = spec.layers;
  for (int rank = 0; rank < 2; ++rank) {
    const auto local = Local(spec, ShareOf(layout, rank));
    ASSERT_FALSE(local);
    EXPECT_THAT(local.error().message, HasSubstr("a layout without --disaggregate"));
  }
}

TEST(Share, OfTheExpertsIsAsLargeAsItsWeight) {
  const strategy::Layout layout{.attention_dp = 2, .expert_ep = 2, .expert_weights = {3, 1}};
  const model::ModelSpec spec = SpecWith(4, 4);
  const model::MoeSpec& moe = *spec.layers[0].moe;
  EXPECT_EQ(ExpertsOf(moe, ShareOf(layout, 0)), (strategy::Part{0, 6}));
  EXPECT_EQ(ExpertsOf(moe, ShareOf(layout, 1)), (strategy::Part{6, 2}));
  EXPECT_TRUE(Local(spec, ShareOf(layout, 1)));
}

TEST(LocalSpec, SaysOnAllRanksAlikeThatAShareWouldHaveNoExperts) {
  const strategy::Layout layout{.attention_dp = 3, .expert_ep = 3, .expert_weights = {1, 9, 9}};
  for (int rank = 0; rank < 3; ++rank) {
    const auto local = Local(SpecWith(4, 4), ShareOf(layout, rank));
    ASSERT_FALSE(local);
    EXPECT_THAT(local.error().message,
                HasSubstr("8 experts cannot be divided into 3 shares of such unequal weights: one "
                          "would have none; give weights that differ less, or ep3"));
  }
}

TEST(HeadsOf, DividesKvHeadsUnevenlyWithTheirQueries) {
  const model::ModelSpec spec = SpecWith(20, 5);
  const int firsts[] = {0, 1, 3};
  const int sizes[] = {1, 2, 2};
  for (int part = 0; part < 3; ++part) {
    const Share share{.attention_part = part, .attention_parts = 3};
    const HeadParts heads = HeadsOf(spec.layers[0].attention, share);
    EXPECT_EQ(heads.kv.first, firsts[part]);
    EXPECT_EQ(heads.kv.size, sizes[part]);
    EXPECT_EQ(heads.query.first, 4 * firsts[part]);
    EXPECT_EQ(heads.query.size, 4 * sizes[part]);
    const auto local = Local(spec, share);
    ASSERT_TRUE(local) << local.error().message;
    EXPECT_EQ(local->layers[0].attention.num_kv_heads, sizes[part]);
    EXPECT_EQ(local->layers[0].attention.num_heads, 4 * sizes[part]);
  }
}

TEST(HeadsOf, GivesAKvHeadToSeveralPartsThatDivideItsQueries) {
  const model::ModelSpec spec = SpecWith(12, 2);
  for (int part = 0; part < 6; ++part) {
    const Share share{.attention_part = part, .attention_parts = 6};
    const HeadParts heads = HeadsOf(spec.layers[0].attention, share);
    EXPECT_EQ(heads.kv.first, part / 3);
    EXPECT_EQ(heads.kv.size, 1);
    EXPECT_EQ(heads.query.first, 2 * part);
    EXPECT_EQ(heads.query.size, 2);
    EXPECT_TRUE(Local(spec, share));
  }
}

TEST(LocalSpec, OfEverythingIsTheModel) {
  const model::ModelSpec spec = SpecWith(20, 5);
  const auto local = Local(spec, {});
  ASSERT_TRUE(local);
  EXPECT_EQ(local->layers[0].attention.num_heads, 20);
  EXPECT_EQ(local->layers[0].moe->intermediate_size, 96);
}

TEST(LocalSpec, KeepsTheNumberOfExpertsForTheRouter) {
  const auto local = Local(SpecWith(4, 4), {.expert_share = 1, .expert_shares = 4});
  ASSERT_TRUE(local);
  EXPECT_EQ(local->layers[0].moe->num_experts, 8);
}

TEST(LocalSpec, SaysWhichDivisionsOfAttentionFit) {
  const auto seven = Local(SpecWith(12, 2), {.attention_parts = 7});
  ASSERT_FALSE(seven);
  EXPECT_THAT(seven.error().message, HasSubstr("into 7 parts; 1 to 2, 4, 6 or 12 fit"));
  const auto three = Local(SpecWith(4, 1), {.attention_parts = 3});
  ASSERT_FALSE(three);
  EXPECT_THAT(three.error().message, HasSubstr("1, 2 or 4 fit"));
  const auto alone = Local(SpecWith(1, 1), {.attention_parts = 2});
  ASSERT_FALSE(alone);
  EXPECT_THAT(alone.error().message, AllOf(HasSubstr("attention with 1 head, 1 of them"),
                                           HasSubstr("into 2 parts; 1 fits")));
}

TEST(LocalSpec, SaysHowManySharesAndSlicesOfExpertsFit) {
  const auto shares = Local(SpecWith(4, 4), {.expert_shares = 9});
  ASSERT_FALSE(shares);
  EXPECT_THAT(shares.error().message, HasSubstr("1 to 8 fit"));
  const auto slices = Local(SpecWith(4, 4), {.expert_slices = 97});
  ASSERT_FALSE(slices);
  EXPECT_THAT(slices.error().message, HasSubstr("1 to 96 fit"));
  const auto one_group =
      Local(SpecWith(4, 4, 8, 20), {.expert_slices = 2}, kernels::WeightFormat::kInt4);
  ASSERT_FALSE(one_group);
  EXPECT_THAT(one_group.error().message, HasSubstr("into 2 slices; 1 fits"));
  const auto groups = Local(SpecWith(4, 4), {.expert_slices = 4}, kernels::WeightFormat::kInt4);
  ASSERT_FALSE(groups);
  EXPECT_THAT(groups.error().message, HasSubstr("1 to 3 fit"));
}

TEST(SliceOf, CutsInt4WhereGroupsBegin) {
  const model::ModelSpec spec = SpecWith(4, 4, 8, 100);  // groups of 32, 32, 32 and 4
  const int firsts[] = {0, 32, 64};
  const int sizes[] = {32, 32, 36};
  for (int slice = 0; slice < 3; ++slice) {
    const Share share{.expert_slice = slice, .expert_slices = 3};
    const strategy::Part part =
        SliceOf(*spec.layers[0].moe, share, {.matrices = kernels::WeightFormat::kInt4});
    EXPECT_EQ(part.first, firsts[slice]);
    EXPECT_EQ(part.size, sizes[slice]);
  }
}

}  // namespace
}  // namespace convene::weights
