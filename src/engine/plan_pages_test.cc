// That a plan with keys and values on a disk is executed as it says, takes the memory that the
// search was told of, and is refused where that cannot be.
#include "engine/plan_pages.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "engine/choose_batch.h"
#include "engine/loaded_model.h"
#include "engine/plan_question.h"
#include "memory/spill_file.h"

namespace convene::engine {
namespace {

using testing::HasSubstr;

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

  std::filesystem::path directory_;
  LoadOptions options_;
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

}  // namespace
}  // namespace convene::engine
