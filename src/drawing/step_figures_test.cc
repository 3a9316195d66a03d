#include "drawing/step_figures.h"

#include <gtest/gtest.h>

namespace convene::drawing {
namespace {

using schedule::TaskKind;

TracedStep StepWithFigures() {
  TracedStep step;
  step.schedule.num_ranks = 2;
  for (int rank = 0; rank < 2; ++rank) {
    step.schedule.tasks.push_back({.kind = TaskKind::kExperts,
                                   .lane = {rank, schedule::LaneKind::kCompute},
                                   .layer = 1,
                                   .work = {.flops = schedule::Constant(rank == 0 ? 100 : 300)}});
    step.schedule.tasks.push_back({.kind = TaskKind::kDispatch,
                                   .lane = {rank, schedule::LaneKind::kSend},
                                   .layer = 1,
                                   .collective = 0,
                                   .work = {.link_bytes = schedule::Constant(1000)}});
  }
  step.measured.tasks = {{0, 1}, {1, 5}, {0, 3}, {3, 5}};
  step.predicted.tasks = {{0, 2}, {2, 4}, {0, 2}, {2, 4}};
  step.sent_bytes = {0, 900, 0, 1200};
  step.expert_tokens = {{}, {6, 2, 1, 3}};
  return step;
}

TEST(StepFigures, TimeByKindIsWithoutWaiting) {
  const StepFigures figures = FiguresOf(StepWithFigures());
  EXPECT_EQ(figures.seconds, 5);
  EXPECT_EQ(figures.predicted_seconds, 4);
  ASSERT_EQ(figures.sections.size(), 2);
  const SectionFigures& dispatch = figures.sections[0];
  EXPECT_EQ(dispatch.kind, TaskKind::kDispatch);
  EXPECT_EQ(dispatch.seconds, 2);
  EXPECT_EQ(dispatch.seconds_sd, 0);
  EXPECT_EQ(dispatch.waiting_seconds, 1);  // rank 0 waits 2 s
  EXPECT_EQ(dispatch.predicted_seconds, 2);
  EXPECT_EQ(dispatch.sent_bytes, 2100);
  EXPECT_EQ(dispatch.scheduled_bytes, 2000);
  const SectionFigures& experts = figures.sections[1];
  EXPECT_EQ(experts.seconds, 2);
  EXPECT_EQ(experts.seconds_sd, 1);
  EXPECT_EQ(experts.longest_seconds, 3);
  EXPECT_EQ(experts.waiting_seconds, 0);
}

TEST(StepFigures, BytesThatWereCountedStandBesideThoseOfTheSchedule) {
  const StepFigures figures = FiguresOf(StepWithFigures());
  EXPECT_TRUE(figures.has_sent_bytes);
  EXPECT_EQ(figures.sent_bytes, 2100);
  EXPECT_EQ(figures.scheduled_bytes, 2000);
  EXPECT_EQ(figures.ranks[0].sent_bytes, 900);
  EXPECT_EQ(figures.ranks[1].sent_bytes, 1200);
  EXPECT_EQ(figures.ranks[1].scheduled_bytes, 1000);
  TracedStep uncounted = StepWithFigures();
  uncounted.sent_bytes.clear();
  EXPECT_FALSE(FiguresOf(uncounted).has_sent_bytes);
  EXPECT_EQ(FiguresOf(uncounted).sent_bytes, 0);
  EXPECT_EQ(FiguresOf(uncounted).scheduled_bytes, 2000);
  // One rank sends nothing, which need not be counted.
  EXPECT_TRUE(FiguresOf({}).has_sent_bytes);
}

TEST(StepFigures, IdleIsByRankAndLoadsAreComparedWithTheirMean) {
  const StepFigures figures = FiguresOf(StepWithFigures());
  ASSERT_EQ(figures.ranks.size(), 2);
  EXPECT_NEAR(figures.ranks[0].idle_share, 0.8, 1e-12);
  EXPECT_NEAR(figures.ranks[1].idle_share, 0.4, 1e-12);
  // Rank 0 comes to the collective at 1 s and rank 1 at 3 s.
  EXPECT_NEAR(figures.ranks[0].waiting_share, 0.4, 1e-12);
  EXPECT_EQ(figures.ranks[1].waiting_share, 0);
  EXPECT_NEAR(figures.ranks[1].predicted_idle_share, 0.5, 1e-12);
  EXPECT_EQ(figures.rank_balance.mean, 1.5);
  EXPECT_EQ(figures.expert_balance.worst, 2);
}

TEST(StepFigures, WhatWasNotMeasuredIsZero) {
  TracedStep step = StepWithFigures();
  step.measured = {};
  step.expert_tokens = {};
  const StepFigures figures = FiguresOf(step);
  EXPECT_EQ(figures.seconds, 0);
  EXPECT_EQ(figures.sections[0].seconds, 0);
  EXPECT_EQ(figures.sections[0].predicted_seconds, 2);
  EXPECT_EQ(figures.expert_balance.mean, 0);
  EXPECT_TRUE(FiguresOf({}).sections.empty());
}

// Rank 0 has attention, the others the experts.
TracedStep DisaggregatedStep() {
  TracedStep step;
  step.schedule.num_ranks = 3;
  step.schedule.tasks = {{.kind = TaskKind::kAttention, .layer = 0}};
  for (const int rank : {1, 2}) {
    step.schedule.tasks.push_back({.kind = TaskKind::kExperts,
                                   .lane = {rank, schedule::LaneKind::kCompute},
                                   .layer = 0,
                                   .work = {.flops = schedule::Constant(100 * rank)}});
  }
  step.measured.tasks = {{0, 1}, {1, 3}, {1, 7}};
  return step;
}

TEST(StepFigures, RanksHaveRolesWhereAttentionAndExpertsAreOnDifferentOnes) {
  const StepFigures figures = FiguresOf(DisaggregatedStep());
  EXPECT_EQ(figures.ranks[0].role, "attention");
  EXPECT_EQ(figures.ranks[1].role, "experts");
  EXPECT_EQ(figures.ranks[2].role, "experts");
  for (const RankFigures& rank : FiguresOf(StepWithFigures()).ranks) EXPECT_EQ(rank.role, "");
}

TEST(StepFigures, RanksWithAttentionAloneAreNotInTheLoadOfExperts) {
  // 200 FLOPs over the mean of 100 and 200.
  EXPECT_NEAR(FiguresOf(DisaggregatedStep()).rank_balance.mean, 4.0 / 3, 1e-12);
}

// Stages have layers of their own, here two ranks each.
TEST(StepFigures, LoadsOfALayerAreThoseOfTheRanksThatHaveIt) {
  const auto balance_of = [](int ranks_of_stage) {
    TracedStep step;
    step.schedule.num_ranks = 2 * ranks_of_stage;
    for (int rank = 0; rank < step.schedule.num_ranks; ++rank) {
      step.schedule.tasks.push_back(
          {.kind = TaskKind::kExperts,
           .lane = {rank, schedule::LaneKind::kCompute},
           .layer = rank / ranks_of_stage,
           .work = {.flops = schedule::Constant(rank % 2 == 0 ? 100 : 300)}});
    }
    return FiguresOf(step).rank_balance;
  };
  EXPECT_EQ(balance_of(2).mean, 1.5);
  EXPECT_EQ(balance_of(2).worst, 1.5);
  EXPECT_EQ(balance_of(1).mean, 0) << "a rank that has a layer alone is compared with nobody";
}

}  // namespace
}  // namespace convene::drawing
