// Attention on some ranks and experts on others against one rank with all of it: the same tokens,
// and the same logits to the bit where the sums have the same order, for all strategies, families,
// and numbers of ranks, micro-batches and chunks, also where there are more of these than rows.
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <utility>
#include <vector>

#include "tests/golden_ranks.h"

namespace convene {
namespace {

using kernels::WeightFormat;
using strategy::AttentionOrder;
using strategy::Layout;
using strategy::Pipeline;

// So many attention ranks, and so many expert ranks.
Layout Ranks(int attention, int experts) {
  return {.attention_dp = attention, .expert_ep = experts, .disaggregates = true};
}

// So many expert ranks, and attention on these: some of them behind ranks with experts.
Layout AttentionOn(std::vector<int> ranks, int experts) {
  Layout layout = Ranks(static_cast<int>(ranks.size()), experts);
  layout.attention_ranks = std::move(ranks);
  return layout;
}

Pipeline Naive() { return {.dispatch_after_shared = true}; }
Pipeline PpPipe(int micro_batches) {
  return {.micro_batches = micro_batches, .dispatch_after_shared = true};
}
Pipeline Fine(int micro_batches, int chunks, AttentionOrder order) {
  return {.chunks = chunks, .micro_batches = micro_batches, .order = order};
}

std::vector<Division> AllDivisions() {
  using enum AttentionOrder;
  return {
      {"1to1_naive", Ranks(1, 1), Naive()},
      {"1to2_naive", Ranks(1, 2), Naive()},
      {"2to1_pppipe", Ranks(2, 1), PpPipe(2)},
      {"2to2_asas", Ranks(2, 2), Fine(2, 2, kAsas)},
      {"1to2_aass", Ranks(1, 2), Fine(3, 2, kAass)},
      {"3to1_more_parts_than_rows", Ranks(3, 1), Fine(5, 7, kAsas)},
      {"2to2_one_micro_batch", Ranks(2, 2), Fine(1, 3, kAsas)},
      {"1to2_unlike_shares",
       {.expert_ep = 2, .expert_weights = {3, 1}, .disaggregates = true},
       Fine(2, 1, kAass)},
      {"tp2_dense_to_2",
       {.attention_tp = 2, .expert_ep = 2, .disaggregates = true, .divides_dense = true},
       Fine(2, 2, kAsas)},
      {"tp2_to_2", {.attention_tp = 2, .expert_ep = 2, .disaggregates = true}, Fine(2, 2, kAsas)},
      {"1to_slice2", {.expert_tp = 2, .disaggregates = true}, PpPipe(2)},
      {"2to2_attention_on_1_and_3", AttentionOn({1, 3}, 2), Fine(2, 2, kAass)},
      {"1to2_attention_on_the_last",
       {.expert_ep = 2, .expert_weights = {3, 1}, .disaggregates = true, .attention_ranks = {2}},
       Fine(2, 1, kAsas)},
      {"tp2_on_1_and_2_to_2",
       {.attention_tp = 2, .expert_ep = 2, .disaggregates = true, .attention_ranks = {1, 2}},
       PpPipe(2)},
  };
}

class DisaggregatedRanks : public DividedFixture {};

// Some are enough where a family changes nothing.
class DisaggregatedRanksOfSome : public DisaggregatedRanks {};

TEST_P(DisaggregatedRanks, ComputeWhatOneRankDoes) {
  ExpectWhatOneRankComputes(
      {}, {.prompts = {prompts_[1], prompts_[2], prompts_[1]}, .num_generated = 3}, AllDivisions());
}

TEST_P(DisaggregatedRanksOfSome, ReadLongPromptsInSteps) {
  ExpectWhatOneRankComputes({.num_threads = 2}, {.prompts = prompts_},
                            {{"2to2", Ranks(2, 2), Fine(2, 2, AttentionOrder::kAass)}});
}

TEST_P(DisaggregatedRanksOfSome, MayBeMoreThanThereAreSequences) {
  ExpectWhatOneRankComputes(
      {}, {.prompts = {prompts_[1]}, .num_generated = 3, .all_in_first_group = true},
      {{"2to1", Ranks(2, 1), Naive()}, {"3to2", Ranks(3, 2), Fine(2, 2, AttentionOrder::kAsas)}});
}

TEST_P(DisaggregatedRanksOfSome, ReadPromptsTokenByToken) {
  ExpectWhatOneRankComputes(
      {}, {.prompts = {prompts_[1], prompts_[2]}, .most_tokens = {1, 1, 2, 1, 1000}},
      {{"1to2", Ranks(1, 2), Fine(2, 4, AttentionOrder::kAsas)}});
}

// Any numbers up to those that memory was made for, in any order.
TEST_P(DisaggregatedRanksOfSome, DivideEachStepInItsOwnWay) {
  Division division{"2to2", Ranks(2, 2), Fine(4, 5, AttentionOrder::kAsas)};
  division.pipeline_of = [](const strategy::StepLoad& load) {
    return Fine(1 + static_cast<int>(load.rows % 4), 1 + static_cast<int>(load.keys % 5),
                load.rows % 3 == 0 ? AttentionOrder::kAass : AttentionOrder::kAsas);
  };
  ExpectWhatOneRankComputes({}, {.prompts = prompts_, .most_tokens = {1, 5, 2, 40, 130, 1000}},
                            {division});
}

TEST_P(DisaggregatedRanksOfSome, RoundNothingThatOneRankDoesNot) {
  for (const WeightFormat format :
       {WeightFormat::kBf16, WeightFormat::kInt8, WeightFormat::kInt4}) {
    SCOPED_TRACE(Name(format));
    ExpectWhatOneRankComputes({.formats = runtime::DefaultFormats(format)},
                              {.prompts = {prompts_[1], prompts_[2]}, .num_generated = 3},
                              {{"2to2", Ranks(2, 2), Fine(2, 2, AttentionOrder::kAsas)}});
  }
}

// All rows go to the first of the expert ranks; the other gets empty chunks.
TEST_P(DisaggregatedRanksOfSome, GetAllTokensOrNone) {
  int num_experts = 0;
  for (const model::LayerSpec& layer : checkpoint_->spec().layers) {
    if (layer.moe) num_experts = layer.moe->num_experts;
  }
  const DividedOptions divided = {.experiment = [&](int) {
    return runtime::Experiment{.router = {.skew = 1, .num_experts = num_experts / 2}};
  }};
  ExpectWhatOneRankComputes(divided, {.prompts = {prompts_[1]}, .num_generated = 3},
                            {{"1to2", Ranks(1, 2), Fine(2, 2, AttentionOrder::kAsas)},
                             {"1to2_naive", Ranks(1, 2), Naive()}});
}

// Routing that is made up goes by the token and its place, not by who computes it beside what.
TEST_P(DisaggregatedRanksOfSome, MakeUpTheSameRoutingHoweverStepsAreCut) {
  int top_k = 1;
  for (const model::LayerSpec& layer : checkpoint_->spec().layers) {
    if (layer.moe) top_k = layer.moe->top_k;
  }
  const DividedOptions divided = {.experiment = [&](int) {
    return runtime::Experiment{.router = {.skew = 0.5, .num_experts = top_k}};
  }};
  ExpectWhatOneRankComputes(
      divided, {.prompts = {prompts_[1], prompts_[2], prompts_[1]}, .num_generated = 3},
      {{"one_with_two_micro_batches", {}, {.micro_batches = 2}},
       {"ep2_two_micro_batches", {1, 2, 2, 1}, {.micro_batches = 2}},
       {"2to2", Ranks(2, 2), Fine(2, 2, AttentionOrder::kAsas)},
       {"2to2_attention_on_1_and_3", AttentionOn({1, 3}, 2), Naive()}});
}

// Of each rank's weights no matrix is anybody else's but those that all attention ranks have.
TEST_P(DisaggregatedRanksOfSome, LoadWhatTheirRolesNeed) {
  const weights::WeightFormats formats = {.matrices = WeightFormat::kBf16};
  const auto bytes_of = [&](const weights::Share& share) {
    hardware::ThreadPool pool({0});
    memory::Ledger ledger;
    const auto loaded = weights::LoadWeights(*checkpoint_, formats, share,
                                             hardware::NumaPolicy::kAuto, pool, ledger, {});
    CHECK(loaded.ok(), "{}", loaded.error().message);
    return loaded->bytes.size();
  };
  const strategy::Roles roles = Ranks(1, 2);
  const size_t whole = bytes_of({});
  const size_t attention = bytes_of(weights::ShareOf(roles, 0));
  const size_t first = bytes_of(weights::ShareOf(roles, 1));
  const size_t second = bytes_of(weights::ShareOf(roles, 2));
  EXPECT_EQ(attention + first + second, whole);
  EXPECT_GT(first, 0u);
  EXPECT_GT(second, 0u);
  // The head goes with rank 0, whatever else that has, and is no matrix of anybody else's.
  const strategy::Roles moved = AttentionOn({2}, 2);
  EXPECT_GT(bytes_of(weights::ShareOf(moved, 0)), first);
  EXPECT_EQ(bytes_of(weights::ShareOf(moved, 1)), second);
  // Nor does it have a cache.
  const auto local = weights::LocalSpec(checkpoint_->spec(), weights::ShareOf(roles, 1), formats);
  ASSERT_TRUE(local.ok());
  EXPECT_EQ(device::CpuBytes().of_kv_block(*local, kernels::KvFormat::kBf16), 0u);
}

std::string NameOfDisaggregated(const testing::TestParamInfo<std::filesystem::path>& fixture) {
  return fixture.param.filename().string();
}

INSTANTIATE_TEST_SUITE_P(Fixture, DisaggregatedRanks, testing::ValuesIn(PromptFixtures()),
                         NameOfDisaggregated);
INSTANTIATE_TEST_SUITE_P(Fixture, DisaggregatedRanksOfSome,
                         testing::ValuesIn(FixturesNamed({"deepseek_v2_groups", "gpt_oss_plain",
                                                          "mixtral_plain", "qwen2_many"})),
                         NameOfDisaggregated);

}  // namespace
}  // namespace convene
