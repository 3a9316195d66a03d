// Every way to divide a model among ranks against one rank with all of it, on the fixtures of all
// families: the same logits to the bit where the sums have the same order (data parallel attention,
// whole experts in aligned shares), within the bound of a few roundings otherwise.
#include "tests/golden_ranks.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>

namespace convene {
namespace {

using kernels::WeightFormat;
using runtime::Formats;

class GoldenRanks : public DividedFixture {
 protected:
  void ExpectWhatOneRankComputes(const DividedOptions& divided, const Work& work) {
    DividedFixture::ExpectWhatOneRankComputes(divided, work, Divisions());
  }
};

// Some are enough where a family changes nothing.
class GoldenRanksOfSome : public GoldenRanks {};

TEST_P(GoldenRanks, ComputeWhatOneRankDoes) {
  // Two steps of prompt, the first of them of unequal lengths on the groups.
  ExpectWhatOneRankComputes({}, {.prompts = prompts_});
}

TEST_P(GoldenRanksOfSome, ComputeTheSameWithSeveralThreadsEach) {
  ExpectWhatOneRankComputes({.num_threads = 2}, {.prompts = {prompts_[1], prompts_[2]}});
}

TEST_P(GoldenRanksOfSome, WithoutTokensOfTheirOwnTakePart) {
  ExpectWhatOneRankComputes(
      {}, {.prompts = {prompts_[1], prompts_[2]}, .num_generated = 3, .all_in_first_group = true});
}

TEST_P(GoldenRanksOfSome, ReadPromptsTokenByToken) {
  ExpectWhatOneRankComputes(
      {}, {.prompts = {prompts_[1], prompts_[2]}, .most_tokens = {1, 1, 2, 1, 1000}});
}

TEST_P(GoldenRanksOfSome, ChangeTheirPipelineBetweenStepsAndComputeTheSame) {
  using strategy::ChunkCut;
  const Work work{.prompts = prompts_};
  Work changing = work;
  changing.pipelines = {{3, ChunkCut::kTokens},
                        {2, ChunkCut::kExperts},
                        {},
                        {.chunks = 3, .cut = ChunkCut::kExperts, .cuts = {0.2, 0.7}}};
  DividedOptions divided;
  const Answers one = RunPrompts(*checkpoint_, divided, work);
  divided.division = {"ep2", {1, 2, 2, 1}};
  if (!Fits(*checkpoint_, divided)) return;
  const bool is_exact = IsExact(checkpoint_->spec(), divided.division.layout);
  ExpectSameAnswers(RunPrompts(*checkpoint_, divided, changing), one, is_exact);
}

TEST_P(GoldenRanksOfSome, CountTheTokensOfAllExpertsWhicheverLayersTheyHave) {
  const Work work{.prompts = {prompts_[1], prompts_[2]}};
  const auto counts_of = [&](const Division& division) {
    std::vector<std::vector<int64_t>> counts;
    RunPrompts(*checkpoint_, {.division = division, .record = true}, work,
               [&](const runtime::RecordedStep& step) { counts = step.expert_tokens; });
    return counts;
  };
  const auto one = counts_of(OneRank());
  ASSERT_FALSE(one.empty());
  for (const Division& division : Divisions()) {
    if (division.layout.stages == 1 || !Fits(*checkpoint_, {.division = division})) continue;
    EXPECT_EQ(counts_of(division), one) << division.name;
  }
}

TEST_P(GoldenRanksOfSome, DivideAHeadOfWhichTheLargestLogitSuffices) {
  const Answers one = RunPrompts(*checkpoint_, {}, {.prompts = prompts_});
  for (const Division& division : Divisions()) {
    if (!division.layout.divides_head) continue;
    const DividedOptions divided{.division = division};
    if (!Fits(*checkpoint_, divided)) continue;
    SCOPED_TRACE(division.name);
    const Answers answers =
        RunPrompts(*checkpoint_, divided, {.prompts = prompts_, .takes_largest = true});
    EXPECT_EQ(answers.tokens, one.tokens);
    for (const auto& logits : answers.answer_logits) EXPECT_TRUE(logits.empty());
  }
}

TEST_P(GoldenRanksOfSome, RoundNothingThatOneRankDoesNot) {
  // Over a float32 wire activations travel as they are.
  for (const WeightFormat format :
       {WeightFormat::kBf16, WeightFormat::kInt8, WeightFormat::kInt4}) {
    SCOPED_TRACE(Name(format));
    ExpectWhatOneRankComputes({.formats = runtime::DefaultFormats(format)},
                              {.prompts = {prompts_[1], prompts_[2]}});
  }
}

// What plans and schedules know and no rank can do yet.
TEST(Roles, ThatCannotBeExecutedAreRefusedByTheirNames) {
  const auto checkpoint = checkpoint::Checkpoint::Open(FixturesNamed({"mixtral_plain"}).front());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  hardware::ThreadPool pool({0});
  memory::Ledger ledger;
  const auto weights = weights::LoadWeights(*checkpoint, {.matrices = WeightFormat::kF32}, {},
                                            hardware::NumaPolicy::kAuto, pool, ledger, {});
  ASSERT_TRUE(weights.ok()) << weights.error().message;
  weights::ResidentWeights store(*weights);
  const auto complaint = [&](const runtime::ParallelOptions& parallel) {
    const auto created = runtime::Transformer::Create(
        store, *device::MakeCpuDevice(**kernels::ChooseKernels(), pool),
        {.num_kv_blocks = 1,
         .activations = kernels::ActivationFormat::kF32,
         .kv = kernels::KvFormat::kF32,
         .parallel = parallel},
        ledger);
    return created.ok() ? "" : created.error().message;
  };
  EXPECT_NE(complaint({.decode_roles = strategy::Layout{2, 1, 1, 2}}).find("attention in decode"),
            std::string::npos);
  EXPECT_EQ(complaint({.decode_roles = strategy::Layout{}}), "");
}

std::string NameOf(const testing::TestParamInfo<std::filesystem::path>& fixture) {
  return fixture.param.filename().string();
}

INSTANTIATE_TEST_SUITE_P(Fixture, GoldenRanks, testing::ValuesIn(PromptFixtures()), NameOf);
INSTANTIATE_TEST_SUITE_P(Fixture, GoldenRanksOfSome,
                         testing::ValuesIn(FixturesNamed({"deepseek_v2_groups", "gpt_oss_plain",
                                                          "mixtral_plain", "olmoe_plain"})),
                         NameOf);

}  // namespace
}  // namespace convene
