#include "weights/weight_store.h"

#include <gtest/gtest.h>

#include <vector>

namespace convene::weights {
namespace {

class Recorder final : public Lender {
 public:
  void End(uint64_t lease) override { ended.push_back(lease); }

  std::vector<uint64_t> ended;
};

TEST(Lease, EndsOnceWhoeverHasItLast) {
  Recorder lender;
  const int leased = 5;
  {
    Result<Lease<int>> first = Lease<int>(leased, lender, 17);
    ASSERT_TRUE(first);
    EXPECT_EQ(**first, 5);
    const Lease<int> moved = *std::move(first);
    EXPECT_EQ(&*moved, &leased);
    EXPECT_TRUE(lender.ended.empty());
    const Lease<int> other(leased, lender, 18);
  }
  EXPECT_EQ(lender.ended, (std::vector<uint64_t>{18, 17}));
}

TEST(ResidentWeights, LeaseTheWeightsThemselves) {
  ModelWeights weights;
  weights.formats.matrices = kernels::WeightFormat::kInt8;
  weights.spec.vocab_size = 7;
  weights.final_norm = {1, 2};
  weights.layers.resize(2);
  weights.layers[1].attention_norm = {3};
  weights.layers[1].cross.emplace().norm = {4};
  weights.layers[1].ffn_norm = {5};
  MoeWeights& moe = weights.layers[1].moe.emplace();
  moe.first_expert = 8;
  moe.experts.resize(4);
  weights.encoder.emplace().layers.resize(1);
  weights.encoder->relative_bias = {6};

  ResidentWeights store(weights);
  EXPECT_EQ(store.spec().vocab_size, 7);
  EXPECT_EQ(store.formats().matrices, kernels::WeightFormat::kInt8);
  const LayerId second{.layer = 1};
  EXPECT_EQ(store.AttentionNorm(second, /*cross=*/false).front(), 3);
  EXPECT_EQ(store.AttentionNorm(second, /*cross=*/true).front(), 4);
  EXPECT_EQ(store.FfnNorm(second).front(), 5);
  EXPECT_EQ(store.FinalNorm(/*encoder=*/false).size(), 2u);
  EXPECT_TRUE(store.FinalNorm(/*encoder=*/true).empty());
  EXPECT_TRUE(store.RelativeBias(/*encoder=*/false).empty());
  EXPECT_EQ(store.RelativeBias(/*encoder=*/true).front(), 6);
  EXPECT_EQ(store.Experts(second).first, 8);
  EXPECT_EQ(store.Experts(second).size, 4);

  const std::vector<int> experts = {2};
  EXPECT_EQ(&**store.LeaseLayer(second, LayerPart::kRouter), &weights.layers[1]);
  EXPECT_EQ(&**store.LeaseExperts(second, experts), &moe.experts);
  EXPECT_EQ(&**store.LeaseLayer({.layer = 0, .encoder = true}, LayerPart::kDense),
            &weights.encoder->layers[0]);
  EXPECT_EQ(&**store.LeaseHead(), &weights.head);
  EXPECT_EQ(&**store.LeaseEmbedding(/*encoder=*/false), &weights.embedding);
  EXPECT_EQ(&**store.LeaseEmbedding(/*encoder=*/true), &weights.encoder->embedding);
}

}  // namespace
}  // namespace convene::weights
