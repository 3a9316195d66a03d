#include "runtime/step_message.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace convene::runtime {
namespace {

using testing::ElementsAre;
using testing::ElementsAreArray;
using testing::IsEmpty;

const std::vector<int32_t> kMessageTokens = {5, 0, 2147483647};
const std::vector<int32_t> kBlocks = {7, 3};
const std::vector<int32_t> kEncoderBlocks = {1};

TEST(StepMessage, TellsOtherRanksEverythingOfAStep) {
  const std::vector<device::SequenceStep> step = {
      {.tokens = kMessageTokens,
       .first_position = 60,
       .blocks = kBlocks,
       .prompt_length = 100,
       .first_logits_token = 2,
       .encoder_blocks = kEncoderBlocks,
       .encoder_length = 44,
       .group = 3},
      {.tokens = std::span(kMessageTokens).last(1), .blocks = {}}};
  const StepMessage message = ReadStepMessage(ForwardMessage(step, strategy::Phase::kDecode));
  EXPECT_EQ(message.kind, StepKind::kForward);
  EXPECT_EQ(message.phase, strategy::Phase::kDecode);
  EXPECT_FALSE(message.decode_follows);
  EXPECT_TRUE(ReadStepMessage(ForwardMessage(step, strategy::Phase::kPrefill,
                                             /*is_recorded=*/true, /*decode_follows=*/true))
                  .decode_follows);
  EXPECT_THAT(message.inputs, IsEmpty());
  ASSERT_EQ(message.step.size(), 2);
  const device::SequenceStep& first = message.step[0];
  EXPECT_THAT(first.tokens, ElementsAreArray(kMessageTokens));
  EXPECT_EQ(first.first_position, 60);
  EXPECT_THAT(first.blocks, ElementsAreArray(kBlocks));
  EXPECT_EQ(first.prompt_length, 100);
  EXPECT_EQ(first.first_logits_token, 2);
  EXPECT_THAT(first.encoder_blocks, ElementsAreArray(kEncoderBlocks));
  EXPECT_EQ(first.encoder_length, 44);
  EXPECT_EQ(first.group, 3);
  EXPECT_THAT(message.step[1].tokens, ElementsAre(2147483647));
  EXPECT_THAT(message.step[1].blocks, IsEmpty());
}

TEST(StepMessage, TellsOtherRanksTheInputsOfAnEncoder) {
  const std::vector<device::EncoderInput> inputs = {
      {.tokens = kMessageTokens, .blocks = kBlocks, .group = 1},
      {.tokens = std::span(kMessageTokens).first(1), .blocks = kEncoderBlocks}};
  for (const bool with_states : {false, true}) {
    const StepMessage message = ReadStepMessage(EncodeMessage(inputs, with_states));
    EXPECT_EQ(message.kind, StepKind::kEncode);
    EXPECT_EQ(message.with_states, with_states);
    EXPECT_THAT(message.step, IsEmpty());
    ASSERT_EQ(message.inputs.size(), 2);
    EXPECT_THAT(message.inputs[0].tokens, ElementsAreArray(kMessageTokens));
    EXPECT_THAT(message.inputs[0].blocks, ElementsAreArray(kBlocks));
    EXPECT_EQ(message.inputs[0].group, 1);
    EXPECT_THAT(message.inputs[1].tokens, ElementsAre(5));
    EXPECT_EQ(message.inputs[1].group, 0);
  }
}

TEST(StepMessage, StaysWhatItIsWhenMoved) {
  const std::vector<device::SequenceStep> step = {{.tokens = kMessageTokens, .blocks = kBlocks}};
  StepMessage message = ReadStepMessage(ForwardMessage(step, strategy::Phase::kPrefill));
  const StepMessage moved = std::move(message);
  EXPECT_THAT(moved.step[0].tokens, ElementsAreArray(kMessageTokens));
}

TEST(StepMessage, MayBeOfNothingOrTheEnd) {
  EXPECT_EQ(ReadStepMessage(EndMessage()).kind, StepKind::kEnd);
  const StepMessage nothing = ReadStepMessage(ForwardMessage({}, strategy::Phase::kPrefill));
  EXPECT_EQ(nothing.kind, StepKind::kForward);
  EXPECT_THAT(nothing.step, IsEmpty());
  const StepMessage change = ReadStepMessage(ChangePhaseMessage(strategy::Phase::kDecode));
  EXPECT_EQ(change.kind, StepKind::kChangePhase);
  EXPECT_EQ(change.phase, strategy::Phase::kDecode);
}

TEST(StepMessage, TellsOtherRanksAPipeline) {
  for (const strategy::Pipeline& pipeline :
       {strategy::Pipeline{},
        strategy::Pipeline{.chunks = 3, .cut = strategy::ChunkCut::kExperts, .cuts = {0.1, 0.7}},
        strategy::Pipeline{.chunks = 2, .overlap = false, .micro_batches = 4},
        strategy::Pipeline{.order = strategy::AttentionOrder::kAass,
        .dispatch_after_shared = true}}) {
    const StepMessage message = ReadStepMessage(UsePipelineMessage(pipeline));
    EXPECT_EQ(message.kind, StepKind::kUsePipeline);
    EXPECT_EQ(message.pipeline, pipeline);
  }
}

TEST(StepMessage, SaysWhetherTheStepIsRecorded) {
  for (const bool is_recorded : {false, true}) {
    const auto phase = strategy::Phase::kDecode;
    for (const auto& bytes :
         {ForwardMessage({}, phase, is_recorded), EncodeMessage({}, false, is_recorded),
          ChangePhaseMessage(phase, is_recorded)}) {
      EXPECT_EQ(ReadStepMessage(bytes).is_recorded, is_recorded);
    }
  }
}

TEST(StepMessageDeathTest, IsNotCutShort) {
  const std::vector<device::SequenceStep> step = {{.tokens = kMessageTokens, .blocks = kBlocks}};
  const std::vector<std::byte> bytes = ForwardMessage(step, strategy::Phase::kPrefill);
  EXPECT_DEATH(ReadStepMessage(std::span(bytes).first(8)), "ends early");
  // Its first list has three numbers.
  EXPECT_DEATH(ReadStepMessage(std::span(bytes).first(48)), "a list of 3 numbers");
}

}  // namespace
}  // namespace convene::runtime
