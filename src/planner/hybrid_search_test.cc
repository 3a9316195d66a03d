#include "planner/hybrid_search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "cost/presets.h"

namespace convene::planner {
namespace {

using model::TensorRole;
using ::testing::HasSubstr;

constexpr double kGib = 1 << 30;

// As Mixtral 8x7B, with some of its layers.
model::ModelSpec SpecOfHybrid(int num_layers = 32) {
  model::LayerSpec layer;
  layer.attention = {.num_heads = 32, .num_kv_heads = 8, .head_dim = 128, .value_dim = 128};
  layer.moe = model::MoeSpec{.num_experts = 8, .top_k = 2, .intermediate_size = 14336};
  model::ModelSpec spec;
  spec.hidden_size = 4096;
  spec.vocab_size = 32000;
  spec.layers.assign(num_layers, layer);
  const auto add = [&](TensorRole role, int64_t rows, int64_t cols) {
    model::TensorBinding& tensor = spec.tensors.emplace_back();
    tensor.role = role;
    tensor.rows = rows;
    tensor.cols = cols;
  };
  add(TensorRole::kEmbedding, 32000, 4096);
  add(TensorRole::kHead, 32000, 4096);
  for (int i = 0; i < num_layers; ++i) {
    add(TensorRole::kQuery, 4096, 4096);
    add(TensorRole::kKey, 1024, 4096);
    add(TensorRole::kValue, 1024, 4096);
    add(TensorRole::kAttentionOutput, 4096, 4096);
    add(TensorRole::kExpertGate, 8 * 14336, 4096);
    add(TensorRole::kExpertUp, 8 * 14336, 4096);
    add(TensorRole::kExpertDown, 8 * 14336, 4096);
  }
  return spec;
}

class HybridSearch : public ::testing::Test {
 protected:
  HybridQuestion Question(const model::ModelSpec& spec, const std::string& preset, int num_ranks) {
    machine_ = *cost::Preset(preset);
    HybridQuestion question{.spec = spec, .num_ranks = num_ranks};
    question.batch = 8;
    question.prompt_tokens = 4096;
    question.gen_tokens = 64;
    question.memory_bytes = static_cast<double>(machine_.device->memory_bytes);
    question.upload_bytes_per_second = machine_.device->host_bytes_per_second;
    question.price = PriceOn(machine_, {});
    question.pass_seconds = [this](double bytes) {
      return bytes / machine_.device->memory_bytes_per_second;
    };
    return question;
  }

