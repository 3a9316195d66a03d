#include "runtime/cut_step.h"

#include <gtest/gtest.h>

#include <numeric>

namespace convene::runtime {
namespace {

std::vector<int32_t> Tokens(int count) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), 100);
  return tokens;
}

TEST(CutStep, SequencesOfOneTokenStayWhole) {
  const std::vector<int32_t> tokens = Tokens(1);
  std::vector<device::SequenceStep> step(5, {.tokens = tokens, .first_position = 7, .blocks = {}});
  step[1].group = 1;
  EXPECT_EQ(CountRows(step, 0), 4);
  EXPECT_EQ(CutStep(step, 0, 0, 2).size(), 2u);
  EXPECT_EQ(CutStep(step, 0, 1, 2).size(), 2u);
  EXPECT_EQ(CutStep(step, 1, 0, 2).size() + CutStep(step, 1, 1, 2).size(), 1u);
}

TEST(CutStep, ALongSequenceIsCutAsIfItCameInSeveralSteps) {
  const std::vector<int32_t> tokens = Tokens(10);
  const std::vector<device::SequenceStep> step = {{.tokens = tokens,
                                                   .first_position = 64,
                                                   .blocks = {},
                                                   .prompt_length = 80,
                                                   .first_logits_token = 9}};
  const std::vector<device::SequenceStep> first = CutStep(step, 0, 0, 3);
  const std::vector<device::SequenceStep> last = CutStep(step, 0, 2, 3);
  ASSERT_EQ(first.size(), 1u);
  EXPECT_EQ(first[0].tokens.size(), 3u);
  EXPECT_EQ(first[0].first_position, 64);
  EXPECT_EQ(first[0].first_logits_token, 3);  // none
  ASSERT_EQ(last.size(), 1u);
  EXPECT_EQ(last[0].tokens.front(), 106);
  EXPECT_EQ(last[0].first_position, 70);
  EXPECT_EQ(last[0].first_logits_token, 3);
  EXPECT_EQ(last[0].prompt_length, 80);
}

TEST(CutStep, EveryRowIsInOnePartInItsOrder) {
  const std::vector<int32_t> tokens = Tokens(17);
  std::vector<device::SequenceStep> step;
  for (const size_t size : {size_t{5}, size_t{1}, size_t{17}, size_t{2}}) {
    step.push_back({.tokens = std::span(tokens).first(size), .first_position = 3, .blocks = {}});
  }
  for (int parts = 1; parts <= 30; ++parts) {
    std::vector<int> positions;
    for (int part = 0; part < parts; ++part) {
      for (const device::SequenceStep& piece : CutStep(step, 0, part, parts)) {
        for (size_t i = 0; i < piece.tokens.size(); ++i) {
          EXPECT_EQ(piece.tokens[i] - 100, piece.first_position + static_cast<int>(i) - 3);
          positions.push_back(piece.first_position + static_cast<int>(i));
        }
      }
    }
    ASSERT_EQ(positions.size(), 25u) << parts;
    EXPECT_EQ(positions[5], 3);
    EXPECT_EQ(positions[6], 3);
    EXPECT_EQ(positions[23], 3);
  }
}

}  // namespace
}  // namespace convene::runtime
