#include "strategy/work.h"

#include <gtest/gtest.h>

#include <utility>

namespace convene::strategy {
namespace {

TEST(LayerWork, OfAttentionIsThatOfTheHeadsThatARankHas) {
  model::ModelSpec spec;
  spec.hidden_size = 16;
  model::LayerSpec layer;
  layer.attention = {.num_heads = 12, .num_kv_heads = 3, .head_dim = 8, .value_dim = 4};
  // Projections of queries, keys and values and back; keys and values per token.
  const auto expect = [&](int parts, int rank, int queries, int kv) {
    const StepOptions options{.roles = Layout{.attention_tp = parts, .expert_tp = parts},
                              .bytes = {.weights = 1, .kv = 1}};
    const schedule::Work work = LayerWork(spec, layer, 0, options).Attention(rank, false);
    const double elements = 16.0 * (queries * 8 + kv * (8 + 4) + queries * 4);
    // Of tokens; then of keys.
    EXPECT_EQ(work.flops[0].factor + work.flops[1].factor, 2 * elements) << parts;
    EXPECT_EQ(work.flops[2].factor, 2 * queries * (8 + 4)) << parts;
    EXPECT_EQ(work.memory_bytes.front().factor, elements) << parts;
    EXPECT_EQ(work.memory_bytes.back().size.kind, schedule::SizeKind::kCached) << parts;
    EXPECT_EQ(work.memory_bytes.back().factor, kv * (8 + 4)) << parts;
  };
  expect(1, 0, 12, 3);
  expect(3, 1, 4, 1);
  expect(2, 0, 4, 1);
  expect(2, 1, 8, 2);
  expect(6, 5, 2, 1);  // two parts have copies of a KV head
  expect(12, 5, 1, 1);
}

TEST(LayerWork, ReadsOfADiskWhatTheRankHasOfEachExpert) {
  model::ModelSpec spec;
  spec.hidden_size = 16;
  model::LayerSpec layer;
  layer.moe = model::MoeSpec{.num_experts = 8, .top_k = 2, .intermediate_size = 32};
  const auto bytes_of = [&](const Layout& layout) {
    const StepOptions options{.roles = layout,
                              .bytes = {.weights = 1},
                              .paging = Paging{.chunks = 1, .depth = 2, .missing = 1}};
    const LayerWork work(spec, layer, 0, options);
    return std::pair(work.ReadPages(0).disk_bytes.front().factor,
                     work.ReadChosen(0, 0).disk_bytes.front().factor);
  };
  const auto [all, one] = bytes_of({});
  EXPECT_EQ(all, 8 * one);
  EXPECT_GT(one, 0);
  EXPECT_EQ(bytes_of({.attention_dp = 2, .expert_ep = 2}), std::pair(all / 2, one));
  EXPECT_EQ(bytes_of({.attention_tp = 2, .expert_tp = 2}), std::pair(all / 2, one / 2));
}

TEST(LayerWork, OfLatentAttentionHasTheWholeLatentsOnEachPart) {
  model::ModelSpec spec;
  spec.hidden_size = 16;
  model::LayerSpec layer;
  layer.attention = {.num_heads = 4, .num_kv_heads = 4, .head_dim = 6, .value_dim = 4};
  layer.attention.latent =
      model::LatentSpec{.query_rank = 5, .kv_rank = 3, .nope_dim = 4, .rope_dim = 2};
  const StepOptions options{.roles = Layout{.attention_tp = 2, .expert_tp = 2},
                            .bytes = {.weights = 1, .kv = 1}};
  const schedule::Work work = LayerWork(spec, layer, 0, options).Attention(1, false);
  const double latents = 5 * 16 + 16 * (3 + 2);
  const double heads = 2 * (5 * 6 + 3 * (4 + 4) + 16 * 4);
  EXPECT_EQ(work.memory_bytes.front().factor, latents + heads);
  EXPECT_EQ(work.memory_bytes[3].size.kind, schedule::SizeKind::kCached);
  EXPECT_EQ(work.memory_bytes[3].factor, 3 + 2);
  // A key costs, absorbed, the latent and its rotated part, and then the latent; expanded what a
  // head has.
  double absorbed = 0;
  double expanded = 0;
  for (const schedule::Term& term : work.flops) {
    if (term.size.kind == schedule::SizeKind::kKeys) absorbed += term.factor;
    if (term.size.kind == schedule::SizeKind::kExpandedKeys) expanded += term.factor;
  }
  EXPECT_EQ(absorbed, 2 * 2 * ((3 + 2) + 3));
  EXPECT_EQ(absorbed + expanded, 2 * 2 * (6 + 4));
}

TEST(LayerWork, APrunedLayerGoesOnWithTheRowsThatAreWanted) {
  model::ModelSpec spec;
  spec.hidden_size = 16;
  model::LayerSpec layer;
  layer.attention = {.num_heads = 4, .num_kv_heads = 4, .head_dim = 4, .value_dim = 4, .window = 9};
  layer.dense_intermediate_size = 32;
  const StepOptions options{.bytes = {.weights = 1, .kv = 1}};
  const LayerWork whole(spec, layer, 1, options);
  const LayerWork pruned(spec, layer, 1, options, /*prunes=*/true);
  using schedule::SizeKind;
  EXPECT_EQ(whole.Dense(0).flops.front().size.kind, SizeKind::kRows);
  EXPECT_EQ(pruned.Dense(0).flops.front().size.kind, SizeKind::kWanted);
  // Keys and values are made of all tokens, and then those that are wanted attend.
  const schedule::Work attention = pruned.Attention(0, false);
  EXPECT_FALSE(attention.flops[0].size.wanted);
  EXPECT_TRUE(attention.flops[1].size.wanted);
  EXPECT_TRUE(attention.flops[2].size.wanted);
  EXPECT_EQ(attention.flops[2].size.layer, 1) << "a window limits what is seen there";
}

}  // namespace
}  // namespace convene::strategy
