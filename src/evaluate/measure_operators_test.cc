#include "evaluate/measure_operators.h"

#include <gtest/gtest.h>

#include "comm/threads/thread_group.h"

namespace convene::evaluate {
namespace {

TEST(MeasureOperators, GivesModelsThatPredict) {
  hardware::ThreadPool pool({0});
  const auto models = MeasureOperators(pool, {.budget_s = 0.01, .read_bytes_per_second = 1e10});
  ASSERT_TRUE(models.ok()) << models.error().message;
  ASSERT_EQ(models->size(), 4u);  // the disk was not asked for
  const cost::OperatorModel& copy = models->at("memory copy");
  const double features[] = {1, 1 << 22, 4096};
  EXPECT_GT(copy.Predict(features, 2.0 * (1 << 22) / 1e10).seconds, 0);
  const double words[] = {40000};
  const cost::OperatorPrediction sample = models->at("sample").Predict(words, 4 * 40000 / 1e10);
  EXPECT_GT(sample.seconds, 0);
  EXPECT_LE(sample.low, sample.high);
}

TEST(MeasureMessages, AreRankZerosToRankOne) {
  comm::RunOnThreads(3, [](comm::Group& group) {
    const auto models = MeasureMessages(group, 0.01);
    ASSERT_TRUE(models.ok()) << models.error().message;
    EXPECT_EQ(models->size(), group.rank() == 0 ? 1u : 0u);
  });
}

}  // namespace
}  // namespace convene::evaluate
