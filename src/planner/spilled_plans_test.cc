// Plans whose keys and values lie on a disk: when the search finds them, and what it simulates.
#include <gmock/gmock.h>

#include <algorithm>

#include "planner/asked_question_test.h"
#include "planner/explain_plan.h"
#include "planner/plan_search_test.h"
#include "planner/spilled_steps.h"

namespace convene::planner {
namespace {

using schedule::TaskKind;
using testing::HasSubstr;

constexpr int kNumExperts = 24 * 16;
constexpr uint64_t kPageBytes = 2 * 1024 * 512;       // of an expert in int8
constexpr uint64_t kBlockBytes = 24 * 64 * 2 * 2048;  // of keys and values in bf16, of all layers

// The fewest of 16 experts and their batch, on a machine with a disk. A buffer for keys and values
// takes one block's memory.
struct AskedOfABatch : Asked {
  AskedOfABatch(int batch, uint64_t memory_bytes) : Asked(1e9, {1}, {"int8"}) {
    workload = {.requests = {{112, 32}}, .batch = batch};
    profile.machine.disk_gbps = 1;
    question.step_tokens = 4096;
    question.bytes_of = [](const std::string&, plan::Wire) {
      return strategy::ElementBytes{.weights = 1};
    };
    question.memory_per_rank = [memory_bytes](int) { return memory_bytes; };
    question.memory_of = [](const RankSetup&, const plan::Plan& plan,
                            int sequences) -> Result<RankMemory> {
      const int blocks = sequences * BlocksOfSequence(112 + 32);
      return RankMemory{
          .weights_bytes =
              kPageBytes * static_cast<uint64_t>(plan.experts_in_memory.value_or(kNumExperts)),
          .kv_bytes = kBlockBytes *
                      static_cast<uint64_t>(plan.spilled_kv ? plan.spilled_kv->blocks_in_memory + 1
                                                            : blocks)};
    };
    question.experts_that_fit = [](const RankSetup&, const plan::Plan&, int sequences,
                                   uint64_t bytes) -> Result<int> {
      const uint64_t kv = kBlockBytes * static_cast<uint64_t>(sequences * BlocksOfSequence(144));
      if (bytes < kv + 16 * kPageBytes) return ResourceExhausted("too little for the batch");
      return static_cast<int>(std::min<uint64_t>((bytes - kv) / kPageBytes, kNumExperts));
    };
    question.spilled_that_fit = [](const RankSetup&, const plan::Plan& plan, int sequences,
                                   uint64_t bytes, double kv_share) -> Result<plan::Plan> {
      if (bytes < kBlockBytes + 16 * kPageBytes) return ResourceExhausted("too little");
      const uint64_t left = bytes - kBlockBytes - 16 * kPageBytes;
      plan::Plan spilled = plan;
      spilled.sequences = sequences;
      spilled.spilled_kv = plan::SpilledKv{
          .blocks_in_memory = static_cast<int>(kv_share * static_cast<double>(left) / kBlockBytes),
          .buffers = 2,
          .buffer_blocks = 32};
      const uint64_t kept =
          kBlockBytes * static_cast<uint64_t>(spilled.spilled_kv->blocks_in_memory);
      spilled.experts_in_memory =
          16 + static_cast<int>(std::min<uint64_t>((left - kept) / kPageBytes, kNumExperts - 16));
      return spilled;
    };
  }
};

const Candidate* FindSpilled(const PlanAnswer& answer) {
  const auto found = std::ranges::find_if(answer.candidates, [](const Candidate& one) {
    return one.plan.spilled_kv.has_value() && one.is_ranked();
  });
  return found != answer.candidates.end() ? &*found : nullptr;
}

double SecondsOf(const PlanFigures& figures, TaskKind kind) {
  return figures.path[static_cast<size_t>(kind)];
}

TEST(SpilledSteps, AreCutIntoPartsThatHaveRoomInABuffer) {
  EXPECT_EQ(BlocksOfSequence(144), 4) << "three, and the one that is to be free";
  const plan::SpilledKv planned{.buffers = 3, .buffer_blocks = 8};
  const strategy::Roles one;
  // Sequences of three blocks each, of which a buffer has room for two.
  const StepSequences decode = DecodeStep(/*batch=*/5, /*context=*/128, 112, one);
  auto step = SpilledStepOf(planned, /*num_blocks=*/20, decode);
  ASSERT_TRUE(step);
  EXPECT_EQ(*step, (strategy::SpilledKv{.parts = 3, .depth = 3, .missing = 1}));
  // With half of them in memory it has room for five.
  step = SpilledStepOf({.blocks_in_memory = 10, .buffers = 3, .buffer_blocks = 8}, 20, decode);
  EXPECT_EQ(*step, (strategy::SpilledKv{.parts = 1, .depth = 3, .missing = 0.5}));
  EXPECT_FALSE(SpilledStepOf({.blocks_in_memory = 20}, 20, decode)) << "nothing is spilled";
  // A sequence that is longer than a buffer gets one that has room for it.
  step = SpilledStepOf({.buffer_blocks = 1}, 20, decode);
  EXPECT_EQ(step->parts, 5);
}

TEST(SpilledPlans, AnswerABatchWhoseKeysAndValuesDoNotFit) {
  // 64 sequences have 1.6 GB of keys and values.
  const AskedOfABatch asked(/*batch=*/64, /*memory_bytes=*/uint64_t{300} << 20);
  PlanSearch search(asked.question);
  const Result<PlanAnswer> answer = SearchPlan(search);
  ASSERT_TRUE(answer) << answer.error().message;
  const Candidate& chosen = ChosenOf(*answer);
  ASSERT_TRUE(chosen.plan.spilled_kv);
  EXPECT_EQ(chosen.added_by, "paging");
  EXPECT_EQ(chosen.plan.sequences, 64);
  EXPECT_LE(chosen.memory.total(), chosen.memory_limit);
  EXPECT_THAT(Describe(chosen), HasSubstr("keys and values of 64 sequences on the disk"));
  EXPECT_EQ(chosen.figures->batch, 64);
  // Each generated token but the first reads three blocks, and writes one again; a step of prompts
  // writes what it makes. All pass the disk at a GB/s, beside the experts.
  const double missing =
      1 - chosen.plan.spilled_kv->blocks_in_memory / (64.0 * BlocksOfSequence(144));
  const double moved = 64 * missing * (128 + 32 + 64) / 64 * kBlockBytes;
  const double experts = (kNumExperts - *chosen.plan.experts_in_memory) * double{kPageBytes};
  EXPECT_GT(chosen.figures->time_per_token, 0.9 * (moved + experts) / 1e9);
  EXPECT_LT(chosen.figures->time_per_token, 1.3 * (moved + experts) / 1e9);
  EXPECT_GT(SecondsOf(*chosen.figures, TaskKind::kReadKv) +
                SecondsOf(*chosen.figures, TaskKind::kWriteKv),
            0);

  const Result<PredictedStep> step =
      search.DrawStep(chosen.setup, chosen.plan, strategy::Phase::kDecode);
  ASSERT_TRUE(step) << step.error().message;
  for (const TaskKind kind :
       {TaskKind::kReadKv, TaskKind::kAttend, TaskKind::kWriteKv, TaskKind::kReadPages}) {
    EXPECT_TRUE(std::ranges::any_of(step->schedule.tasks, [&](const auto& task) {
      return task.kind == kind;
    })) << schedule::Name(kind);
  }
  const Explanation explanation = ExplainPlan(search, *answer);
  for (const Alternative& alternative : explanation.alternatives) {
    EXPECT_FALSE(alternative.would_win.empty());
  }
}

TEST(SpilledPlans, CompeteWithFewerExpertsInMemoryAndWinWhereTheyMoveLess) {
  // Room for the keys and values of 8 sequences beside few experts: on the disk they cost less than
  // the experts that have their memory.
  const AskedOfABatch asked(/*batch=*/8,
                            /*memory_bytes=*/(uint64_t{8 * 4} * kBlockBytes) + 16 * kPageBytes);
  const PlanAnswer answer = Search(asked);
  const Candidate* spilled = FindSpilled(answer);
  ASSERT_NE(spilled, nullptr);
  const auto in_memory = std::ranges::find_if(answer.candidates, [](const Candidate& one) {
    return one.is_ranked() && one.plan.experts_in_memory && !one.plan.spilled_kv;
  });
  ASSERT_NE(in_memory, answer.candidates.end());
  EXPECT_EQ(*in_memory->plan.experts_in_memory, 16);
  EXPECT_GT(*spilled->plan.experts_in_memory, 16);
  EXPECT_LT(spilled->figures->score, in_memory->figures->score);
  EXPECT_TRUE(ChosenOf(answer).plan.spilled_kv);
  EXPECT_THAT(WhySlower(*in_memory->figures, *spilled->figures),
              HasSubstr("keys and values from the disk and to it -"));
}

TEST(SpilledPlans, LeaveKeysAndValuesInMemoryWhereOthersMoveAsMuch) {
  AskedOfABatch asked(/*batch=*/8,
                      /*memory_bytes=*/(uint64_t{8 * 4} * kBlockBytes) + 380 * kPageBytes);
  // All on the disk, and no expert more in memory for it.
  asked.question.spilled_that_fit = [&asked](const RankSetup& setup, const plan::Plan& plan,
                                             int batch, uint64_t bytes, double) {
    plan::Plan spilled = plan;
    spilled.experts_in_memory = *asked.question.experts_that_fit(setup, plan, batch, bytes);
    spilled.sequences = batch;
    spilled.spilled_kv =
        plan::SpilledKv{.blocks_in_memory = batch * 4 - 1, .buffers = 2, .buffer_blocks = 32};
    return Result<plan::Plan>(spilled);
  };
  const PlanAnswer answer = Search(asked);
  EXPECT_NE(FindSpilled(answer), nullptr) << "it was looked at";
  EXPECT_FALSE(ChosenOf(answer).plan.spilled_kv);
  EXPECT_TRUE(ChosenOf(answer).plan.experts_in_memory);
}

TEST(SpilledPlans, AreNotOfferedWhereNothingExecutesThem) {
  const uint64_t memory_bytes = (uint64_t{8 * 4} * kBlockBytes) + 16 * kPageBytes;
  AskedOfABatch nobody(8, memory_bytes);
  nobody.question.spilled_that_fit = nullptr;
  EXPECT_EQ(FindSpilled(Search(nobody)), nullptr);

  AskedOfABatch stream(8, memory_bytes);
  stream.workload.arrival_rate = 0.01;
  EXPECT_EQ(FindSpilled(Search(stream)), nullptr);
  // A plan that is given is refused.
  PlanSearch search(stream.question);
  plan::Plan plan;
  plan.experts_in_memory = 16;
  plan.spilled_kv = plan::SpilledKv{};
  const auto figures = search.FiguresOf({1, 1, "int8"}, plan, stream.workload);
  ASSERT_FALSE(figures);
  EXPECT_THAT(figures.error().message, HasSubstr("no arrival rate"));
}

}  // namespace
}  // namespace convene::planner
