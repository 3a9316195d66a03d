#include "planner/unmet_limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>

#include "planner/asked_question_test.h"
#include "planner/plan_search_test.h"

namespace convene::planner {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// That some number of ranks has too little memory is not why no plan is left.
TEST(WhyTooManyArrive, NamesARateThatWouldDo) {
  Asked asked(1e9, {1, 2});
  asked.question.memory_per_rank = [](int) { return uint64_t{10} << 20; };  // not for one rank
  asked.workload.arrival_rate = 1e6;
  const std::string error = ErrorOf(asked);
  EXPECT_THAT(error, AllOf(HasSubstr("no plan keeps up with 1,000,000 requests per second"),
                           HasSubstr("2 ranks"), Not(HasSubstr("fits nowhere"))));
  double rate = 0;
  const size_t at = error.find("does with up to ");
  ASSERT_NE(at, std::string::npos) << error;
  ASSERT_EQ(std::sscanf(error.c_str() + at, "does with up to %lf", &rate), 1);
  asked.workload.arrival_rate = 0.98 * rate;
  EXPECT_TRUE(SearchPlan(asked.question).ok());
  asked.workload.arrival_rate = 1.05 * rate;
  EXPECT_FALSE(SearchPlan(asked.question).ok());
}

TEST(WhyTooManyArrive, IsNoReasonWhereNothingFits) {
  Asked asked(1e9, {1, 2});
  asked.question.memory_per_rank = [](int) { return uint64_t{1} << 20; };
  asked.workload.arrival_rate = 1e6;
  EXPECT_THAT(ErrorOf(asked), HasSubstr("fits nowhere"));
}

// Limits that the named plan keeps can then be asked for.
TEST(WhyLimitsAreUnmet, TheNearestPlanIsOneThatMayBeChosen) {
  Asked asked(1e10);
  asked.workload.objective = Objective::kGoodput;
  asked.workload.limits.time_per_token = 1e-9;
  const std::string error = ErrorOf(asked);
  double seconds = 0;
  const size_t at = error.find("sequence ");
  ASSERT_NE(at, std::string::npos) << error;
  ASSERT_EQ(std::sscanf(error.c_str() + at, "sequence %lf", &seconds), 1);
  asked.workload.limits.time_per_token = 1.001 * seconds;
  EXPECT_TRUE(SearchPlan(asked.question).ok()) << error;
}

}  // namespace
}  // namespace convene::planner