  cost::MachineProfile machine_;
};

TEST_F(HybridSearch, TheSolversChoiceIsTheFirstOfAllCandidates) {
  const model::ModelSpec spec = SpecOfHybrid();
  for (const char* preset : {"a6000-pcie4", "a100-nvlink", "v100-pcie3"}) {
    const auto answer = SearchHybrid(Question(spec, preset, 8));
    ASSERT_TRUE(answer.ok()) << answer.error().message;
    EXPECT_EQ(answer->attention.size(), 4u);
    EXPECT_EQ(answer->candidates.size(), 4u * 4 * 4);
    ASSERT_GE(answer->chosen, 0);
    const HybridCandidate& chosen = answer->candidates[answer->chosen];
    EXPECT_NEAR(chosen.seconds, answer->candidates[0].seconds, 1e-9 * chosen.seconds);
    EXPECT_NEAR(chosen.seconds,
                chosen.prefill_seconds + 64 * chosen.token_seconds + chosen.transition_seconds,
                1e-9 * chosen.seconds);
    // Tables and their parts agree, and nothing takes no time.
    for (const HybridCandidate& candidate : answer->candidates) {
      EXPECT_GT(candidate.prefill_seconds, 0);
      EXPECT_GT(candidate.token_seconds, 0);
      if (candidate.rejected.empty() && candidate.triple.prefill != candidate.triple.decode) {
        EXPECT_FALSE(candidate.transition_by.empty());
        EXPECT_GT(candidate.transition_seconds, 0);
      }
    }
  }
}

TEST_F(HybridSearch, WithoutTransitionBothPhasesHaveOneLayout) {
  const model::ModelSpec spec = SpecOfHybrid();
  HybridQuestion question = Question(spec, "a6000-pcie4", 4);
  question.gen_tokens = 2048;
  question.transition = TransitionKind::kNone;
  const auto answer = SearchHybrid(question);
  ASSERT_TRUE(answer.ok()) << answer.error().message;
  for (const HybridCandidate& candidate : answer->candidates) {
    EXPECT_TRUE(candidate.triple.prefill == candidate.triple.decode || !candidate.rejected.empty());
  }
  question.transition = TransitionKind::kReshard;
  const auto changing = SearchHybrid(question);
  ASSERT_TRUE(changing.ok()) << changing.error().message;
  EXPECT_LE(changing->candidates[0].seconds, answer->candidates[0].seconds);
  question.transition = TransitionKind::kUpload;
  const auto uploading = SearchHybrid(question);
  ASSERT_TRUE(uploading.ok());
  EXPECT_LE(uploading->candidates[0].seconds, changing->candidates[0].seconds);
}

TEST_F(HybridSearch, WhatIsPrunedKeepsItsReason) {
  model::ModelSpec spec = SpecOfHybrid(2);
  for (model::LayerSpec& layer : spec.layers) {
    layer.attention.num_heads = 28;
    layer.attention.num_kv_heads = 4;
    layer.moe->num_experts = 60;
    layer.moe->num_expert_groups = 4;
    layer.moe->top_expert_groups = 2;
  }
  const auto answer = SearchHybrid(Question(spec, "a100-nvlink", 8));
  ASSERT_TRUE(answer.ok()) << answer.error().message;
  ASSERT_EQ(answer->pruned.size(), 2u);
  EXPECT_EQ(answer->pruned[0].strategy, "attention=tp8");
  EXPECT_THAT(answer->pruned[0].reason, HasSubstr("28 heads cannot be divided by 8"));
  EXPECT_EQ(answer->pruned[1].strategy, "experts=ep8");
  EXPECT_THAT(answer->pruned[1].reason, HasSubstr("60 experts cannot be divided by 8"));

  // Groups of experts stay on one rank each.
  for (model::LayerSpec& layer : spec.layers) layer.moe->num_experts = 64;
  const auto limited = SearchHybrid(Question(spec, "a100-nvlink", 8));
  ASSERT_TRUE(limited.ok());
  ASSERT_EQ(limited->pruned.size(), 2u);
  EXPECT_THAT(limited->pruned[1].reason, HasSubstr("in 2 of 4 groups"));
}

TEST_F(HybridSearch, MemoryRejectsAndSaysWhatWouldDo) {
  const model::ModelSpec spec = SpecOfHybrid();
  HybridQuestion question = Question(spec, "a6000-pcie4", 4);
  question.memory_bytes = 31 * kGib;
  question.batch = 16;
  const auto answer = SearchHybrid(question);
  ASSERT_TRUE(answer.ok()) << answer.error().message;
  const auto rejected =
      std::find_if(answer->candidates.begin(), answer->candidates.end(),
                   [](const HybridCandidate& candidate) { return !candidate.rejected.empty(); });
  ASSERT_NE(rejected, answer->candidates.end());
  EXPECT_THAT(rejected->rejected, HasSubstr("31.0 GiB"));
  question.memory_bytes = 10 * kGib;
  const auto nothing = SearchHybrid(question);
  ASSERT_FALSE(nothing.ok());
  EXPECT_THAT(nothing.error().message, HasSubstr("does not fit 4 ranks of 10.0 GiB"));
}

TEST_F(HybridSearch, TheCacheGrowsWhereAttentionHasMorePartsThanKvHeads) {
  model::ModelSpec spec = SpecOfHybrid(2);
  const PhaseStep step = {.batch = 8, .tokens = 1};
  const auto kv = [&](int tensor) {
    return BytesOf(spec, AttentionStrategy{.tensor = tensor, .data = 16 / tensor}, {}, step, step,
                   1000)
        .kv;
  };
  // A rank has two of the 8 KV heads of two sequences, one of four, and one of eight.
  EXPECT_EQ(kv(4), kv(8));
  EXPECT_EQ(kv(16), 2 * kv(8));
  for (model::LayerSpec& layer : spec.layers) {
    layer.attention.latent = model::LatentSpec{.kv_rank = 512, .nope_dim = 128, .rope_dim = 64};
  }
  // Latents are copied to all parts.
  EXPECT_EQ(kv(8), 2 * kv(4));
}

// Of the candidate with these degrees of tensor parallelism in attention and the experts.
const HybridCandidate& CandidateOfDegrees(const HybridAnswer& answer, int attention, int experts) {
  return *std::ranges::find_if(answer.candidates, [&](const HybridCandidate& candidate) {
    return candidate.prefill.attention_tp == attention && candidate.prefill.expert_tp == experts &&
           candidate.decode.expert_tp == experts;
  });
}

TEST_F(HybridSearch, AGroupsStepsAreLimitedByItselfOrWithAllOthers) {
  const model::ModelSpec spec = SpecOfHybrid(2);
  HybridQuestion question = Question(spec, "a100-nvlink", 4);
  question.step_tokens = 256;
  const auto by_group = SearchHybrid(question);
  ASSERT_TRUE(by_group.ok()) << by_group.error().message;
  ASSERT_EQ(by_group->prefill.size(), 3u);
  // dp4, dp2 and dp1: a group has 2, 4 or 8 of the sequences.
  EXPECT_EQ(by_group->prefill[0].tokens, 128);
  EXPECT_EQ(by_group->prefill[1].tokens, 64);
  EXPECT_EQ(by_group->prefill[2].tokens, 32);
  question.step_tokens = 0;
  question.total_step_tokens = 256;
  const auto together = SearchHybrid(question);
  ASSERT_TRUE(together.ok());
  for (const PhaseStep& step : together->prefill) EXPECT_EQ(step.tokens, 32);
  // Tensor parallelism has one group.
  EXPECT_DOUBLE_EQ(CandidateOfDegrees(*by_group, 4, 4).prefill_seconds,
                   CandidateOfDegrees(*together, 4, 4).prefill_seconds);
  EXPECT_LT(CandidateOfDegrees(*by_group, 1, 1).prefill_seconds,
            CandidateOfDegrees(*together, 1, 1).prefill_seconds);
  // Lengths that steps do not divide: no step is beyond the limit, and no token is left out.
  question.prompt_tokens = 100;
  question.batch = 3;
  const auto uneven = SearchHybrid(question);
  ASSERT_TRUE(uneven.ok());
  EXPECT_EQ(uneven->prefill[0].tokens, 50);
}

TEST_F(HybridSearch, HeadAndSharedExpertsAreDividedWhereTheyAreAskedFor) {
  model::ModelSpec spec = SpecOfHybrid(2);
  for (model::LayerSpec& layer : spec.layers) layer.moe->shared_intermediate_size = 14336;
  HybridQuestion question = Question(spec, "a100-nvlink", 4);
  question.batch = 1;
  const auto whole = SearchHybrid(question);
  question.divides_rest = true;
  const auto divided = SearchHybrid(question);
  ASSERT_TRUE(whole.ok() && divided.ok());
  for (const HybridCandidate& candidate : divided->candidates) {
    EXPECT_TRUE(candidate.prefill.divides_head && candidate.decode.divides_head);
    EXPECT_EQ(candidate.prefill.divides_shared, candidate.prefill.expert_ep == 1);
    EXPECT_EQ(candidate.decode.divides_shared, candidate.decode.expert_ep == 1);
  }
  const HybridCandidate& before = CandidateOfDegrees(*whole, 4, 4);
  const HybridCandidate& after = CandidateOfDegrees(*divided, 4, 4);
  EXPECT_FALSE(before.prefill.divides_head || before.prefill.divides_shared);
  EXPECT_LT(after.token_seconds, before.token_seconds);
  // Three quarters of the head are on other ranks.
  EXPECT_DOUBLE_EQ(before.memory_bytes - after.memory_bytes, 0.75 * 32000 * 4096 * 2);
}

TEST_F(HybridSearch, WithoutOverlapExchangesAreWaitedFor) {
  model::ModelSpec spec = SpecOfHybrid(2);
  for (model::LayerSpec& layer : spec.layers) layer.moe->shared_intermediate_size = 14336;
  HybridQuestion question = Question(spec, "a6000-pcie4", 4);
  const auto beside = SearchHybrid(question);
  question.overlap = false;
  const auto waiting = SearchHybrid(question);
  ASSERT_TRUE(beside.ok() && waiting.ok());
  EXPECT_LT(CandidateOfDegrees(*beside, 1, 1).prefill_seconds,
            CandidateOfDegrees(*waiting, 1, 1).prefill_seconds);
}

TEST_F(HybridSearch, LayoutsMayHavePricesOfTheirOwn) {
  const model::ModelSpec spec = SpecOfHybrid(2);
  HybridQuestion question = Question(spec, "a6000-pcie4", 4);
  const auto alike = SearchHybrid(question);
  question.price_of = [price = question.price](const strategy::Layout& layout) -> PriceStep {
    if (layout.attention_tp == 1 || layout.expert_tp == 1) return price;
    return [price](const auto&... arguments) {
      Result<cost::Prices> prices = price(arguments...);
      if (prices) {
        for (double& seconds : prices->fixed_seconds) seconds += 1;
      }
      return prices;
    };
  };
  const auto apart = SearchHybrid(question);
  ASSERT_TRUE(alike.ok() && apart.ok());
  EXPECT_GT(CandidateOfDegrees(*apart, 4, 4).token_seconds,
            CandidateOfDegrees(*alike, 4, 4).token_seconds + 1);
  EXPECT_DOUBLE_EQ(CandidateOfDegrees(*apart, 1, 1).token_seconds,
                   CandidateOfDegrees(*alike, 1, 1).token_seconds);
}

TEST_F(HybridSearch, PartsOfTheLayersHaveSharesOfTheirOwn) {
  const model::ModelSpec spec = SpecOfHybrid(2);
  HybridQuestion question = Question(spec, "a6000-pcie4", 4);
  const auto even = cost::UniformShares(8, 2);
  const auto uneven = cost::SharesFromCounts({5, 4, 1, 1, 1, 1, 1, 1}, 2);
  const auto prefill_with = [&](std::vector<cost::ExpertShares> shares) {
    question.shares = std::move(shares);
    const auto answer = SearchHybrid(question);
    EXPECT_TRUE(answer.ok());
    return CandidateOfDegrees(*answer, 1, 1).prefill_seconds;
  };
  const double both = prefill_with({even, uneven});
  EXPECT_GT(prefill_with({uneven}), prefill_with({even}));
  EXPECT_NEAR(both, (prefill_with({even}) + prefill_with({uneven})) / 2, 1e-9 * both);
}

TEST_F(HybridSearch, SixtyFourRanksOverSeveralHosts) {
  model::ModelSpec spec = SpecOfHybrid();
  for (model::LayerSpec& layer : spec.layers) {
    layer.attention.num_heads = 64;
    layer.moe->num_experts = 128;
    layer.moe->top_k = 8;
    layer.moe->intermediate_size = 2048;
  }
  HybridQuestion question = Question(spec, "h800-nvlink", 64);
  question.batch = 64;
  const auto answer = SearchHybrid(question);
  ASSERT_TRUE(answer.ok()) << answer.error().message;
  EXPECT_EQ(answer->attention.size(), 7u);
  EXPECT_EQ(answer->candidates.size(), 343u);
  EXPECT_NEAR(answer->candidates[answer->chosen].seconds, answer->candidates[0].seconds,
              1e-9 * answer->candidates[0].seconds);
}

TEST_F(HybridSearch, NumbersThatMakeNoSenseAreRefused) {
  const model::ModelSpec spec = SpecOfHybrid(1);
  HybridQuestion question = Question(spec, "a100-nvlink", 6);
  EXPECT_THAT(SearchHybrid(question).error().message, HasSubstr("powers of two"));
  question.num_ranks = 4;
  question.gen_tokens = 0;
  EXPECT_FALSE(SearchHybrid(question).ok());
}

}  // namespace
}  // namespace convene::planner
