// That a plan with keys and values on a disk is executed as it says, takes the memory that the
// search was told of, and is refused where that cannot be; and that a batch without one takes as
// little time as memory and disk allow, whole or not.
#include "engine/plan_pages.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>

#include "checkpoint/checkpoint.h"
#include "checkpoint/model_files.h"
#include "device/cpu/cpu_device.h"
#include "engine/choose_batch.h"
#include "engine/loaded_model.h"
#include "engine/make_pages.h"
#include "engine/plan_question.h"
#include "memory/spill_file.h"

namespace convene::engine {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr int kPrompt = 70;
constexpr int kAnswer = 50;

// Of the demonstration model in int8, with a directory of pages that goes with it.
class PlanPages : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = std::filesystem::path(testing::TempDir()) /
                 fmt::format("plan_pages_{}_{}", getpid(),
                             testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directories(directory_);
    options_.formats = {.weights = kernels::WeightFormat::kInt8};
    options_.num_threads = 1;
    options_.page_directory = directory_.string();
    options_.spill_directory = directory_.string();
    options_.batch_work = BatchWork{.num_requests = 40,
                                    .prompt_tokens = kPrompt,
                                    .gen_tokens = kAnswer,
                                    .longest = kPrompt + kAnswer,
                                    .chooses_sequences = true,
                                    .chooses_step_tokens = true};
    options_.plan.experts_in_memory = 12;
    options_.plan.sequences = 16;
    options_.plan.spilled_kv =
        plan::SpilledKv{.blocks_in_memory = 5, .buffers = 3, .buffer_blocks = 8};
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  static Result<std::unique_ptr<LoadedModel>> Load(const LoadOptions& options) {
    return LoadedModel::Load(CONVENE_SOURCE_DIR "/models/demo", options, {});
  }
  static std::string ErrorOf(const LoadOptions& options) {
    const auto model = Load(options);
    return model ? "" : model.error().message;
  }

  // A batch that no plan says anything of, in so much memory.
  Result<MemoryPlan> Choose(uint64_t memory_bytes, uint64_t to_make_bytes, bool may_be_whole) {
    options_.plan = {};
    memory::Ledger ledger(memory::Tier{.budget_bytes = memory_bytes, .limited_by = "a test"});
    const device::DeviceBytes device = device::CpuBytes();
    const PagesQuestion question{.device = device,
                                 .spec = spec_,
                                 .options = options_,
                                 .formats = formats_,
                                 .num_threads = 1,
                                 .ledger = ledger,
                                 .to_make_bytes = to_make_bytes};
    if (!may_be_whole) return engine::PlanPages(question);
    Result<MemoryPlan> whole = PlanWholeOrPages(question, /*may_page=*/true);
    return whole ? whole : engine::PlanPages(question);
  }

  std::filesystem::path directory_;
  LoadOptions options_;
  model::ModelSpec spec_ = *checkpoint::OpenConfig(CONVENE_SOURCE_DIR "/models/demo");
  runtime::Formats formats_ = runtime::DefaultFormats(kernels::WeightFormat::kInt8);
};

TEST_F(PlanPages, APlanSaysWhatOfKeysAndValuesLiesOnADisk) {
  const auto model = Load(options_);
  ASSERT_TRUE(model) << model.error().message;
  const MemoryPlan& memory = (*model)->memory();
  const int blocks = BlocksOfSequence(*options_.batch_work);
  EXPECT_EQ(memory.max_sequences, 16);
  EXPECT_EQ(memory.max_step_tokens, options_.max_step_tokens);
  EXPECT_EQ(memory.num_page_buffers, 12);
  EXPECT_EQ(memory.num_kv_blocks, 5);
  EXPECT_EQ(memory.num_spilled_blocks, 16 * blocks - 5);
  EXPECT_EQ(memory.spill_depth, 3);
  EXPECT_EQ(memory.spill_part_blocks, 8);

  // As the search was told.
  const planner::Workload workload{.requests = {{kPrompt, kAnswer}}, .batch = 16};
  const cost::MachineProfile profile;
  const planner::MeasuredSource source(profile);
  planner::PlanQuestion question{.spec = (*model)->spec(), .workload = workload, .source = source};
  AnswerPlanQuestion({.spills_kv = true}, question);
  const planner::RankSetup setup{1, 1, "int8"};
  const Result<planner::RankMemory> planned = question.memory_of(setup, options_.plan, 16);
  ASSERT_TRUE(planned) << planned.error().message;
  EXPECT_EQ(planned->kv_bytes, memory.kv_bytes());
  EXPECT_EQ(planned->weights_bytes, memory.weights_bytes());

  // What it offers takes no more than there is: all memory for experts, or as much as there is for
  // keys and values.
  plan::Plan whole;
  const uint64_t least = planned->total();
  int experts = 0;
  for (const double share : {1.0, 0.5, 0.0}) {
    const Result<plan::Plan> offered = question.spilled_that_fit(setup, whole, 64, least, share);
    ASSERT_TRUE(offered) << offered.error().message;
    ASSERT_TRUE(offered->spilled_kv);
    EXPECT_EQ(offered->sequences, 64);
    if (share == 0) {
      EXPECT_EQ(offered->spilled_kv->blocks_in_memory, 0);
    }
    EXPECT_GE(*offered->experts_in_memory, experts);
    experts = *offered->experts_in_memory;
    EXPECT_LE(question.memory_of(setup, *offered, 64)->total(), least);
    // It is found again as it was.
    const Result<plan::Plan> again = question.spilled_that_fit(setup, *offered, 64, least, 0);
    EXPECT_EQ(*again, *offered);
  }
  EXPECT_FALSE(question.spilled_that_fit(setup, whole, 64, 1 << 20, 0));
}

TEST_F(PlanPages, OfUnlikeRanksTheOneCountsThatTakesMostOfWhatItHas) {
  const auto model = Load(options_);
  ASSERT_TRUE(model) << model.error().message;
  const planner::Workload workload{.requests = {{kPrompt, kAnswer}}, .batch = 16};
  const cost::MachineProfile profile;
  const planner::MeasuredSource source(profile);
  planner::PlanQuestion question{.spec = (*model)->spec(), .workload = workload, .source = source};
  const planner::RankSetup setup{2, 1, "int8"};
  const plan::Plan plan{.layout = {.attention_dp = 2, .expert_ep = 2, .expert_weights = {3, 1}}};
  AnswerPlanQuestion({.memory_of_host = uint64_t{1} << 40}, question);
  const auto alike = question.memory_of(setup, plan, 16);
  ASSERT_TRUE(alike) << alike.error().message;
  EXPECT_EQ(alike->limit_bytes, 0u);
  // The first rank has more experts; the second has so little that it is what matters.
  for (const uint64_t second : {alike->total() / 4, alike->total() * 2}) {
    AnswerPlanQuestion({.rank_memory = {alike->total() + 1, second}}, question);
    const auto tightest = question.memory_of(setup, plan, 16);
    ASSERT_TRUE(tightest) << tightest.error().message;
    const bool is_second = second < alike->total();
    EXPECT_EQ(tightest->limit_bytes, is_second ? second : alike->total() + 1);
    EXPECT_EQ(tightest->fits(question.memory_per_rank(2)), !is_second);
    EXPECT_EQ(tightest->total() < alike->total(), is_second);
  }
}

TEST_F(PlanPages, FewerSequencesRunTogetherWhereFewerAreAskedFor) {
  options_.batch_work->chooses_sequences = false;
  options_.max_sequences = 4;
  const int blocks = BlocksOfSequence(*options_.batch_work);
  auto model = Load(options_);
  ASSERT_TRUE(model) << model.error().message;
  EXPECT_EQ((*model)->memory().num_spilled_blocks, 4 * blocks - 5);
  model->reset();
  // All that they have fits.
  options_.max_sequences = 1;
  model = Load(options_);
  ASSERT_TRUE(model) << model.error().message;
  EXPECT_EQ((*model)->memory().num_spilled_blocks, 0);
  EXPECT_EQ((*model)->memory().num_page_buffers, 12);
}

TEST_F(PlanPages, RefusalsSayWhatToChange) {
  LoadOptions other = options_;
  other.batch_work.reset();
  EXPECT_THAT(ErrorOf(other), HasSubstr("run it with convene batch, or leave spilled_kv out"));
  other = options_;
  other.spill_directory = kNoSpill;
  EXPECT_THAT(ErrorOf(other), HasSubstr("there is no directory for them: give --spill-dir DIR"));
  other = options_;
  other.spill_directory = "/dev/shm";
  if (memory::SpillFile::IsInMemory(other.spill_directory)) {
    EXPECT_THAT(ErrorOf(other), HasSubstr("which lies in memory itself (tmpfs)"));
  }
  other = options_;
  other.page_directory.clear();
  EXPECT_THAT(ErrorOf(other), HasSubstr("experts would not be read from one: give --page-dir DIR"));
  other = options_;
  other.expert_capacity = 4;
  EXPECT_THAT(ErrorOf(other), HasSubstr("beside a capacity of experts cannot be kept on a disk"));
  other = options_;
  other.plan.experts_in_memory.reset();
  EXPECT_THAT(ErrorOf(other), HasSubstr("where one rank reads its experts from one, too"));
  other = options_;
  other.plan.sequences = 600;
  other.batch_work->num_requests = 600;
  other.batch_work->chooses_step_tokens = false;
  EXPECT_THAT(ErrorOf(other), HasSubstr("a batch of 600 sequences is out of range"));
}

constexpr uint64_t kMebi = uint64_t{1} << 20;

TEST_F(PlanPages, ABatchNeverTakesLongerWithMoreMemoryAlsoWhereItFitsWhole) {
  options_.batch_work->num_requests = 600;
  double least = 1e30;
  int num_whole = 0;
  int num_paged = 0;
  for (uint64_t memory = 40 * kMebi; memory < 400 * kMebi; memory += memory / 40) {
    const Result<MemoryPlan> plan = Choose(memory, 0, /*may_be_whole=*/true);
    if (!plan) {
      EXPECT_EQ(num_paged + num_whole, 0) << plan.error().message;
      continue;
    }
    ++(plan->num_page_buffers > 0 ? num_paged : num_whole);
    EXPECT_LE(plan->batch_seconds, 1.11 * least) << memory / kMebi;  // twice 5 %
    EXPECT_GE(plan->all_kv_blocks(), plan->max_sequences * BlocksOfSequence(*options_.batch_work));
    EXPECT_LE(plan->needed_bytes(), memory);
    least = std::min(least, plan->batch_seconds);
  }
  EXPECT_GT(num_paged, 0);
  EXPECT_GT(num_whole, 0);
  const Result<MemoryPlan> much = Choose(4096 * kMebi, 0, /*may_be_whole=*/true);
  ASSERT_TRUE(much) << much.error().message;
  EXPECT_EQ(much->num_page_buffers, 0);
  EXPECT_GE(much->max_sequences, options_.max_sequences);
}

TEST_F(PlanPages, PagesThatAreStillToBeMadeArePartOfThePriceAndOfTheDisk) {
  options_.batch_work->num_requests = 600;
  options_.max_sequences = 32;
  // With little memory, keys and values of most sequences go to the disk.
  uint64_t memory = 40 * kMebi;
  Result<MemoryPlan> plan = Choose(memory, 0, /*may_be_whole=*/false);
  while (!plan && memory < 400 * kMebi) plan = Choose(memory += kMebi, 0, false);
  ASSERT_TRUE(plan) << plan.error().message;
  ASSERT_GT(plan->num_spilled_blocks, 0);
  EXPECT_THAT(plan->batch_words, Not(HasSubstr("less time")));
  // Pages that fill the disk leave nothing to these.
  const uint64_t free = memory::SpillFile::FreeBytes(directory_.string());
  const Result<MemoryPlan> beside = Choose(memory, 2 * free, /*may_be_whole=*/false);
  if (beside) {
    EXPECT_EQ(beside->num_spilled_blocks, 0);
    EXPECT_THAT(beside->batch_words, HasSubstr("less time with"));
    EXPECT_THAT(beside->batch_words, HasSubstr("--spill-dir names another place"));
  } else {
    EXPECT_THAT(beside.error().message, HasSubstr("give another --spill-dir"));
  }
  // What fits whole is not packed for hours.
  for (memory = 40 * kMebi; memory < 400 * kMebi; memory += memory / 20) {
    const Result<MemoryPlan> either = Choose(memory, uint64_t{1} << 50, /*may_be_whole=*/true);
    const Result<MemoryPlan> fits = Choose(memory, 0, /*may_be_whole=*/true);
    ASSERT_EQ(either.ok(), fits.ok());
    if (either && fits->num_page_buffers == 0) {
      EXPECT_EQ(either->num_page_buffers, 0);
    }
  }
}

TEST_F(PlanPages, WhatPagesWillTakeOfTheDiskIsKnownBeforeTheyAreMade) {
  const auto checkpoint = checkpoint::Checkpoint::Open(CONVENE_SOURCE_DIR "/models/demo");
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  const uint64_t bytes = PagesToMakeBytes(options_, *checkpoint, formats_.weights);
  ASSERT_TRUE(Load(options_));
  uint64_t made = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory_)) {
    if (entry.path().filename() == "convene.safetensors") made += entry.file_size();
  }
  EXPECT_GT(made, 0u);
  EXPECT_NEAR(static_cast<double>(bytes), static_cast<double>(made),
              0.05 * static_cast<double>(made));
  EXPECT_EQ(PagesToMakeBytes(options_, *checkpoint, formats_.weights), 0u);
}

}  // namespace
}  // namespace convene::engine
