#include "strategy/attention_sizes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <vector>

namespace convene::strategy {
namespace {

using schedule::SizeKind;

// The same, position by position.
double CountSlowly(SizeKind kind, bool wanted, const AttentionShape& shape,
                   const std::vector<SequenceRows>& sequences) {
  double sum = 0;
  for (const SequenceRows& sequence : sequences) {
    const int64_t end = sequence.first_position + sequence.num_tokens;
    std::set<int64_t> cached;
    std::set<int64_t> expanded;
    int64_t tokens = 0;
    for (int64_t position = sequence.first_position; position < end; ++position) {
      if (wanted && position < end - sequence.num_wanted) continue;
      const bool is_expanded = sequence.is_expanded && position < sequence.prompt_length;
      int64_t first = 0;
      if (shape.window > 0) first = std::max<int64_t>(0, position - shape.window + 1);
      const int64_t last = shape.causal ? position : end - 1;
      ++tokens;
      for (int64_t key = first; key <= last; ++key) {
        cached.insert(key);
        if (is_expanded) expanded.insert(key);
        sum += kind == SizeKind::kKeys || (kind == SizeKind::kExpandedKeys && is_expanded);
      }
      sum += kind == SizeKind::kTokens || (kind == SizeKind::kExpandedTokens && is_expanded);
      if (kind == SizeKind::kInputKeys) sum += static_cast<double>(sequence.input_length);
    }
    if (kind == SizeKind::kCached) sum += static_cast<double>(cached.size());
    if (kind == SizeKind::kExpandedCached) sum += static_cast<double>(expanded.size());
    if (kind == SizeKind::kInputCached && tokens > 0) {
      sum += static_cast<double>(sequence.input_length);
    }
  }
  return sum;
}

TEST(AttentionSizes, AreThoseCountedPositionByPosition) {
  std::mt19937 random(5);
  const auto upto = [&](int most) {
    return std::uniform_int_distribution<int64_t>(0, most)(random);
  };
  for (int trial = 0; trial < 300; ++trial) {
    std::vector<SequenceRows> sequences;
    for (int i = 0; i < 3; ++i) {
      const int64_t num_tokens = 1 + upto(12);
      sequences.push_back({.first_position = upto(15),
                           .num_tokens = num_tokens,
                           .num_wanted = std::min(num_tokens, upto(3)),
                           .is_expanded = upto(1) == 1,
                           .prompt_length = upto(30),
                           .input_length = upto(9)});
    }
    const AttentionShape shape{.window = static_cast<int>(upto(2) * 4)};
    for (const SizeKind kind :
         {SizeKind::kTokens, SizeKind::kKeys, SizeKind::kCached, SizeKind::kExpandedTokens,
          SizeKind::kExpandedKeys, SizeKind::kExpandedCached, SizeKind::kInputKeys,
          SizeKind::kInputCached}) {
      for (const bool wanted : {false, true}) {
        EXPECT_EQ(CountAttention(kind, wanted, shape, sequences),
                  CountSlowly(kind, wanted, shape, sequences))
            << schedule::Name(kind) << (wanted ? " wanted" : "") << " window " << shape.window;
      }
    }
  }
}

TEST(AttentionSizes, AnEncodersTokensSeeTheirWholeInput) {
  const std::vector<SequenceRows> sequences = {{.num_tokens = 7}, {.num_tokens = 3}};
  const AttentionShape shape{.causal = false};
  EXPECT_EQ(CountAttention(SizeKind::kKeys, false, shape, sequences), 49 + 9);
  EXPECT_EQ(CountAttention(SizeKind::kCached, false, shape, sequences), 10);
}

}  // namespace
}  // namespace convene::strategy
