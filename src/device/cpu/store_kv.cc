#include "device/cpu/store_kv.h"

#include <algorithm>

namespace convene::device {

void StoreKv(const ForwardContext& context, const CpuKvCache& cache, int cache_layer,
             const StepRows& rows, const KeysAndValues& from, OwnRows those) {
  // Fewer rows than this are not worth another thread.
  constexpr int kGrainRows = 64;
  const auto first_of = [&](int row) {
    return std::ranges::lower_bound(rows.block_rows(), row, {}, &BlockRows::first_row);
  };
  const std::span blocks(first_of(those.first), first_of(those.first + those.count));
  if (blocks.empty()) return;
  const int64_t stride = from.rows.stride_bytes / 4;
  const int64_t rows_per_block = those.count / std::ssize(blocks);
  context.pool.ParallelFor(
      std::ssize(blocks) * from.num_heads,
      [&](int64_t index, int) {
        const BlockRows& here = blocks[index / from.num_heads];
        const auto head = static_cast<int>(index % from.num_heads);
        const float* keys = from.rows.floats(here.first_row) + from.first_key;
        context.kernels.store_kv(
            {.format = cache.format(),
             .key_dim = from.key_dim,
             .value_dim = from.value_dim,
             .first_slot = rows.position(here.first_row) % kKvBlockTokens,
             .num_rows = here.num_rows,
             .keys = keys + head * from.key_dim,
             .values = keys + from.num_heads * from.key_dim + head * from.value_dim,
             .key_stride = stride,
             .value_stride = stride,
             .block = cache.Block(cache_layer, head, rows.block(here.first_row))});
      },
      std::max<int64_t>(1, kGrainRows / rows_per_block));
}

}  // namespace convene::device
