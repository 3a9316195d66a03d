#include "strategy/attention_sizes.h"

#include <algorithm>

#include "base/check.h"

namespace convene::strategy {
namespace {

using schedule::SizeKind;

// Tokens at positions [begin, end).
struct Positions {
  int64_t begin = 0;
  int64_t end = 0;

  bool empty() const { return begin >= end; }
  double count() const { return empty() ? 0 : static_cast<double>(end - begin); }
};

// 1 + 2 + ... + n.
double SumTo(int64_t n) { return 0.5 * static_cast<double>(n) * static_cast<double>(n + 1); }

double Keys(const AttentionShape& shape, const SequenceRows& sequence, Positions tokens) {
  if (tokens.empty()) return 0;
  if (!shape.causal) return tokens.count() * static_cast<double>(sequence.num_tokens);
  const int64_t window = shape.window > 0 ? shape.window : tokens.end;
  // Those before `full` see all keys up to themselves.
  const int64_t full = std::clamp(window, tokens.begin, tokens.end);
  return SumTo(full) - SumTo(tokens.begin) +
         static_cast<double>(tokens.end - full) * static_cast<double>(window);
}

double Cached(const AttentionShape& shape, const SequenceRows& sequence, Positions tokens) {
  if (tokens.empty()) return 0;
  if (!shape.causal) return static_cast<double>(sequence.num_tokens);
  const int64_t first =
      shape.window > 0 ? std::max<int64_t>(0, tokens.begin - shape.window + 1) : 0;
  return static_cast<double>(tokens.end - first);
}

double CountOne(SizeKind kind, bool wanted, const AttentionShape& shape,
                const SequenceRows& sequence) {
  const int64_t end = sequence.first_position + sequence.num_tokens;
  const int64_t count = wanted ? sequence.num_wanted : sequence.num_tokens;
  const Positions all{end - std::min(count, sequence.num_tokens), end};
  const Positions expanded{all.begin,
                           sequence.is_expanded ? std::min(end, sequence.prompt_length) : 0};
  switch (kind) {
    case SizeKind::kTokens:
      return all.count();
    case SizeKind::kKeys:
      return Keys(shape, sequence, all);
    case SizeKind::kCached:
      return Cached(shape, sequence, all);
    case SizeKind::kExpandedTokens:
      return expanded.count();
    case SizeKind::kExpandedKeys:
      return Keys(shape, sequence, expanded);
    case SizeKind::kExpandedCached:
      return Cached(shape, sequence, expanded);
    case SizeKind::kInputKeys:
      return all.count() * static_cast<double>(sequence.input_length);
    case SizeKind::kInputCached:
      return all.empty() ? 0 : static_cast<double>(sequence.input_length);
    default:
      CHECK(false, "{} is no size of attention", schedule::Name(kind));
  }
}

}  // namespace

double CountAttention(SizeKind kind, bool wanted, const AttentionShape& shape,
                      std::span<const SequenceRows> sequences) {
  double sum = 0;
  for (const SequenceRows& sequence : sequences) sum += CountOne(kind, wanted, shape, sequence);
  return sum;
}

}  // namespace convene::strategy
