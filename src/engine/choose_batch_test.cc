// That the sequences and step tokens of a batch are those that take the least time, within the
// memory that there is.
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

// Where the disk is all that takes time.
constexpr BatchRates kDiskAlone{
    .disk_bytes_per_second = 1, .memory_bytes_per_second = 1e30, .operations_per_second = 1e30};

// 16 layers of 64 experts, of which a token chooses 8; an expert in int8 is a page.
model::ModelSpec Spec() {
  model::LayerSpec layer;
  layer.moe = model::MoeSpec{.num_experts = 64, .top_k = 8, .intermediate_size = 512};
  model::ModelSpec spec;
  spec.hidden_size = 682;
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

BatchQuestion QuestionOf(const model::ModelSpec& spec, const BatchWork& work,
                         const BatchRates& rates) {
  return {.spec = spec,
          .work = work,
          .max_sequences = 32,
          .max_step_tokens = 512,
          .bytes = {.page = kPageBytes, .kv_block = kPageBytes, .step = 16 * 8 * kPageBytes},
          .rates = rates,
          .plan = {}};
}

Result<BatchChoice> Chosen(const BatchQuestion& question) {
  Result<ChosenBatch> chosen = ChooseBatch(question);
  if (!chosen) return chosen.error();
  return chosen->best;
}

Result<BatchChoice> ChooseIn(const BatchWork& work, int num_pages, int max_sequences = 32,
                             int max_step_tokens = 512, const BatchRates& rates = kDiskAlone) {
  const model::ModelSpec spec = Spec();
  BatchQuestion question = QuestionOf(spec, work, rates);
  question.max_sequences = max_sequences;
  question.max_step_tokens = max_step_tokens;
  question.plan = [&](int sequences, int step_tokens) {
    return PlanIn(work, num_pages, sequences, step_tokens);
  };
  return Chosen(question);
}

// Bytes per generated token, by the definition.
double ReadBytes(const BatchWork& work, int num_pages, int sequences, int step_tokens) {
  const auto memory = PlanIn(work, num_pages, sequences, step_tokens);
  if (!memory || memory->num_kv_blocks < sequences * BlocksOfSequence(work)) return 1e30;
  const double missing = 1024.0 - memory->num_page_buffers;
  return StepsOf(work, sequences, step_tokens) * missing * kPageBytes /
         (static_cast<double>(work.num_requests) * work.gen_tokens);
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
      // Numbers of sequences are tried a quarter apart, and gains of 5 % are none.
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
  const Result<BatchChoice> many = ChooseIn(work, 900);
  EXPECT_GT(many->max_sequences, 64);
  EXPECT_GT(many->max_step_tokens, 512);
  EXPECT_THAT(many->Describe(kDiskAlone), HasSubstr("for each generated token"));
}

TEST(ChooseBatch, RoundsAreEven) {
  // 128 in two rounds are 64 and 64, not 97 and 31.
  for (const int num_requests : {33, 128, 400}) {
    const BatchWork work{.num_requests = num_requests,
                         .prompt_tokens = 100,
                         .gen_tokens = 32,
                         .chooses_sequences = true,
                         .chooses_step_tokens = true};
    for (const int num_pages : {150, 400, 700}) {
      const int together = ChooseIn(work, num_pages)->max_sequences;
      if (together == 32) continue;  // what is usual
      const int rounds = (num_requests + together - 1) / together;
      EXPECT_EQ(together, (num_requests + rounds - 1) / rounds) << num_requests << " " << num_pages;
    }
  }
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
    const model::ModelSpec spec = Spec();
    BatchQuestion question = QuestionOf(spec, work, kDiskAlone);
    question.max_sequences = max_sequences;
    question.plan = [](int sequences, int step_tokens) -> Result<MemoryPlan> {
      return ResourceExhausted(fmt::format("{} in {}", sequences, step_tokens));
    };
    if (spills) {
      question.plan_spilled = [](int sequences, int step_tokens, double) -> Result<MemoryPlan> {
        return ResourceExhausted(fmt::format("{} in {} on the disk", sequences, step_tokens));
      };
    }
    return ChooseBatch(question).error().message;
  };
  EXPECT_EQ(error_of(32, false), "1 in 64");
  EXPECT_EQ(error_of(1, false), "1 in 64") << "which is tried first";
  EXPECT_EQ(error_of(32, true), "1 in 64 on the disk");
  work.chooses_sequences = false;
  EXPECT_EQ(error_of(100, true), "100 in 128 on the disk") << "no step has fewer than sequences";
}

