#include "evaluate/scored_text.h"

#include <gtest/gtest.h>

namespace convene::evaluate {
namespace {

TEST(ScoredText, IsCutIntoWindowsWhoseFirstTokensAreNotScored) {
  for (int count = 2; count < 12; ++count) {
    const ScoredText text{.tokens = std::vector<int32_t>(static_cast<size_t>(count)), .window = 4};
    int64_t num_tokens = 0;
    int64_t num_scored = 0;
    for (const std::span<const int32_t> window : text.Windows()) {
      EXPECT_LE(window.size(), 4u);
      num_tokens += std::ssize(window);
      num_scored += std::ssize(window) - 1;
    }
    EXPECT_EQ(num_tokens, count);
    EXPECT_EQ(text.num_scored(), num_scored);
  }
}

}  // namespace
}  // namespace convene::evaluate
