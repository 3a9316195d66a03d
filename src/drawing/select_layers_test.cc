#include "drawing/select_layers.h"

#include <gtest/gtest.h>

namespace convene::drawing {
namespace {

using schedule::TaskKind;

TracedStep Step() {
  TracedStep step;
  step.schedule.tasks = {{.kind = TaskKind::kEmbed},
                         {.kind = TaskKind::kAttention, .layer = 0, .after = {0}},
                         {.kind = TaskKind::kRoute, .layer = 1, .after = {1}},
                         {.kind = TaskKind::kExperts, .layer = 1, .after = {1, 2}},
                         {.kind = TaskKind::kHead, .after = {3}}};
  step.measured.tasks = {{0, 1}, {1, 3}, {3, 4}, {}, {5, 6}};
  return step;
}

TEST(SelectLayers, KeepsTheirTasksAndBeginsAtZero) {
  const TracedStep part = SelectLayers(Step(), 1, 1);
  EXPECT_EQ(ToText(part.schedule), "r0 compute route L1\nr0 compute experts L1 <- r0 route L1\n");
  ASSERT_EQ(part.measured.tasks.size(), 2);
  EXPECT_EQ(part.measured.tasks[0].start, 0);
  EXPECT_EQ(part.measured.tasks[0].end, 1);
  EXPECT_LT(part.measured.tasks[1].end, part.measured.tasks[1].start);  // did not run
  EXPECT_TRUE(part.predicted.tasks.empty());
  EXPECT_TRUE(schedule::Validate(part.schedule).ok());
}

TEST(SelectLayers, OfNoneThereIsNothing) {
  EXPECT_TRUE(SelectLayers(Step(), 7, 9).schedule.tasks.empty());
  EXPECT_EQ(NumLayers(Step().schedule), 2);
  EXPECT_EQ(NumLayers({}), 0);
}

}  // namespace
}  // namespace convene::drawing
