#include "cli/plan_changes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "planner/invented_costs_test.h"

namespace convene::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// What rounds of a plan of two ranks that divide whole experts.
std::string ChangesBy(plan::Wire wire, const std::string& weights) {
  const model::ModelSpec spec = planner::InventedSpec(2);
  const planner::Workload workload;
  const cost::MachineProfile profile;
  const planner::MeasuredSource source(profile);
  const planner::PlanQuestion question{
      .spec = spec, .workload = workload, .source = source, .num_ranks = 2};
  planner::Candidate candidate{.setup = {2, 1, weights}};
  candidate.plan.layout = {.attention_dp = 2, .expert_ep = 2};
  candidate.plan.wire = wire;
  return JoinedChangesOf(question, candidate, /*usual_format=*/weights);
}

TEST(PlanChanges, WhatAWireChangesDependsOnTheActivations) {
  EXPECT_EQ(ChangesBy(plan::Wire::kF32, "bf16"), "");
  EXPECT_EQ(ChangesBy(plan::Wire::kF32, "int8"), "");
  EXPECT_THAT(ChangesBy(plan::Wire::kBf16, "bf16"),
              AllOf(HasSubstr("0.2 to 0.4 %"), Not(HasSubstr("int8"))));
  EXPECT_THAT(ChangesBy(plan::Wire::kFp8, "bf16"),
              AllOf(HasSubstr("0.7 to 2.5 %"), Not(HasSubstr("int8"))));
  for (const char* integers : {"int8", "int4"}) {
    EXPECT_THAT(ChangesBy(plan::Wire::kBf16, integers),
                AllOf(HasSubstr("rounded to bf16"), HasSubstr("int8 activations"),
                      HasSubstr("0.8 to 1.2 %")));
    // The same rows, under another name.
    EXPECT_THAT(ChangesBy(plan::Wire::kFp8, integers),
                AllOf(HasSubstr("rounded to fp8 (with int8 activations the same as bf16"),
                      HasSubstr("0.8 to 1.2 %")));
    EXPECT_THAT(ChangesBy(plan::Wire::kFp8Both, integers),
                AllOf(HasSubstr("int8 activations"), HasSubstr("1.1 to 2.4 %")));
  }
}

}  // namespace
}  // namespace convene::cli