// As PlanIn, where a quarter of the blocks' memory goes to buffers, or all that is there.
Result<MemoryPlan> PlanSpilledIn(const BatchWork& work, int num_pages, int sequences,
                                 int step_tokens, double kv_share) {
  const int left = num_pages - step_tokens / 32 - 2 - 2 * BlocksOfSequence(work);
  if (left < 0) return ResourceExhausted("too little");
  const int wanted = sequences * BlocksOfSequence(work);
  const int kv = std::min(wanted - 1, static_cast<int>(kv_share * left));
  return MemoryPlan{.num_kv_blocks = kv,
                    .num_spilled_blocks = wanted - kv,
                    .spill_file_bytes = kPageBytes * static_cast<uint64_t>(wanted - kv),
                    .num_page_buffers = std::min(1024, 2 + left - kv)};
}

Result<ChosenBatch> ChooseSpilled(const BatchWork& work, int num_pages, int disk_blocks,
                                  const BatchRates& rates = kDiskAlone) {
  const model::ModelSpec spec = Spec();
  BatchQuestion question = QuestionOf(spec, work, rates);
  question.plan = [&](int sequences, int step_tokens) {
    return PlanIn(work, num_pages, sequences, step_tokens);
  };
  question.plan_spilled = [&](int sequences, int step_tokens, double kv_share) {
    return PlanSpilledIn(work, num_pages, sequences, step_tokens, kv_share);
  };
  question.disk_bytes = kPageBytes * static_cast<uint64_t>(disk_blocks);
  question.disk_directory = "/disk";
  return ChooseBatch(question);
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
  const Result<ChosenBatch> chosen = ChooseSpilled(work, 100, 1 << 20);
  ASSERT_TRUE(chosen) << chosen.error().message;
  const BatchChoice& spilled = chosen->best;
  EXPECT_GT(spilled.memory.num_spilled_blocks, 0);
  EXPECT_GT(spilled.max_sequences, 4 * in_memory->max_sequences);
  EXPECT_LT(spilled.price.moved_bytes, 0.5 * in_memory->price.moved_bytes);
  EXPECT_THAT(spilled.Describe(kDiskAlone), HasSubstr("% of it on the disk"));
  EXPECT_THAT(spilled.Describe(kDiskAlone), HasSubstr("moves from and to the disk"));
  EXPECT_FALSE(chosen->beyond_disk);
}

TEST(ChooseBatch, ADiskThatIsTooSmallLimitsTheChoiceWhichIsSaid) {
  const BatchWork work{.num_requests = 1000,
                       .prompt_tokens = 40,
                       .gen_tokens = 24,
                       .chooses_sequences = true,
                       .chooses_step_tokens = true};
  const Result<ChosenBatch> all = ChooseSpilled(work, 100, 1 << 20);
  const Result<ChosenBatch> little = ChooseSpilled(work, 100, 200);
  EXPECT_LE(little->best.memory.num_spilled_blocks, 200);
  EXPECT_GT(little->best.memory.num_spilled_blocks, 0);
  ASSERT_TRUE(little->beyond_disk);
  EXPECT_DOUBLE_EQ(little->beyond_disk->price.seconds, all->best.price.seconds);
  const Result<ChosenBatch> none = ChooseSpilled(work, 100, 0);
  EXPECT_EQ(none->best.memory.num_spilled_blocks, 0);
  EXPECT_TRUE(none->beyond_disk);
}

TEST(CheckDisk, SaysWhatToChangeWhereKeysAndValuesHaveNoRoom) {
  const MemoryPlan memory{.spill_file_bytes = 576 * kPageBytes};
  EXPECT_TRUE(CheckDisk(memory, 64, 576 * kPageBytes, "/disk"));
  const Status refused = CheckDisk(memory, 64, 77 * kPageBytes, "/disk");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, ErrorKind::kResourceExhausted);
  for (const char* words :
       {"keys and values of 64 sequences take 576 MiB of the disk in /disk",
        "which has 77.0 MiB for them", "another --spill-dir", "--max-batch", "--spill-dir none"}) {
    EXPECT_THAT(refused.error().message, HasSubstr(words));
  }
}

