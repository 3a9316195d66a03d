// What fits memory: how many sequences, how many experts, and in which format; and what is said
// where nothing does.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "planner/asked_question_test.h"
#include "planner/explain_plan.h"
#include "planner/plan_search_test.h"

namespace convene::planner {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(FittedPlans, AModelThatFitsNowhereNamesWhatWouldDo) {
  Asked asked(1e9, {1, 2});
  asked.question.memory_per_rank = [](int) { return uint64_t{5} << 20; };
  const std::string error = ErrorOf(asked);
  EXPECT_THAT(error, HasSubstr("8.05 MiB of memory for each of "));
  EXPECT_THAT(error, HasSubstr("4 ranks"));
  EXPECT_THAT(error, HasSubstr("--weights int8"));
  asked.question.memory_per_rank = [](int) { return uint64_t{12} << 20; };
  for (const Candidate& candidate : Search(asked).candidates) {
    if (candidate.plan.decode) continue;
    EXPECT_EQ(candidate.is_ranked(), candidate.setup.num_ranks == 2) << Describe(candidate);
  }
}

TEST(FittedPlans, WhatWouldDoKeepsTheLayoutThatWasAskedFor) {
  Asked asked(1e9, {2});
  asked.question.constraints.layout = strategy::Layout{.attention_dp = 2, .expert_ep = 2};
  // Heads that are divided would take less.
  asked.question.memory_of = [](const RankSetup&, const plan::Plan& plan,
                                int) -> Result<RankMemory> {
    return RankMemory{.weights_bytes = (plan.layout.attention_tp > 1 ? uint64_t{8} : 12) << 20};
  };
  asked.question.memory_per_rank = [](int) { return uint64_t{10} << 20; };
  const std::string error = ErrorOf(asked);
  EXPECT_THAT(error, HasSubstr("needs 12.1 MiB per rank, and each has 10.0 MiB"));
  EXPECT_THAT(error, HasSubstr("it would with 12.1 MiB of memory for each of 2 ranks"));
  EXPECT_THAT(error, Not(HasSubstr("--weights")));
  EXPECT_THAT(error, Not(HasSubstr("4 ranks")));
}

TEST(FittedPlans, WhatWouldDoIsTheFewestRanksAndWhatMustBeAllowed) {
  Asked asked(1e9, {1, 2});
  // Cut heads and experts are in all ranks' memory once; whole ones need as much again.
  asked.question.memory_of = [](const RankSetup& setup, const plan::Plan& plan,
                                int) -> Result<RankMemory> {
    const bool cuts = plan.layout.attention_tp > 1 && plan.layout.expert_tp > 1;
    const auto ranks = static_cast<uint64_t>(setup.num_ranks);
    return RankMemory{.weights_bytes = (uint64_t{cuts ? 1U : 2U} << 30) / ranks};
  };
  asked.question.memory_per_rank = [](int) { return uint64_t{45} << 20; };
  // 2 GiB of 46 ranks are 44.5 MiB, and 1 GiB of 23 is as much.
  EXPECT_THAT(ErrorOf(asked), HasSubstr("or 23 ranks and --allow layout"));
  asked.question.allowed.layout = true;
  EXPECT_THAT(ErrorOf(asked), AllOf(HasSubstr("23 ranks"), Not(HasSubstr("--allow layout"))));
}

TEST(FittedPlans, OtherFormatsAreTakenWhereTheFirstDoesNotFitOrTheyAreAllowed) {
  Asked asked(1e9, {1}, {"bf16", "int8"});
  // Here int8 is faster.
  for (auto& task : asked.profile.steps[1].tasks) task->per_weight_byte.value = {1e-11, 1e-6};
  EXPECT_EQ(ChosenOf(Search(asked)).setup.weights, "bf16");
  asked.question.allowed.weights = true;
  EXPECT_EQ(ChosenOf(Search(asked)).setup.weights, "int8");
  asked.question.allowed.weights = false;
  asked.question.memory_per_rank = [](int) { return uint64_t{10} << 20; };
  EXPECT_EQ(ChosenOf(Search(asked)).setup.weights, "int8");
}

// More memory is never less of a choice, and never a rounder format.
TEST(FittedPlans, TheFirstFormatIsOneOfWhichAPlanMayBeChosen) {
  const std::vector<std::string> formats = {"bf16", "int8", "int4"};
  for (const bool are_cheap_layouts_allowed : {false, true}) {
    for (const bool has_all_costs : {true, false}) {
      Asked asked(1e9, {1, 2, 4}, formats);
      if (!has_all_costs) {
        std::erase_if(asked.profile.steps, [](const cost::StepCosts& costs) {
          return costs.weights == "int8" && costs.num_ranks > 1;
        });
      }
      asked.question.allowed.layout = are_cheap_layouts_allowed;
      // Of layouts that change numbers a rank needs half as much.
      asked.question.memory_of = [&spec = asked.spec](const RankSetup& setup,
                                                      const plan::Plan& plan,
                                                      int) -> Result<RankMemory> {
        const uint64_t bits = setup.weights == "bf16" ? 16 : setup.weights == "int8" ? 8 : 4;
        const uint64_t share = CutsNothing(spec, plan.layout) && plan.layout.stages == 1 ? 2 : 1;
        return RankMemory{.weights_bytes =
                              1000 * bits * share / static_cast<uint64_t>(plan.layout.num_ranks())};
      };
      asked.question.passes_off = {"hybrid", "disaggregated", "heads", "pipelines",
                                   "micro_batches"};
      size_t last = formats.size();
      for (uint64_t memory = 500; memory <= 40000; memory += 1000) {
        asked.question.memory_per_rank = [memory](int) { return memory; };
        const Result<PlanAnswer> answer = SearchPlan(asked.question);
        if (!answer) {
          EXPECT_EQ(last, formats.size()) << memory << ": " << answer.error().message;
          continue;
        }
        const auto found = std::ranges::find(formats, ChosenOf(*answer).setup.weights);
        const auto format = static_cast<size_t>(found - formats.begin());
        EXPECT_LE(format, last) << memory;
        last = format;
      }
      EXPECT_EQ(last, 0u);
    }
  }
}

// Of each sequence a rank needs a KiB beside weights.
TEST(FittedPlans, GoodputRunsAsManyAsHaveRoom) {
  Asked asked(1e9, {1});
  asked.workload.batch = 512;
  asked.workload.objective = Objective::kGoodput;
  asked.workload.limits.ttft = 1e6;
  for (const uint64_t room : {1, 5, 16, 100}) {
    asked.question.memory_per_rank = [room](int) { return (uint64_t{16} << 20) + (room << 10); };
    const Candidate chosen = ChosenOf(Search(asked));
    EXPECT_LE(static_cast<uint64_t>(chosen.figures->batch), room);
    EXPECT_GT(2 * static_cast<uint64_t>(chosen.figures->batch), room);
    EXPECT_LE(chosen.memory.total(), chosen.memory_limit);
    EXPECT_EQ(chosen.memory.kv_bytes, static_cast<uint64_t>(chosen.figures->batch) << 10);
  }
}

TEST(FittedPlans, FewerSequencesWouldDoWhereTheModelFits) {
  Asked asked(1e9, {1, 2});
  asked.question.memory_per_rank = [](int) { return (uint64_t{8} << 20) + (uint64_t{77} << 10); };
  asked.workload.batch = 10000;
  EXPECT_THAT(ErrorOf(asked),
              AllOf(HasSubstr("there is no room for 10,000 sequences together"),
                    HasSubstr("it would with 77 sequences or"), Not(HasSubstr("fits nowhere"))));
  asked.workload.batch = 77;
  EXPECT_TRUE(SearchPlan(asked.question).ok());
  asked.question.memory_per_rank = [](int) { return uint64_t{8} << 20; };
  EXPECT_THAT(ErrorOf(asked),
              AllOf(HasSubstr("the model fits nowhere"), Not(HasSubstr("sequence"))));
}

// A model of 24 layers with 16 experts each, of which one rank has room for some only.
struct AskedOfLittleMemory : Asked {
  AskedOfLittleMemory(double disk_gbps, const std::vector<int>& ranks)
      : Asked(1e9, ranks, {"int8", "int4"}) {
    profile.machine.disk_gbps = disk_gbps;
    // The smaller format has half the weights, which the costs of tasks know by their bytes alone.
    question.bytes_of = [](const std::string& weights, plan::Wire) {
      strategy::ElementBytes bytes;
      bytes.weights = weights == "int8" ? 1 : 0.5;
      return bytes;
    };
    question.memory_of = [](const RankSetup& setup, const plan::Plan& plan,
                            int) -> Result<RankMemory> {
      const uint64_t expert_bytes = setup.weights == "int8" ? 2 : 1;
      const auto parts = static_cast<uint64_t>(plan.layout.num_ranks());
      const auto experts = static_cast<uint64_t>(plan.experts_in_memory.value_or(24 * 16));
      return RankMemory{.weights_bytes = 100 + expert_bytes * experts / parts};
    };
    question.memory_per_rank = [](int) { return uint64_t{100 + 24 * 16}; };
    question.experts_that_fit = [](const RankSetup& setup, const plan::Plan&, int,
                                   uint64_t memory_bytes) -> Result<int> {
      if (memory_bytes < 104) return ResourceExhausted("too little");
      return static_cast<int>(memory_bytes - 100) / (setup.weights == "int8" ? 2 : 1);
    };
  }
};

const Candidate* Find(const PlanAnswer& answer, const std::string& words) {
  for (const Candidate& candidate : answer.candidates) {
    if (Describe(candidate).find(words) != std::string::npos) return &candidate;
  }
  return nullptr;
}

TEST(FittedPlans, ReadingExpertsFromADiskCompetesWithASmallerFormatAndWithMoreRanks) {
  AskedOfLittleMemory asked(/*disk_gbps=*/1, {1});
  PlanAnswer answer = Search(asked);
  // Int4 is what fits memory, and so what may be chosen.
  EXPECT_EQ(ChosenOf(answer).setup.weights, "int4");
  EXPECT_FALSE(ChosenOf(answer).plan.experts_in_memory);
  const Candidate* paged = Find(answer, "int8, 192 experts in memory and the others read");
  ASSERT_NE(paged, nullptr);
  EXPECT_EQ(paged->added_by, "paging");
  ASSERT_TRUE(paged->is_ranked()) << paged->reason;
  EXPECT_THAT(paged->needs, testing::ElementsAre("weights"));
  EXPECT_EQ(paged->memory.total(), paged->memory_limit);
  // A step reads half of the experts: 24 layers of 8 experts of 2 x 1024 x 512 bytes.
  const double read_seconds = 24.0 * 8 * 2 * 1024 * 512 / 1e9;
  EXPECT_GT(paged->figures->time_per_token, 0.9 * read_seconds);
  EXPECT_LT(paged->figures->time_per_token, 1.5 * read_seconds);
  // A step of few tokens reads what they choose, one of many reads everything.
  double read_on_path = 0;
  for (const auto kind : {schedule::TaskKind::kReadPages, schedule::TaskKind::kReadChosen}) {
    read_on_path += paged->figures->path[static_cast<size_t>(kind)];
  }
  // Of a generated token, where a step has one of each sequence.
  EXPECT_GT(read_on_path * asked.workload.batch, 0.5 * read_seconds);
  EXPECT_THAT(WhySlower(*paged->figures, *ChosenOf(answer).figures),
              HasSubstr("reading experts from the disk +"));

  // Where int8 is asked for, it is read from the disk, or two ranks have it in memory.
  asked.question.formats = {"int8"};
  answer = Search(asked);
  EXPECT_EQ(ChosenOf(answer).plan.experts_in_memory, 192);
  PlanSearch search(asked.question);
  const Result<PlanAnswer> again = SearchPlan(search);
  ASSERT_TRUE(again);
  const Explanation explanation = ExplainPlan(search, *again);
  EXPECT_TRUE(std::ranges::any_of(explanation.flips,
                                  [](const Flip& flip) { return flip.figure == "disk"; }));
  AskedOfLittleMemory two(/*disk_gbps=*/1, {1, 2});
  two.question.formats = {"int8"};
  answer = Search(two);
  EXPECT_EQ(ChosenOf(answer).setup.num_ranks, 2);
  ASSERT_NE(Find(answer, "192 experts in memory"), nullptr);
  EXPECT_TRUE(Find(answer, "192 experts in memory")->is_ranked());
}

TEST(FittedPlans, SaysWhyNoExpertsAreReadFromADisk) {
  AskedOfLittleMemory unknown(/*disk_gbps=*/0, {1});
  PlanAnswer answer = Search(unknown);
  const Candidate* paged = Find(answer, "192 experts in memory");
  ASSERT_NE(paged, nullptr);
  EXPECT_THAT(paged->reason, HasSubstr("measure it with convene measure --disk"));
  AskedOfLittleMemory alone(/*disk_gbps=*/0, {1});
  alone.question.formats = {"int8"};
  EXPECT_THAT(ErrorOf(alone), AllOf(HasSubstr("memory has no room for the whole model"),
                                    HasSubstr("with experts read from a disk there is room"),
                                    Not(HasSubstr("fits nowhere"))));
  // Without the pass nothing is read from a disk.
  unknown.question.passes_off = {"paging"};
  answer = Search(unknown);
  EXPECT_EQ(Find(answer, "experts in memory"), nullptr);

  AskedOfLittleMemory little(/*disk_gbps=*/1, {1});
  little.question.memory_per_rank = [](int) { return uint64_t{103}; };
  EXPECT_THAT(ErrorOf(little), HasSubstr("the model fits nowhere"));
}

// Of which each sequence takes the memory of five experts, too.
struct AskedOfSequences : AskedOfLittleMemory {
  AskedOfSequences() : AskedOfLittleMemory(/*disk_gbps=*/10, {1}) {
    question.formats = {"int8"};
    question.memory_of = [of = question.memory_of](const RankSetup& setup, const plan::Plan& plan,
                                                   int batch) -> Result<RankMemory> {
      RankMemory memory = *of(setup, plan, batch);
      memory.kv_bytes = 10 * static_cast<uint64_t>(batch);
      return memory;
    };
    question.experts_that_fit = [](const RankSetup&, const plan::Plan&, int batch,
                                   uint64_t memory_bytes) -> Result<int> {
      const int left = static_cast<int>(memory_bytes) - 100 - 10 * batch;
      if (left < 8) return ResourceExhausted("too little");
      return left / 2;
    };
  }

