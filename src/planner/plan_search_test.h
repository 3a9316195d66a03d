// What tests of the search share besides costs: asking, and what was chosen.
#pragma once

#include <gtest/gtest.h>

#include "planner/plan_search.h"

namespace convene::planner {

// `asked` has the question.
template <typename Asked>
PlanAnswer Search(const Asked& asked) {
  const Result<PlanAnswer> answer = SearchPlan(asked.question);
  EXPECT_TRUE(answer.ok()) << answer.error().message;
  return answer ? *answer : PlanAnswer{};
}

inline const Candidate& ChosenOf(const PlanAnswer& answer) {
  return answer.candidates[answer.chosen];
}

}  // namespace convene::planner