TEST(ChooseBatch, KeysAndValuesStayInMemoryWhereThatIsEnough) {
  BatchWork work{.num_requests = 1000,
                 .prompt_tokens = 40,
                 .gen_tokens = 24,
                 .chooses_sequences = true,
                 .chooses_step_tokens = true};
  EXPECT_EQ(ChooseSpilled(work, 8000, 1 << 20)->best.memory.num_spilled_blocks, 0);
  work.num_requests = 4;
  EXPECT_EQ(ChooseSpilled(work, 100, 1 << 20)->best.memory.num_spilled_blocks, 0);
}

// Rates whose disk is slow and fast beside memory and cores.
std::vector<BatchRates> ManyRates() {
  std::vector<BatchRates> many = {UsualRates(/*is_gpu=*/false), UsualRates(/*is_gpu=*/true)};
  for (const double disk : {0.2e9, 1e9, 8e9, 30e9}) {
    many.push_back(UsualRates(/*is_gpu=*/false));
    many.back().disk_bytes_per_second = disk;
  }
  return many;
}

TEST(ChooseBatch, MoreMemoryNeverTakesLonger) {
  for (const BatchRates& rates : ManyRates()) {
    for (const int disk_blocks : {0, 1 << 20}) {
      const BatchWork work{.num_requests = 600,
                           .prompt_tokens = disk_blocks > 0 ? 40.0 : 300.0,
                           .gen_tokens = 32,
                           .chooses_sequences = true,
                           .chooses_step_tokens = true};
      double least = 1e30;
      for (int num_pages = 30; num_pages < 2500; num_pages += num_pages < 1100 ? 10 : 100) {
        const auto chosen = ChooseSpilled(work, num_pages, disk_blocks, rates);
        ASSERT_TRUE(chosen) << chosen.error().message;
        const double seconds = chosen->best.price.seconds;
        // Gains of 5 % are none.
        EXPECT_LE(seconds, least / 0.95 * (1 + 1e-9))
            << num_pages << " pages, " << chosen->best.max_sequences << " sequences in "
            << chosen->best.max_step_tokens << ", " << rates.disk_bytes_per_second;
        least = std::min(least, seconds);
      }
    }
  }
}

TEST(ChooseBatch, ALittleThatIsReadFromTheDiskIsNoReasonToRunFewSequences) {
  const BatchWork work{.num_requests = 600,
                       .prompt_tokens = 40,
                       .gen_tokens = 24,
                       .chooses_sequences = true,
                       .chooses_step_tokens = true};
  // All experts have room beside one sequence, or beside some; a few pages less leave room for
  // many.
  for (const int num_pages : {1028, 1030, 1040, 1060, 1100, 1200}) {
    const Result<BatchChoice> chosen =
        ChooseIn(work, num_pages, 32, 512, UsualRates(/*is_gpu=*/false));
    ASSERT_TRUE(chosen) << chosen.error().message;
    EXPECT_GE(chosen->max_sequences, 32) << num_pages;
    EXPECT_GE(chosen->max_step_tokens, 64) << num_pages;
  }
}

TEST(ChooseBatch, WhatIsUsualStaysWhereNothingIsReadFromTheDiskAndComputationTakesAllTime) {
  BatchRates rates = UsualRates(/*is_gpu=*/false);
  rates.memory_bytes_per_second = 1e30;
  const BatchWork work{.num_requests = 600,
                       .prompt_tokens = 40,
                       .gen_tokens = 24,
                       .chooses_sequences = true,
                       .chooses_step_tokens = true};
  const Result<BatchChoice> chosen = ChooseIn(work, 4000, 32, 512, rates);
  ASSERT_TRUE(chosen) << chosen.error().message;
  EXPECT_EQ(chosen->max_sequences, 32);
  EXPECT_EQ(chosen->max_step_tokens, 512);
}

}  // namespace
}  // namespace convene::engine
