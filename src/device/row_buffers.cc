#include "device/row_buffers.h"

#include <algorithm>

#include "strategy/step.h"

namespace convene::device {

RowBuffers RowBuffers::Take(const Options& options, ExchangeMemory& memory) {
  RowBuffers buffers;
  const int64_t parts = options.roles.attention_parts();
  if (parts > 1 && options.roles.of(options.rank).owns_rows()) {
    buffers.squares = memory.TakeFloats(parts * options.most_tokens * 2);
    buffers.sums_out = memory.Take(options.most_tokens * options.sum_bytes);
    buffers.sums_in = memory.Take(parts * options.most_rows * options.sum_bytes);
  }
  buffers.gathered.resize(static_cast<size_t>(options.roles.num_ranks()));
  const bool has_head = options.roles.of(options.rank).has_head();
  for (int other = 0; has_head && other < options.roles.num_ranks(); ++other) {
    if (other == options.rank || !options.roles.of(other).gives_output()) continue;
    buffers.gathered[other] = memory.Take(options.most_rows * options.gathered_bytes);
  }
  buffers.logits_in.resize(buffers.gathered.size());
  if (!options.roles.divides_head() || options.head_rows == 0) return buffers;
  const auto logits_of = [&](int rank) {
    const int tokens = options.roles.of(rank).head->TokensOf(options.vocab_size).size;
    return memory.Take(std::max<int64_t>(strategy::kLargestBytes, int64_t{4} * tokens) *
                       options.head_rows);
  };
  if (options.rank > 0) {
    buffers.logits_out = logits_of(options.rank);
    return buffers;
  }
  for (int other = 1; other < options.roles.num_ranks(); ++other) {
    buffers.logits_in[other] = logits_of(other);
  }
  return buffers;
}

}  // namespace convene::device
