// What one rendering of a template may cost at most, and how deep a template may nest.
// It is not a policy about what templates may say.
#pragma once

#include <cstddef>

namespace convene::jinja {

struct Limits {
  // Evaluated nodes, plus one per 16 bytes of text worked on: some seconds of one core.
  size_t max_steps = 50'000'000;
  // Text under construction, all nested captures (macros, set blocks) together.
  size_t max_output_bytes = size_t{64} << 20;
  // Values alive at the same time, the conversation included.
  size_t max_live_bytes = size_t{512} << 20;
};

// Nested statements and parentheses of a source, as parsed.
inline constexpr int kMaxSourceNesting = 100;
// Depth of an expression's tree; a chain of operators such as a + b + c is a deep tree, too.
inline constexpr int kMaxExpressionDepth = 400;
// Statements, expressions and macro calls being evaluated inside one another. Python gives up at
// about 200 nested macro calls, and so does this.
inline constexpr int kMaxEvaluationDepth = 1500;
// Lists in lists (in dicts, ...), so that printing, comparing and freeing them cannot overflow the
// stack.
inline constexpr int kMaxValueDepth = 200;
inline constexpr size_t kMaxSourceBytes = size_t{4} << 20;
// The limit of the sandbox that transformers renders in.
inline constexpr long long kMaxRangeLength = 100'000;

}  // namespace convene::jinja
