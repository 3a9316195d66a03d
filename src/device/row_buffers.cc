#include "device/row_buffers.h"

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
  for (int other = 1; options.rank == 0 && other < options.roles.num_ranks(); ++other) {
    if (!options.roles.of(other).gives_output()) continue;
    buffers.gathered[other] = memory.Take(options.most_rows * options.gathered_bytes);
  }
  return buffers;
}

}  // namespace convene::device
