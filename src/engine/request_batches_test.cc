#include "engine/request_batches.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "engine/scheduler_test.h"
#include "strategy/layout.h"

namespace convene::engine {
namespace {

// Sequences of such lengths, of which all but the last token are in the cache, in groups in turn.
class OneTokenEach {
 public:
  OneTokenEach(const std::vector<int>& lengths, int num_groups) {
    for (size_t i = 0; i < lengths.size(); ++i) {
      auto& sequence = sequences_.emplace_back(MakeSequence(lengths[i]));
      sequence->group = static_cast<int>(i) % num_groups;
      sequence->num_computed = lengths[i] - 1;
      step.push_back({sequence.get(), 1});
    }
  }

  // By micro-batch, as the runtime cuts a group's rows.
  std::vector<int64_t> TokensOfParts(int group, int parts) const {
    std::vector<const Sequence*> of_group;
    for (const ScheduledTokens& each : step) {
      if (each.sequence->group == group) of_group.push_back(each.sequence);
    }
    std::vector<int64_t> tokens;
    for (int i = 0; i < parts; ++i) {
      const strategy::Part part = strategy::PartOf(static_cast<int>(of_group.size()), i, parts);
      int64_t sum = 0;
      for (int j = part.first; j < part.first + part.size; ++j) {
        sum += of_group[static_cast<size_t>(j)]->next_position();
      }
      tokens.push_back(sum);
    }
    return tokens;
  }

  std::vector<ScheduledTokens> step;

 private:
  std::vector<std::unique_ptr<Sequence>> sequences_;
};

TEST(RequestBatches, LongSequencesAreSpreadOverMicroBatches) {
  OneTokenEach all({901, 801, 701, 601, 11, 21, 31, 41}, 1);
  EXPECT_EQ(all.TokensOfParts(0, 2), (std::vector<int64_t>{3000, 100}));
  BalanceMicroBatches(2, &all.step);
  EXPECT_EQ(all.TokensOfParts(0, 2), (std::vector<int64_t>{1550, 1550}));
}

TEST(RequestBatches, AreBalancedWhateverTheLengthsAndEachSequenceStaysInItsGroup) {
  std::mt19937 random(5);
  for (int round = 0; round < 50; ++round) {
    const int num_groups = 1 + round % 3;
    const int parts = 2 + round % 4;
    std::vector<int> lengths(12 + random() % 60);
    for (int& length : lengths) length = 2 + static_cast<int>(random() % 500);
    OneTokenEach all(lengths, num_groups);
    std::set<const Sequence*> before;
    for (const ScheduledTokens& each : all.step) before.insert(each.sequence);
    BalanceMicroBatches(parts, &all.step);
    std::set<const Sequence*> after;
    for (const ScheduledTokens& each : all.step) after.insert(each.sequence);
    ASSERT_EQ(all.step.size(), lengths.size());
    ASSERT_EQ(before, after);
    for (int group = 0; group < num_groups; ++group) {
      // Parts may differ by one sequence, and what is left at the end.
      const std::vector<int64_t> tokens = all.TokensOfParts(group, parts);
      const auto [least, most] = std::ranges::minmax_element(tokens);
      EXPECT_LE(*most - *least, 2 * 502) << round;
    }
  }
}

TEST(RequestBatches, StepsOfOneMicroBatchAndStepsWithPromptsStay) {
  OneTokenEach all({11, 901, 21, 801}, 1);
  const auto order = [&] {
    std::vector<const Sequence*> sequences;
    for (const ScheduledTokens& each : all.step) sequences.push_back(each.sequence);
    return sequences;
  };
  const auto before = order();
  BalanceMicroBatches(1, &all.step);
  EXPECT_EQ(order(), before);
  all.step[2].num_tokens = 2;
  BalanceMicroBatches(2, &all.step);
  EXPECT_EQ(order(), before);
}

}  // namespace
}  // namespace convene::engine