  // As many experts as have room beside the sequences that run together, and no more.
  void ExpectFitting(const Candidate& one) const {
    EXPECT_LE(one.memory.total(), one.memory_limit) << Describe(one);
    EXPECT_EQ(one.memory.kv_bytes, 10 * static_cast<uint64_t>(one.figures->batch));
    EXPECT_EQ(
        one.plan.experts_in_memory,
        *question.experts_that_fit(one.setup, one.plan, one.figures->batch, one.memory_limit));
  }
};

TEST(FittedPlans, ExpertsLeaveRoomForAsManySequencesAsARateBrings) {
  AskedOfSequences asked;
  asked.workload = {.requests = {{16, 64}}, .arrival_rate = 1e-3};
  int most = 0;
  for (; asked.workload.arrival_rate < 100; asked.workload.arrival_rate *= 1.5) {
    const Result<PlanAnswer> answer = SearchPlan(asked.question);
    if (!answer) {
      EXPECT_THAT(answer.error().message, HasSubstr("no plan keeps up"));
      break;
    }
    const Candidate& chosen = ChosenOf(*answer);
    ASSERT_TRUE(chosen.plan.experts_in_memory.has_value());
    asked.ExpectFitting(chosen);
    EXPECT_GE(chosen.figures->batch, most);
    most = chosen.figures->batch;
  }
  EXPECT_GT(most, 2);
}

TEST(FittedPlans, ExpertsLeaveRoomForAsManySequencesAsGoodputTakes) {
  AskedOfSequences asked;
  asked.workload = {.requests = {{16, 64}},
                    .batch = 256,
                    .objective = Objective::kGoodput,
                    .limits = {.ttft = 1e6}};
  const Candidate most = ChosenOf(Search(asked));
  asked.ExpectFitting(most);
  EXPECT_EQ(most.figures->batch, 32);  // for 64 there is no room
  int batch = most.figures->batch;
  for (double limit = most.figures->ttft / 2; batch > 1; limit /= 2) {
    asked.workload.limits.ttft = limit;
    const Result<PlanAnswer> answer = SearchPlan(asked.question);
    if (!answer) break;
    asked.ExpectFitting(ChosenOf(*answer));
    EXPECT_LE(ChosenOf(*answer).figures->ttft, limit);
    EXPECT_LE(ChosenOf(*answer).figures->batch, batch);
    batch = ChosenOf(*answer).figures->batch;
  }
  EXPECT_LT(batch, most.figures->batch);
}

}  // namespace
}  // namespace convene::planner
