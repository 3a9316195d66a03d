#include "planner/disaggregated_solver.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace convene::planner {
namespace {

using strategy::AttentionOrder;

// Instances of all sorts: one task or another the longest, large and small fixed costs.
class RandomInstances {
 public:
  DisaggregatedLines Lines() {
    DisaggregatedLines lines{.attention = One(),
                             .counts = Uniform(0, 1) < 0.5 ? 0 : Uniform(0, 0.2),
                             .dispatch = One(),
                             .experts = One(),
                             .combine = One(),
                             .num_layers = Whole(1, 9)};
    if (Uniform(0, 1) < 0.7) lines.shared = One();
    // The paper's own case.
    if (Uniform(0, 1) < 0.3) lines.combine = lines.dispatch;
    return lines;
  }
  DisaggregatedQuestion Question() {
    return {.lines = Lines(),
            .attention_ranks = Whole(1, 8),
            .max_sequences = Whole(1, 16),
            .rows_per_sequence = std::floor(std::exp2(Uniform(0, 12))),
            .most_chunks = Whole(1, 20)};
  }
  int Whole(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }

 private:
  double Uniform(double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random_);
  }
  Line One() { return {.once = std::exp2(Uniform(-6, 1)), .per_row = std::exp2(Uniform(-12, -6))}; }

  std::mt19937 random_{7};
};

TEST(DisaggregatedPipeline, TheClosedFormIsTheTimeline) {
  RandomInstances random;
  for (int i = 0; i < 20000; ++i) {
    const DisaggregatedLines lines = random.Lines();
    const DisaggregatedPipeline pipeline{
        .micro_batches = random.Whole(1, 6),
        .chunks = random.Whole(1, 6),
        .order = random.Whole(0, 1) == 0 ? AttentionOrder::kAsas : AttentionOrder::kAass,
        .dispatch_after_shared = random.Whole(0, 5) == 0};
    const double rows = random.Whole(6, 4000);
    const double timeline = RunLanes(lines, pipeline, rows).seconds;
    ASSERT_NEAR(ClosedFormSeconds(lines, pipeline, rows) / timeline, 1, 1e-9)
        << Words(pipeline) << ", instance " << i;
  }
}

TEST(DisaggregatedPipeline, WithoutPipeliningEverythingThatTravelsIsWaitedFor) {
  const DisaggregatedLines lines{.attention = {1, 0},
                                 .shared = {2, 0},
                                 .counts = 0.25,
                                 .dispatch = {0.5, 0},
                                 .experts = {3, 0},
                                 .combine = {0.75, 0},
                                 .num_layers = 4};
  const LaneTimes naive = RunLanes(lines, {.dispatch_after_shared = true}, 8);
  EXPECT_DOUBLE_EQ(naive.seconds, 4 * 7.5);
  EXPECT_DOUBLE_EQ(naive.attention_busy, 4 * 3);
  EXPECT_DOUBLE_EQ(naive.experts_busy, 4 * 3);
  EXPECT_DOUBLE_EQ(naive.exposed, 4 * 1.5);
  // The shared expert beside what travels: it hides all of A2E, and nothing of E2A.
  const LaneTimes fine = RunLanes(lines, {}, 8);
  EXPECT_DOUBLE_EQ(fine.seconds, 4 * 5.5);
  EXPECT_DOUBLE_EQ(fine.exposed, 4 * 0.75);
}

TEST(DisaggregatedSolver, IsWithinAHundredthOfBruteForceOnAThousandInstances) {
  RandomInstances random;
  double worst = 0;
  double sum = 0;
  constexpr int kInstances = 1000;
  for (int i = 0; i < kInstances; ++i) {
    const DisaggregatedQuestion question = random.Question();
    const DisaggregatedChoice solved = SolveDisaggregated(question);
    const DisaggregatedChoice best = SolveByBruteForce(question);
    const double gap = best.rows_per_second / solved.rows_per_second - 1;
    ASSERT_LE(gap, 0.01) << "instance " << i << ": " << Words(solved.pipeline) << " of "
                         << solved.sequences << ", best " << Words(best.pipeline) << " of "
                         << best.sequences;
    worst = std::max(worst, gap);
    sum += gap;
  }
  RecordProperty("worst_gap", fmt::format("{:.2g}", worst));
  RecordProperty("mean_gap", fmt::format("{:.2g}", sum / kInstances));
  fmt::print("gap to brute force: {:.2g} at worst, {:.2g} in the mean\n", worst, sum / kInstances);
}

