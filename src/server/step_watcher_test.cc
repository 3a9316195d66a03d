#include "server/step_watcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

namespace convene::server {
namespace {

using schedule::LaneKind;
using schedule::TaskKind;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kLabels = "model_name=\"m\"";

// Rank 0 computes for 3 of 4 seconds and sends for 1 of them; rank 1 computes for 1. Two layers,
// of which the first has experts.
runtime::RecordedStep TwoRanks() {
  auto schedule = std::make_shared<schedule::Schedule>();
  schedule->num_ranks = 2;
  const auto add = [&](TaskKind kind, int rank, LaneKind lane) {
    schedule::Task& task = schedule->tasks.emplace_back();
    task.kind = kind;
    task.lane = {rank, lane};
  };
  add(TaskKind::kAttention, 0, LaneKind::kCompute);
  add(TaskKind::kAttention, 1, LaneKind::kCompute);
  add(TaskKind::kDispatch, 0, LaneKind::kSend);
  runtime::RecordedStep step{.schedule = schedule};
  step.timeline.tasks = {{0, 3}, {0, 1}, {3, 4}};
  step.sent_bytes = {0, 0, 100};
  step.expert_tokens = {{6, 2, 0, 0}, {}};
  step.num_tokens = 4;
  step.num_sequences = 4;
  return step;
}

TEST(StepWatcher, CountsWhatAllStepsDid) {
  StepWatcher watcher;
  std::string text;
  watcher.AppendTo(text, kLabels);
  EXPECT_THAT(text, HasSubstr("convene:wire_bytes_total{model_name=\"m\"} 0\n"));
  EXPECT_THAT(text, Not(HasSubstr("layer=")));

  watcher.See(TwoRanks());
  watcher.See(TwoRanks());
  text.clear();
  watcher.AppendTo(text, kLabels);
  EXPECT_THAT(text, HasSubstr("convene:step_tasks_seconds_total{model_name=\"m\"} 8\n"));
  EXPECT_THAT(text, HasSubstr("convene:lane_idle_seconds_total{model_name=\"m\",rank=\"0\",lane="
                              "\"compute\"} 2\n"));
  EXPECT_THAT(
      text,
      HasSubstr("convene:lane_idle_ratio{model_name=\"m\",rank=\"1\",lane=\"compute\"} 0.75"));
  EXPECT_THAT(text,
              HasSubstr("convene:lane_idle_ratio{model_name=\"m\",rank=\"0\",lane=\"send\"} 0.75"));
  EXPECT_THAT(text, HasSubstr("convene:wire_bytes_total{model_name=\"m\"} 200\n"));
  EXPECT_THAT(text, HasSubstr("convene:expert_balance_ratio{model_name=\"m\",layer=\"0\"} 3\n"));
  EXPECT_THAT(text, Not(HasSubstr("layer=\"1\"")));  // has no experts
}

TEST(StepWatcher, TellsOfTheExpertsBeforeAStepWasLookedAt) {
  StepWatcher watcher;
  EXPECT_EQ(watcher.LastStepSvg(), "");
  watcher.See(TwoRanks());
  const auto last = nlohmann::json::parse(watcher.LastStepJson());
  EXPECT_TRUE(last["step"].is_null());
  EXPECT_EQ(last["experts"]["tokens"], nlohmann::json::parse("[[6, 2, 0, 0], []]"));
}

}  // namespace
}  // namespace convene::server
