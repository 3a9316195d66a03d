#include "planner/step_turns.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "planner/disaggregated_solver.h"

namespace convene::planner {
namespace {

strategy::Pipeline AtMost(int micro_batches, int chunks) {
  strategy::Pipeline most;
  most.micro_batches = micro_batches;
  most.chunks = chunks;
  return most;
}

plan::LaneLines RandomLines(std::mt19937& random, double most_rows) {
  std::uniform_real_distribution<double> once(-14, -8);
  std::uniform_real_distribution<double> per_row(-20, -14);
  const auto line = [&] {
    return plan::Line{.once = std::exp2(once(random)), .per_row = std::exp2(per_row(random))};
  };
  return {.attention = line(),
          .shared = line(),
          .counts = std::exp2(once(random)),
          .dispatch = line(),
          .experts = line(),
          .combine = line(),
          .num_layers = 8,
          .attention_per_key = std::exp2(-28),
          .most_rows = most_rows};
}

TEST(StepTurns, ClassesAreWithinAQuarter) {
  for (int64_t number : {0, 1, 7, 8, 9, 10, 100, 1023, 1024, 1 << 20}) {
    const int64_t of_class = ClassOfSize(number);
    EXPECT_LE(of_class, number);
    EXPECT_GT(5 * (of_class + 1), 4 * number) << number;
    EXPECT_EQ(ClassOfSize(of_class), of_class);
  }
}

TEST(StepTurns, SolvesOnceForStepsThatAreAlike) {
  std::mt19937 random(1);
  StepTurns turns({RandomLines(random, 4096)}, AtMost(8, 16));
  const strategy::Pipeline first = turns.For({.rows = 512, .keys = 512 * 256});
  EXPECT_EQ(turns.num_solved(), 1);
  EXPECT_EQ(turns.For({.rows = 513, .keys = 513 * 257}), first);
  EXPECT_EQ(turns.num_solved(), 1);
  turns.For({.rows = 1024, .keys = 1024 * 256});
  EXPECT_EQ(turns.num_solved(), 2);
  turns.For({.rows = 512, .keys = 512 * 1024});
  EXPECT_EQ(turns.num_solved(), 3);
}

TEST(StepTurns, AreTheSameWhateverStepsCameBefore) {
  std::mt19937 random(2);
  const std::vector<plan::LaneLines> lines = {RandomLines(random, 64), RandomLines(random, 4096)};
  StepTurns one(lines, AtMost(8, 16));
  StepTurns other(lines, AtMost(8, 16));
  std::uniform_int_distribution<int64_t> rows(1, 4096);
  std::uniform_int_distribution<int64_t> keys(1, 8192);
  std::vector<strategy::StepLoad> loads;
  for (int i = 0; i < 200; ++i) {
    const int64_t count = rows(random);
    loads.push_back({.rows = count, .keys = count * keys(random)});
  }
  std::vector<strategy::Pipeline> forwards;
  for (const strategy::StepLoad& load : loads) forwards.push_back(one.For(load));
  for (size_t i = loads.size(); i-- > 0;) EXPECT_EQ(other.For(loads[i]), forwards[i]) << i;
}

// Of all sizes of a class one answer: it is nearly as good as each size's own.
TEST(StepTurns, AreNearlyAsFastAsTheBestOfEachSize) {
  std::mt19937 random(3);
  double sum = 0;
  int count = 0;
  for (int i = 0; i < 20; ++i) {
    const plan::LaneLines lines = RandomLines(random, 4096);
    StepTurns turns({lines}, AtMost(8, 16));
    for (const int64_t rows : {1, 3, 50, 79, 511, 1791, 4095}) {
      const double keys_per_row = 300;
      const strategy::Pipeline chosen =
          turns.For({.rows = rows, .keys = static_cast<int64_t>(keys_per_row) * rows});
      EXPECT_LE(chosen.micro_batches, std::min<int64_t>(8, rows));
      EXPECT_LE(chosen.chunks, 16);
      EXPECT_LE(chosen.micro_batches * chosen.chunks, rows);
      const DisaggregatedLines with_keys = WithKeys(lines, keys_per_row);
      const DisaggregatedPipeline pipeline{
          .micro_batches = chosen.micro_batches, .chunks = chosen.chunks, .order = chosen.order};
      const double seconds =
          RunLanes(with_keys, pipeline, static_cast<double>(rows) / chosen.micro_batches).seconds;
      const double best = SolveStep({.lines = with_keys,
                                     .rows_per_sequence = 1,
                                     .most_micro_batches = 8,
                                     .most_chunks = 16},
                                    static_cast<double>(rows))
                              .seconds;
      EXPECT_LE(seconds, 1.1 * best) << rows;
      sum += seconds / best - 1;
      ++count;
    }
  }
  EXPECT_LE(sum / count, 0.01);
}

TEST(StepTurns, SmallStepsHaveLinesOfTheirOwn) {
  plan::LaneLines small{.attention = {1, 0}, .experts = {1, 0}, .num_layers = 4, .most_rows = 16};
  plan::LaneLines large{.attention = {0.1, 1},
                        .dispatch = {0.1, 1},
                        .experts = {0.1, 1},
                        .combine = {0.1, 1},
                        .num_layers = 4,
                        .most_rows = 1024};
  StepTurns turns({small, large}, AtMost(4, 4));
  // Where everything is fixed cost, nothing is gained by parts.
  EXPECT_EQ(turns.For({.rows = 16, .keys = 16}), strategy::Pipeline());
  EXPECT_GT(turns.For({.rows = 1024, .keys = 1024}).micro_batches, 1);
  // Larger than all: the last lines.
  EXPECT_GT(turns.For({.rows = 4096, .keys = 4096}).micro_batches, 1);
}

}  // namespace
}  // namespace convene::planner