TEST(DisaggregatedSolver, IsNeverSlowerThanItsBaselines) {
  RandomInstances random;
  for (int i = 0; i < 1000; ++i) {
    const DisaggregatedQuestion question = random.Question();
    const double fine = SolveDisaggregated(question).rows_per_second;
    EXPECT_GE(fine * (1 + 1e-12), SolvePingPong(question).rows_per_second) << i;
    EXPECT_GE(fine * (1 + 1e-12), SolveNaive(question).rows_per_second) << i;
  }
}

// Theorems 1 to 3 of the paper.
TEST(DisaggregatedSolver, RowsPerSecondRiseWithSequencesAndWithMicroBatches) {
  RandomInstances random;
  for (int i = 0; i < 300; ++i) {
    DisaggregatedQuestion question = random.Question();
    double of_sequences = 0;
    double of_micro_batches = 0;
    for (const int count : {1, 2, 4, 8}) {
      question.most_micro_batches = 1;
      question.max_sequences = count;
      const double by_sequences = SolveDisaggregated(question).rows_per_second;
      EXPECT_GE(by_sequences * (1 + 1e-12), of_sequences);
      of_sequences = by_sequences;
      question.max_sequences = 1;
      question.most_micro_batches = 64;
      const double rows = question.rows_per_sequence * count;
      // With one sequence in each of `count` micro-batches.
      DisaggregatedPipeline pipeline{.micro_batches = count};
      pipeline.chunks =
          BestChunks(question.lines, pipeline, question.rows_per_sequence, question.most_chunks);
      const double by_micro_batches =
          rows / RunLanes(question.lines, pipeline, question.rows_per_sequence).seconds;
      EXPECT_GE(by_micro_batches * (1 + 1e-12), of_micro_batches);
      of_micro_batches = by_micro_batches;
    }
  }
}

TEST(DisaggregatedSolver, AStepIsCutWholeAndChunksHaveARowAtLeast) {
  RandomInstances random;
  for (int i = 0; i < 200; ++i) {
    DisaggregatedQuestion question = random.Question();
    const double rows = random.Whole(1, 50);
    const DisaggregatedChoice choice = SolveStep(question, rows);
    EXPECT_LE(choice.pipeline.micro_batches * choice.pipeline.chunks, rows);
    EXPECT_NEAR(choice.sequences * question.rows_per_sequence * choice.pipeline.micro_batches, rows,
                1e-9);
    for (const int r1 : {1, 2, 5}) {
      for (const int r2 : {1, 2, 7}) {
        if (r1 * r2 > rows || r2 > question.most_chunks) continue;
        EXPECT_LE(choice.seconds * (1 - 1e-12),
                  RunLanes(question.lines, {.micro_batches = r1, .chunks = r2}, rows / r1).seconds);
      }
    }
  }
}

TEST(DisaggregatedSolver, ProposesTheBestOfEachNumberOfMicroBatches) {
  RandomInstances random;
  for (int i = 0; i < 100; ++i) {
    const DisaggregatedQuestion question = random.Question();
    const std::vector<DisaggregatedChoice> walk = ProposeDisaggregated(question);
    EXPECT_EQ(walk.front().pipeline, SolveDisaggregated(question).pipeline);
    const std::vector<DisaggregatedChoice> step = ProposeStep(question, 100);
    EXPECT_EQ(std::ssize(step), strategy::kMostMicroBatches);
    EXPECT_EQ(step.front().pipeline, SolveStep(question, 100).pipeline);
    for (const auto* proposals : {&walk, &step}) {
      std::vector<int> micro_batches;
      for (size_t k = 0; k < proposals->size(); ++k) {
        const DisaggregatedChoice& choice = (*proposals)[k];
        micro_batches.push_back(choice.pipeline.micro_batches);
        if (k > 0) {
          EXPECT_LE(choice.rows_per_second, (*proposals)[k - 1].rows_per_second);
        }
      }
      std::sort(micro_batches.begin(), micro_batches.end());
      EXPECT_EQ(std::unique(micro_batches.begin(), micro_batches.end()), micro_batches.end());
    }
  }
}

TEST(DisaggregatedSolver, TellsTheTokensOfAnExpert) {
  const DisaggregatedQuestion question{.attention_ranks = 3, .rows_per_sequence = 2048};
  const DisaggregatedChoice choice{.pipeline = {.micro_batches = 2, .chunks = 4}, .sequences = 2};
  EXPECT_DOUBLE_EQ(RowsOfExpert(question, choice, 6, 160), 3 * 2 * 2048 * 6 / (4.0 * 160));
}

}  // namespace
}  // namespace convene::planner
