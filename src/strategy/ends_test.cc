#include <gtest/gtest.h>

#include <vector>

#include "strategy/step.h"

namespace convene::strategy {
namespace {

using schedule::Schedule;
using schedule::Task;
using schedule::TaskKind;

model::ModelSpec SpecOfOneLayer() {
  model::ModelSpec spec;
  spec.vocab_size = 200;
  spec.hidden_size = 16;
  model::LayerSpec& layer = spec.layers.emplace_back();
  layer.attention = {.num_heads = 4, .num_kv_heads = 2, .head_dim = 4, .value_dim = 4};
  layer.moe.emplace();
  layer.moe->num_experts = 8;
  layer.moe->top_k = 2;
  layer.moe->intermediate_size = 8;
  return spec;
}

const Layout kLayout = {.attention_tp = 2, .expert_tp = 2, .divides_head = true};

// The factor of a size's terms, which are all of wanted rows.
double PerRow(const schedule::Amount& amount) {
  double sum = 0;
  for (const schedule::Term& term : amount) {
    if (term.size.kind == schedule::SizeKind::kWanted && term.size.from == 0) sum += term.factor;
  }
  return sum;
}

std::vector<const Task*> TasksOfEnds(const Schedule& schedule, TaskKind kind, int rank) {
  std::vector<const Task*> tasks;
  for (const Task& task : schedule.tasks) {
    if (task.kind == kind && task.lane.rank == rank) tasks.push_back(&task);
  }
  return tasks;
}

// Building checks the schedules: cycles, and tasks that touch the same thing in no order.
TEST(DividedHead, HasTheLogitsOfItsTokensOnEachRankAndAllOnTheFirst) {
  const model::ModelSpec spec = SpecOfOneLayer();
  for (const int micro_batches : {1, 3}) {
    for (const int chunks : {1, 4}) {
      const Schedule schedule = BuildStep(spec, {.roles = kLayout,
                                                 .pipeline = {.micro_batches = micro_batches},
                                                 .head_chunks = chunks,
                                                 .largest_suffices = false});
      double flops = 0;
      for (const int rank : {0, 1}) {
        const auto heads = TasksOfEnds(schedule, TaskKind::kHead, rank);
        ASSERT_EQ(std::ssize(heads), chunks);
        for (const Task* head : heads) flops += PerRow(head->work.flops);
        EXPECT_EQ(std::ssize(TasksOfEnds(schedule, TaskKind::kGatherLogits, rank)), chunks);
        EXPECT_EQ(std::ssize(TasksOfEnds(schedule, TaskKind::kJoinLogits, rank)),
                  rank == 0 ? chunks : 0);
      }
      EXPECT_NEAR(flops, 2.0 * 16 * 200 * micro_batches, 1e-6);
    }
  }
}

TEST(DividedHead, SendsLogitsOrTheLargest) {
  const model::ModelSpec spec = SpecOfOneLayer();
  const double others = 200 - HeadRole{0, 2}.TokensOf(200).size;
  for (const bool largest : {false, true}) {
    const Schedule schedule = BuildStep(spec, {.roles = kLayout, .largest_suffices = largest});
    const Task& gather = *TasksOfEnds(schedule, TaskKind::kGatherLogits, 1).front();
    EXPECT_EQ(PerRow(gather.work.link_bytes), largest ? kLargestBytes : 4 * others);
    EXPECT_EQ(PerRow(TasksOfEnds(schedule, TaskKind::kGatherLogits, 0).front()->work.link_bytes),
              0);
  }
}

// A rank that executes the schedule has the same tasks as it has in that of all.
TEST(DividedHead, OneRankBuildsItsOwnTasks) {
  const model::ModelSpec spec = SpecOfOneLayer();
  const Schedule all = BuildStep(spec, {.roles = kLayout, .head_chunks = 3});
  for (const int rank : {0, 1}) {
    const Schedule own = BuildStep(spec, {.roles = kLayout, .head_chunks = 3, .only_rank = rank});
    for (const TaskKind kind : {TaskKind::kHead, TaskKind::kGatherLogits, TaskKind::kJoinLogits}) {
      const auto there = TasksOfEnds(all, kind, rank);
      const auto here = TasksOfEnds(own, kind, rank);
      ASSERT_EQ(here.size(), there.size());
      for (size_t i = 0; i < here.size(); ++i) {
        EXPECT_EQ(schedule::Label(*here[i]), schedule::Label(*there[i]));
        EXPECT_EQ(here[i]->collective, there[i]->collective);
      }
    }
  }
}

}  // namespace
}  // namespace convene::strategy
