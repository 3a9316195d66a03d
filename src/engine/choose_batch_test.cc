// That the sequences and step tokens of a batch are those that read the least from a disk, within
// the memory that there is.
#include "engine/choose_batch.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "strategy/paging.h"

namespace convene::engine {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kPageBytes = 1 << 20;

// 16 layers of 64 experts, of which a token chooses 8.
model::ModelSpec Spec() {
  model::LayerSpec layer;
  layer.moe = model::MoeSpec{.num_experts = 64, .top_k = 8};
  model::ModelSpec spec;
  spec.layers = std::vector(16, layer);
  return spec;
}

// Of a memory of so many pages a block of keys and values takes one, and so do 32 tokens of a step.
Result<MemoryPlan> PlanIn(const BatchWork& work, int num_pages, int sequences, int step_tokens) {
  const int rows = step_tokens / 32;
  const int wanted = sequences * BlocksOfSequence(work);
  if (num_pages < rows + 2 + BlocksOfSequence(work)) return ResourceExhausted("too little");
  const int kv = std::min(wanted, num_pages - rows - 2);
  return MemoryPlan{.num_kv_blocks = kv, .num_page_buffers = std::min(1024, num_pages - rows - kv)};
}

Result<BatchChoice> ChooseIn(const BatchWork& work, int num_pages, int max_sequences = 32,
                             int max_step_tokens = 512) {
  return ChooseBatch(Spec(), work, max_sequences, max_step_tokens, kPageBytes,
                     [&](int sequences, int step_tokens) {
                       return PlanIn(work, num_pages, sequences, step_tokens);
                     });
}

// Bytes per generated token, by the definition.
double ReadBytes(const BatchWork& work, int num_pages, int sequences, int step_tokens) {
  const auto memory = PlanIn(work, num_pages, sequences, step_tokens);
  if (!memory || memory->num_kv_blocks < sequences * BlocksOfSequence(work)) return 1e30;
  const double missing = 1024.0 - memory->num_page_buffers;
  return StepsOf(work, sequences, step_tokens) * missing * kPageBytes /
         (static_cast<double>(work.num_requests) * work.gen_tokens);
}

TEST(ChooseBatch, CountsTheBlocksOfASequence) {
  // 205 tokens fill three blocks and a part of the fourth, and are such on average.
  BatchWork work{.num_requests = 100, .prompt_tokens = 77, .gen_tokens = 128, .longest = 300};
  EXPECT_EQ(BlocksOfSequence(work), 5);
  work.longest = 205;
  EXPECT_EQ(BlocksOfSequence(work), 4) << "two when it is let in, and one that is free then";
  work = {.num_requests = 100, .prompt_tokens = 200, .gen_tokens = 5, .longest = 205};
  EXPECT_EQ(BlocksOfSequence(work), 5) << "four when it is let in";
}

TEST(ChooseBatch, CountsTheStepsThatABatchTakes) {
  BatchWork work{.num_requests = 100, .prompt_tokens = 50, .gen_tokens = 10};
  EXPECT_EQ(BlocksOfSequence(work), 2);
  // All at once: 5,000 tokens of prompts, then a token of each.
  EXPECT_DOUBLE_EQ(StepsOf(work, 100, 500), 10 + 10);
  EXPECT_DOUBLE_EQ(StepsOf(work, 1000, 500), 10 + 10) << "no more than there are";
  // Ten at a time: each of ten rounds generates for ten steps.
  EXPECT_DOUBLE_EQ(StepsOf(work, 10, 500), 100 + 1);
  // Steps that are full of tokens.
  EXPECT_DOUBLE_EQ(StepsOf(work, 10, 10), 100 * 59 / 10.0);
  work = {};
  EXPECT_DOUBLE_EQ(StepsOf(work, 1, 1), 2);
}

TEST(ChooseBatch, TakesWhatReadsTheLeastOfAllThatFits) {
  for (const int num_pages : {20, 120, 300, 600, 1000}) {
    for (const double prompt : {16.0, 100.0, 900.0}) {
      const BatchWork work{.num_requests = 1000,
                           .prompt_tokens = prompt,
                           .gen_tokens = 32,
                           .chooses_sequences = true,
                           .chooses_step_tokens = true};
      const Result<BatchChoice> chosen = ChooseIn(work, num_pages);
      ASSERT_TRUE(chosen) << chosen.error().message;
      const double found =
          ReadBytes(work, num_pages, chosen->max_sequences, chosen->max_step_tokens);
      double least = 1e30;
      for (int sequences = 1; sequences <= 1000; ++sequences) {
        for (int tokens = 64; tokens <= 1 << 15; tokens *= 2) {
          if (sequences > tokens) continue;
          least = std::min(least, ReadBytes(work, num_pages, sequences, tokens));
        }
      }
      // Numbers of sequences are tried a quarter apart, and gains of 2 % are none.
      EXPECT_LE(found, 1.3 * least) << num_pages << " pages, prompts of " << prompt;
      EXPECT_LE(chosen->max_sequences, chosen->max_step_tokens);
    }
  }
}

TEST(ChooseBatch, RunsMoreSequencesWhereMoreAreThere) {
  BatchWork work{.prompt_tokens = 100,
                 .gen_tokens = 32,
                 .chooses_sequences = true,
                 .chooses_step_tokens = true};
  work.num_requests = 3;
  EXPECT_EQ(ChooseIn(work, 600)->max_sequences, 3);
  work.num_requests = 1000;
  const Result<BatchChoice> many = ChooseIn(work, 600);
  EXPECT_GT(many->max_sequences, 64);
  EXPECT_GT(many->max_step_tokens, 512);
  EXPECT_THAT(many->Describe(), HasSubstr("for each generated token"));
}

TEST(ChooseBatch, APromptOfOneRequestIsReadInFewStepsWhereMemoryAllows) {
  BatchWork work{.prompt_tokens = 2000, .gen_tokens = 16, .chooses_step_tokens = true};
  // 2,000 tokens of a step take 63 of 600 pages: all missing experts are read once for the prompt,
  // and not four times.
  EXPECT_EQ(ChooseIn(work, 600, 1)->max_step_tokens, 2000);
  work.gen_tokens = 4000;
  EXPECT_LE(ChooseIn(work, 600, 1)->max_step_tokens, 512) << "experts in memory serve the answer";
  work = {.prompt_tokens = 100, .gen_tokens = 1, .chooses_step_tokens = true};
  EXPECT_LE(ChooseIn(work, 600, 1)->max_step_tokens, 512) << "no step has so many tokens";
  work = {.prompt_tokens = 2000, .gen_tokens = 16};
  EXPECT_EQ(ChooseIn(work, 600, 1)->max_step_tokens, 512) << "it was given";
}

TEST(ChooseBatch, RunsFewerSequencesInSmallerStepsWhereMemoryIsShort) {
  const BatchWork work{.num_requests = 1000,
                       .prompt_tokens = 100,
                       .gen_tokens = 32,
                       .chooses_sequences = true,
                       .chooses_step_tokens = true};
  // 512 tokens of a step take 16 pages, and a sequence takes 4.
  const Result<BatchChoice> chosen = ChooseIn(work, 16);
  ASSERT_TRUE(chosen) << chosen.error().message;
  EXPECT_LT(chosen->max_sequences, 4);
  EXPECT_LT(chosen->max_step_tokens, 512);
  EXPECT_LT(ReadBytes(work, 16, chosen->max_sequences, chosen->max_step_tokens), 1e30);
}

TEST(ChooseBatch, KeepsWhatWasGiven) {
  BatchWork work{.num_requests = 1000, .prompt_tokens = 100, .gen_tokens = 32};
  Result<BatchChoice> chosen = ChooseIn(work, 600, 20, 512);
  EXPECT_EQ(chosen->max_sequences, 20);
  EXPECT_EQ(chosen->max_step_tokens, 512);
  work.chooses_step_tokens = true;
  chosen = ChooseIn(work, 600, 20, 512);
  EXPECT_EQ(chosen->max_sequences, 20);
  EXPECT_EQ(ChooseIn(work, 5, 20, 512).error().message, "too little");
}

TEST(ChooseBatch, TheErrorIsThatOfTheSmallestWhereNothingFits) {
  BatchWork work{.num_requests = 40,
                 .prompt_tokens = 100,
                 .gen_tokens = 32,
                 .chooses_sequences = true,
                 .chooses_step_tokens = true};
  const auto error_of = [&](int max_sequences, bool spills) {
    SpillCosts spill{.block_bytes = kPageBytes};
    if (spills) {
      spill.plan = [](int sequences, int step_tokens, double) -> Result<MemoryPlan> {
        return ResourceExhausted(fmt::format("{} in {} on the disk", sequences, step_tokens));
      };
    }
    return ChooseBatch(
               Spec(), work, max_sequences, /*max_step_tokens=*/512, kPageBytes,
               [](int sequences, int step_tokens) -> Result<MemoryPlan> {
                 return ResourceExhausted(fmt::format("{} in {}", sequences, step_tokens));
               },
               spill)
        .error()
        .message;
  };
  EXPECT_EQ(error_of(32, false), "1 in 64");
  EXPECT_EQ(error_of(1, false), "1 in 64") << "which is tried first";
  EXPECT_EQ(error_of(32, true), "1 in 64 on the disk");
  work.chooses_sequences = false;
  EXPECT_EQ(error_of(100, true), "100 in 128 on the disk") << "no step has fewer than sequences";
}

// As PlanIn, where a quarter of the blocks' memory goes to buffers, or all that is there.
Result<MemoryPlan> PlanSpilledIn(const BatchWork& work, int num_pages, int disk_blocks,
                                 int sequences, int step_tokens, double kv_share) {
  const int left = num_pages - step_tokens / 32 - 2 - 2 * BlocksOfSequence(work);
  if (left < 0) return ResourceExhausted("too little");
  const int wanted = sequences * BlocksOfSequence(work);
  const int kv = std::min(wanted - 1, static_cast<int>(kv_share * left));
  if (wanted - kv > disk_blocks) return ResourceExhausted("the disk is too small");
  return MemoryPlan{.num_kv_blocks = kv,
                    .num_spilled_blocks = wanted - kv,
                    .num_page_buffers = std::min(1024, 2 + left - kv)};
}

Result<BatchChoice> ChooseSpilled(const BatchWork& work, int num_pages, int disk_blocks) {
  return ChooseBatch(
      Spec(), work, 32, 512, kPageBytes,
      [&](int sequences, int step_tokens) {
        return PlanIn(work, num_pages, sequences, step_tokens);
      },
      {.block_bytes = kPageBytes, .plan = [&](int sequences, int step_tokens, double kv_share) {
         return PlanSpilledIn(work, num_pages, disk_blocks, sequences, step_tokens, kv_share);
       }});
}

TEST(ChooseBatch, KeysAndValuesGoToTheDiskWhereThatMovesLess) {
  const BatchWork work{.num_requests = 1000,
                       .prompt_tokens = 40,
                       .gen_tokens = 24,
                       .chooses_sequences = true,
                       .chooses_step_tokens = true};
  // Memory for 30 sequences beside the least: experts are read for so few of them, while keys and
  // values of a sequence are two blocks.
  const Result<BatchChoice> in_memory = ChooseIn(work, 100);
  const Result<BatchChoice> spilled = ChooseSpilled(work, 100, 1 << 20);
  ASSERT_TRUE(spilled) << spilled.error().message;
  EXPECT_GT(spilled->memory.num_spilled_blocks, 0);
  EXPECT_GT(spilled->max_sequences, 4 * in_memory->max_sequences);
  EXPECT_LT(spilled->moved_bytes_per_token, 0.5 * in_memory->moved_bytes_per_token);
  EXPECT_THAT(spilled->Describe(), HasSubstr("% of it on the disk"));
  EXPECT_THAT(spilled->Describe(), HasSubstr("moves the least from and to the disk"));
  // By the definition: each of 23 steps reads a block and a half on average, and writes one.
  const double kv = 23 * ((40 + 12) / 64.0 + 0.5 + 1) + 40 / 64.0 + 0.5;
  const strategy::Paging paging =
      strategy::PagingOf(Spec(), false, spilled->memory.num_page_buffers, /*num_tokens=*/1 << 20);
  const double experts = StepsOf(work, spilled->max_sequences, spilled->max_step_tokens) * 1024 *
                         paging.missing / 1000;
  EXPECT_NEAR(spilled->moved_bytes_per_token,
              kPageBytes * (kv * spilled->memory.spilled_share() + experts) / 24,
              0.01 * spilled->moved_bytes_per_token);
  // As many as a disk has room for, or none where it has none.
  const Result<BatchChoice> little = ChooseSpilled(work, 100, 200);
  EXPECT_LE(little->memory.num_spilled_blocks, 200);
  EXPECT_GT(little->memory.num_spilled_blocks, 0);
  EXPECT_EQ(ChooseSpilled(work, 100, 0)->memory.num_spilled_blocks, 0);
}

TEST(ChooseBatch, LayersWithAWindowMoveTheBlocksThatAQuerySees) {
  const BatchWork work{.num_requests = 100, .prompt_tokens = 3200, .gen_tokens = 257};
  // Bytes of keys and values for each generated token, where all of them lie on the disk and all
  // experts are in memory.
  const auto moved = [&](int window) {
    model::ModelSpec spec = Spec();
    for (size_t layer = 0; layer < spec.layers.size(); ++layer) {
      // In every other layer, which has a third of what the others have.
      const int num_kv_heads = layer % 2 == 0 ? 1 : 3;
      spec.layers[layer].attention = {.num_kv_heads = num_kv_heads,
                                      .head_dim = 32,
                                      .value_dim = 32,
                                      .window = layer % 2 == 0 ? window : 0};
    }
    const Result<BatchChoice> choice =
        ChooseBatch(spec, work, /*max_sequences=*/100, /*max_step_tokens=*/512, kPageBytes,
                    [](int, int) -> Result<MemoryPlan> {
                      return MemoryPlan{.num_spilled_blocks = 1 << 20, .num_page_buffers = 1024};
                    },
                    {.block_bytes = kPageBytes});
    EXPECT_TRUE(choice);
    return choice->moved_bytes_per_token * 257 / kPageBytes;
  };
  // By the definition: 256 steps read 52.5078 blocks, the steps of the prompt but the first half of
  // its blocks, of which there are 50.5.
  const double blocks = (3200 + 128.5) / 64 + 0.5;
  EXPECT_NEAR(moved(0), 256 * (blocks + 1) + 50.5 + 6 * 50.5 / 2, 1e-6);
  EXPECT_NEAR(moved(1 << 20), moved(0), 1e-6);
  // A window of 128 begins and ends within a block: it is in three of them.
  EXPECT_NEAR(moved(128),
              256 * (0.25 * 3 + 0.75 * blocks + 1) + 50.5 + 6 * (0.25 * 3 + 0.75 * 50.5 / 2), 1e-6);
}

TEST(ChooseBatch, KeysAndValuesStayInMemoryWhereThatIsEnough) {
  BatchWork work{.num_requests = 1000,
                 .prompt_tokens = 40,
                 .gen_tokens = 24,
                 .chooses_sequences = true,
                 .chooses_step_tokens = true};
  EXPECT_EQ(ChooseSpilled(work, 8000, 1 << 20)->memory.num_spilled_blocks, 0);
  work.num_requests = 4;
  EXPECT_EQ(ChooseSpilled(work, 100, 1 << 20)->memory.num_spilled_blocks, 0);
}

}  // namespace
}  // namespace convene::engine
