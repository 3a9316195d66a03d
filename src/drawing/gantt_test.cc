#include "drawing/gantt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace convene::drawing {
namespace {

using testing::HasSubstr;
using testing::Not;

TracedStep StepToDraw() {
  TracedStep step = {.name = "a < b & c"};
  step.schedule.num_ranks = 2;
  for (int rank = 0; rank < 2; ++rank) {
    step.schedule.tasks.push_back({.kind = schedule::TaskKind::kExperts,
                                   .lane = {rank, schedule::LaneKind::kCompute},
                                   .layer = 3});
    step.schedule.tasks.push_back({.kind = schedule::TaskKind::kDispatch,
                                   .lane = {rank, schedule::LaneKind::kSend},
                                   .layer = 3,
                                   .collective = 0});
  }
  step.predicted.tasks = {{0, 0.001}, {0.001, 0.002}, {0, 0.001}, {0.001, 0.002}};
  step.measured.tasks = {{0, 0.001}, {0.001, 0.0025}, {0, 0.002}, {0.002, 0.0025}};
  return step;
}

int Count(const std::string& text, std::string_view part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(Gantt, HasARowPerLaneAndATooltipPerTaskAndTimeline) {
  const std::string svg = GanttSvg(StepToDraw());
  EXPECT_EQ(Count(svg, "<title>"), 8);
  EXPECT_EQ(Count(svg, ">compute</text>"), 2);
  EXPECT_EQ(Count(svg, ">send</text>"), 2);
  EXPECT_EQ(Count(svg, ">host</text>"), 0);
  EXPECT_THAT(svg, HasSubstr("dispatch L3, rank 0 send&#10;predicted 1 ms, from 1 ms to 2 ms&#10;"
                             "measured 1.5 ms, from 1 ms to 2.5 ms"));
  EXPECT_THAT(svg, HasSubstr("measured 2.5 ms (lower half): +25.0 %"));
}

TEST(Gantt, SaysWhatThePredictionIsFrom) {
  TracedStep step = StepToDraw();
  step.predicted_by = "costs of <5 steps";
  EXPECT_THAT(GanttSvg(step), HasSubstr("; predicted by costs of &lt;5 steps"));
}

TEST(Gantt, NamesAreHarmless) {
  const std::string svg = GanttSvg(StepToDraw());
  EXPECT_THAT(svg, HasSubstr("a &lt; b &amp; c"));
}

TEST(Gantt, WaitingForOtherRanksIsAThinLine) {
  EXPECT_EQ(Count(GanttSvg(StepToDraw()), "height=\"2\""), 1);  // rank 0, measured
}

TEST(Gantt, OneTimelineHasTheWholeRow) {
  TracedStep step = StepToDraw();
  step.measured = {};
  const std::string svg = GanttSvg(step);
  EXPECT_EQ(Count(svg, "<title>"), 4);
  EXPECT_THAT(svg, Not(HasSubstr("measured")));
}

TEST(Gantt, NothingCanBeDrawnToo) {
  EXPECT_THAT(GanttSvg({}), HasSubstr("</svg>"));
  TracedStep step = StepToDraw();
  step.predicted = {};
  step.measured = {};
  EXPECT_THAT(GanttSvg(step), HasSubstr("</svg>"));
}

}  // namespace
}  // namespace convene::drawing
