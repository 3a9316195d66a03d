#include "device/dispatch_block.h"

#include <numeric>

#include "base/check.h"
#include "strategy/step.h"

namespace convene::device {

PeerBuffers PeerBuffers::Take(const ExpertRowsOptions& options, ExchangeMemory& memory) {
  constexpr int64_t kBlockPadding = 3 * strategy::kMostChunks;
  const int64_t blocks = options.most_padded_rows * options.dispatch_row_bytes + options.most_rows +
                         DispatchBlock::kPairBytes * options.most_pairs + kBlockPadding;
  PeerBuffers buffers;
  buffers.blocks = memory.Take(blocks);
  buffers.sums = memory.Take(options.most_padded_rows * options.return_row_bytes);
  return buffers;
}

std::span<std::byte> PeerBuffers::SumsOf(std::span<const int32_t> counts, int chunk,
                                         int64_t row_bytes) const {
  const int64_t before = std::accumulate(counts.begin(), counts.begin() + chunk, int64_t{0});
  return sums.subspan(static_cast<size_t>(before * row_bytes),
                      static_cast<size_t>(counts[chunk] * row_bytes));
}

void PeerBuffers::CheckRoom(int64_t block_bytes, int64_t sum_bytes) const {
  CHECK(block_bytes <= std::ssize(blocks), "blocks of {} bytes in a buffer of {}", block_bytes,
        blocks.size());
  CHECK(sum_bytes <= std::ssize(sums), "sums of {} bytes in a buffer of {}", sum_bytes,
        sums.size());
}

}  // namespace convene::device
