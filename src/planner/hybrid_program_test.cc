#include "planner/hybrid_program.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "planner/cbc/solve_hybrid.h"

namespace convene::planner {
namespace {

HybridProgram RandomProgram(std::mt19937& random) {
  const auto uniform = [&](double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random);
  };
  const int num_attention = std::uniform_int_distribution<int>(1, 4)(random);
  const int num_experts = std::uniform_int_distribution<int>(1, 4)(random);
  const auto list = [&](int size, double low, double high) {
    std::vector<double> values(size);
    for (double& value : values) value = uniform(low, high);
    return values;
  };
  const auto phase = [&](double scale) {
    PhaseCosts costs{.attention = list(num_attention, 0, scale),
                     .experts = list(num_experts, 0, scale),
                     .between = {}};
    for (int a = 0; a < num_attention; ++a) {
      costs.between.push_back(list(num_experts, -0.2 * scale, scale));
    }
    return costs;
  };
  HybridProgram program{.num_layers = 32,
                        .prefill_steps = uniform(1, 4),
                        .decode_steps = uniform(1, 2048),
                        .prefill = phase(1e-2),
                        .decode = phase(1e-4),
                        .transition = {}};
  for (int a = 0; a < num_attention; ++a) {
    auto& of_attention = program.transition.emplace_back();
    for (int p = 0; p < num_experts; ++p) {
      of_attention.push_back(list(num_experts, 0, 2));
      of_attention[p][p] = 0;
      for (double& seconds : of_attention[p]) {
        if (uniform(0, 1) < 0.1) seconds = std::numeric_limits<double>::infinity();
      }
    }
  }
  for (const char* name : {"prefill", "decode"}) {
    program.memory.push_back({.name = name,
                              .attention = list(num_attention, 0, 40e9),
                              .prefill = list(num_experts, 0, 40e9),
                              .decode = list(num_experts, 0, 10e9),
                              .capacity = uniform(30e9, 90e9)});
  }
  for (int a = 0; a < num_attention; ++a) {
    auto& of_attention = program.memory.back().together.emplace_back();
    for (int p = 0; p < num_experts; ++p) of_attention.push_back(list(num_experts, 0, 10e9));
  }
  return program;
}

TEST(HybridProgram, ItsOptimumIsThatOfTryingAllTriples) {
  std::mt19937 random(17);
  int num_infeasible = 0;
  for (int i = 0; i < 1000; ++i) {
    const HybridProgram program = RandomProgram(random);
    const auto solved = SolveHybrid(program);
    ASSERT_TRUE(solved.ok()) << solved.error().message;
    const std::optional<HybridTriple> best = SolveByEnumeration(program);
    ASSERT_EQ(solved->has_value(), best.has_value()) << i;
    if (!best) {
      ++num_infeasible;
      continue;
    }
    EXPECT_TRUE(IsFeasible(program, **solved)) << i;
    EXPECT_LE(SecondsOf(program, **solved), SecondsOf(program, *best) * (1 + 1e-9)) << i;
  }
  // Both kinds of instances were among them.
  EXPECT_GT(num_infeasible, 10);
  EXPECT_LT(num_infeasible, 900);
}

TEST(HybridProgram, CountsWhatIsBetweenAndTheTransition) {
  const HybridProgram program{.num_layers = 2,
                              .prefill_steps = 3,
                              .decode_steps = 10,
                              .prefill = {{1}, {2, 4}, {{5, 7}}},
                              .decode = {{0.1}, {0.4, 0.2}, {{0.3, 0.6}}},
                              .transition = {{{0, 11}, {13, 0}}}};
  EXPECT_DOUBLE_EQ(SecondsOf(program, {0, 0, 1}), 2 * (3 * 8.0 + 10 * 0.9) + 11);
  EXPECT_EQ(*SolveByEnumeration(program), (HybridTriple{0, 0, 0}));
}

TEST(HybridProgram, TablesThatDoNotBelongTogetherAreRefused) {
  std::mt19937 random(1);
  HybridProgram program = RandomProgram(random);
  program.decode.experts.push_back(1);
  EXPECT_FALSE(SolveHybrid(program).ok());
  program = RandomProgram(random);
  program.transition[0][0][0] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_FALSE(SolveHybrid(program).ok());
  program = RandomProgram(random);
  program.memory[0].capacity = 0;
  EXPECT_FALSE(SolveHybrid(program).ok());
}

}  // namespace
}  // namespace convene::planner
