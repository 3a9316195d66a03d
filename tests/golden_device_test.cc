// Steps on a device that is done late give the same bits as on one that is done at once: whatever
// leaves the device waits for its event, on every division.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <utility>
#include <vector>

#include "tests/golden_switch_run.h"
#include "tests/late_device.h"

namespace convene {
namespace {

class GoldenDevice : public testing::TestWithParam<Division> {
 protected:
  static checkpoint::Checkpoint Open(const std::string& fixture) {
    auto checkpoint =
        checkpoint::Checkpoint::Open(CONVENE_SOURCE_DIR "/tests/golden/models/" + fixture);
    CHECK(checkpoint.ok(), "{}", checkpoint.error().message);
    return *std::move(checkpoint);
  }
  DividedOptions Divided() const {
    return {.division = GetParam(), .num_threads = GetParam().layout.num_ranks() == 1 ? 2 : 1};
  }
  DividedOptions Late() {
    DividedOptions divided = Divided();
    divided.device = [this](const kernels::KernelSet& kernels, hardware::ThreadPool& pool) {
      return std::make_unique<LateDevice>(device::MakeCpuDevice(kernels, pool), counts_);
    };
    return divided;
  }
  void ExpectThatItWaited() const {
    EXPECT_GT(counts_.operators, 0);
    EXPECT_GT(counts_.fetches, 0);
    EXPECT_GT(counts_.not_done, 0);
    EXPECT_TRUE(GetParam().layout.num_ranks() == 1 || counts_.hidden_bytes > 0);
  }

  LateCounts counts_;
};

TEST_P(GoldenDevice, ThatIsDoneLateGivesTheSameTokensAndLogits) {
  for (const char* fixture : {"olmoe_plain", "deepseek_v2_groups"}) {
    const checkpoint::Checkpoint checkpoint = Open(fixture);
    if (!Fits(checkpoint, Divided())) continue;
    Work work;
    for (const char* name : {"prompt_300", "prompt_17"}) {
      work.prompts.push_back(ReadNpy<int32_t>(fmt::format("{}/tests/golden/models/{}/{}.tokens.npy",
                                                          CONVENE_SOURCE_DIR, fixture, name)));
    }
    const Answers at_once = RunPrompts(checkpoint, Divided(), work);
    ExpectSameAnswers(RunPrompts(checkpoint, Late(), work), at_once, /*to_the_bit=*/true);
  }
  ExpectThatItWaited();
}

TEST_P(GoldenDevice, ThatIsDoneLateGivesTheSameStatesOfAnEncoder) {
  const checkpoint::Checkpoint checkpoint = Open("switch_plain");
  if (!Fits(checkpoint, Divided())) GTEST_SKIP() << "the model cannot be divided so";
  const std::vector<SwitchInput> inputs =
      ReadSwitchInputs(CONVENE_SOURCE_DIR "/tests/golden/models/switch_plain");
  const auto run = [&](const DividedOptions& divided) {
    SwitchAnswers answers;
    RunDivided(checkpoint, divided,
               {.max_step_tokens = 2 * kMostTokens,
                .num_kv_blocks = 2 * kInputBlocks * static_cast<int>(inputs.size())},
               [&](runtime::Transformer& transformer) {
                 answers =
                     SwitchRun(transformer, inputs, divided.division.layout.attention_dp).Execute();
               });
    return answers;
  };
  const SwitchAnswers late = run(Late());
  const SwitchAnswers at_once = run(Divided());
  EXPECT_TRUE(late.states == at_once.states);
  EXPECT_TRUE(late.logits == at_once.logits);
  ExpectThatItWaited();
}

// Of a sequence the tokens that a greedy answer has, where a step says whether it needs all logits.
TEST(GoldenDeviceLargest, IsFetchedAloneWhereNobodyLooksAtTheOthers) {
  const auto checkpoint =
      checkpoint::Checkpoint::Open(CONVENE_SOURCE_DIR "/tests/golden/models/olmoe_plain");
  ASSERT_TRUE(checkpoint.ok());
  const auto prompt =
      ReadNpy<int32_t>(CONVENE_SOURCE_DIR "/tests/golden/models/olmoe_plain/prompt_17.tokens.npy");
  LateCounts counts;
  DividedOptions late{.division = OneRank()};
  late.device = [&](const kernels::KernelSet& kernels, hardware::ThreadPool& pool) {
    return std::make_unique<LateDevice>(device::MakeCpuDevice(kernels, pool), counts);
  };
  const std::vector<int32_t> blocks = {0, 1};
  RunDivided(*checkpoint, late, {.max_step_tokens = 64, .num_kv_blocks = 2},
             [&](runtime::Transformer& transformer) {
               std::vector<int32_t> of_all;
               std::vector<int32_t> largest;
               for (const int num_allowed : {0, 1, 2}) {
                 std::vector<device::SequenceStep> step;
                 for (int i = 0; i < 2; ++i) {
                   step.push_back({.tokens = prompt,
                                   .blocks = std::span(blocks).subspan(static_cast<size_t>(i), 1),
                                   .prompt_length = static_cast<int>(prompt.size()),
                                   .largest_suffices = i < num_allowed});
                 }
                 const Status done =
                     transformer.Forward(step, [&](int, int, const runtime::Logits& logits) {
                       EXPECT_EQ(logits.is_largest_alone(), num_allowed == 2);
                       if (num_allowed == 2) {
                         largest.push_back(logits.largest());
                       } else if (num_allowed == 0) {
                         of_all.push_back(BestToken(logits));
                       }
                     });
                 ASSERT_TRUE(done.ok()) << done.error().message;
               }
               EXPECT_EQ(of_all.size(), 2 * prompt.size());
               EXPECT_EQ(largest, of_all);
             });
}

INSTANTIATE_TEST_SUITE_P(
    Divisions, GoldenDevice,
    testing::Values(
        OneRank(), Division{"two_micro_batches", {}, {.micro_batches = 2}},
        Division{"ep2_two_chunks", {1, 2, 2, 1}, {2, strategy::ChunkCut::kTokens, true}},
        Division{"ep2_without_overlap", {1, 2, 2, 1}, {1, strategy::ChunkCut::kTokens, false}},
        Division{"slice2", {1, 2, 1, 2}}, Division{"tp2", {2, 1, 1, 2}},
        Division{"tp2_two_micro_batches", {2, 1, 1, 2}, {.micro_batches = 2}}),
    [](const auto& division) { return division.param.name; });

}  // namespace
}  // namespace convene
