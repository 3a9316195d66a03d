#include "planner/unmet_limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "planner/asked_question_test.h"
#include "planner/plan_search_test.h"

namespace convene::planner {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// 0: the words are not there.
double NumberBehind(const std::string& words, const std::string& text) {
  const size_t at = text.find(words);
  return at == std::string::npos ? 0 : std::stod(text.substr(at + words.size()));
}

// That some number of ranks has too little memory is not why no plan is left.
TEST(WhyTooManyArrive, NamesARateThatWouldDo) {
  Asked asked(1e9, {1, 2});
  asked.question.memory_per_rank = [](int) { return uint64_t{10} << 20; };  // not for one rank
  asked.workload.arrival_rate = 1e6;
  const std::string error = ErrorOf(asked);
  EXPECT_THAT(error, AllOf(HasSubstr("no plan keeps up with 1,000,000 requests per second"),
                           HasSubstr("2 ranks"), Not(HasSubstr("fits nowhere"))));
  const double rate = NumberBehind("does with up to ", error);
  asked.workload.arrival_rate = 0.98 * rate;
  EXPECT_TRUE(SearchPlan(asked.question).ok());
  // Others may be found for a lower rate than for the one that was asked for, but the one that is
  // named does no more.
  asked.workload.arrival_rate = 1.05 * rate;
  const Result<PlanAnswer> beyond = SearchPlan(asked.question);
  if (beyond) {
    EXPECT_THAT(error, Not(HasSubstr(Describe(beyond->candidates[beyond->chosen]) + ", does")));
  }
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
  const double seconds = NumberBehind("sequence ", error);
  asked.workload.limits.time_per_token = 1.001 * seconds;
  EXPECT_TRUE(SearchPlan(asked.question).ok()) << error;
}

}  // namespace
}  // namespace convene::planner
