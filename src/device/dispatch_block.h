// What goes to a peer in one dispatch is a block: the rows as the wire has them, then a byte per
// row, how many of the receiver's experts it wants, then their numbers (uint16) and weights
// (float). What returns for it is a sum per row.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "device/exchange_memory.h"
#include "device/expert_rows_options.h"
#include "strategy/step.h"

namespace convene::device {

// Sent ahead of a layer's blocks.
struct BlockCounts {
  int32_t rows = 0;
  int32_t pairs = 0;
  int32_t padded_rows = 0;  // at least rows
};
static_assert(sizeof(BlockCounts) == strategy::kCountsBytes);

// A view of a block, which may begin anywhere.
class DispatchBlock {
 public:
  DispatchBlock(std::byte* data, const BlockCounts& counts, int64_t row_bytes)
      : row_bytes_(row_bytes),
        rows_(data),
        sizes_(rows_ + counts.padded_rows * row_bytes),
        numbers_(sizes_ + counts.rows),
        weights_(numbers_ + counts.pairs * kNumberBytes) {}

  // To the next block, which begins with a float's alignment.
  static int64_t SizeBytes(const BlockCounts& counts, int64_t row_bytes) {
    const int64_t used = counts.padded_rows * row_bytes + counts.rows + kPairBytes * counts.pairs;
    return (used + 3) / 4 * 4;
  }
  static constexpr int64_t kNumberBytes = sizeof(uint16_t);
  static constexpr int64_t kPairBytes = kNumberBytes + sizeof(float);

  std::byte* row(int32_t row) const { return rows_ + row * row_bytes_; }

  // Pairs of a row.
  int32_t size(int32_t row) const { return static_cast<uint8_t>(sizes_[row]); }
  void SetSize(int32_t row, int32_t num_pairs) { sizes_[row] = static_cast<std::byte>(num_pairs); }

  // Those of all rows, one behind the other.
  int32_t expert(int32_t pair) const { return Read<uint16_t>(numbers_ + pair * kNumberBytes); }
  float weight(int32_t pair) const { return Read<float>(weights_ + pair * kWeightBytes); }
  void SetPair(int32_t pair, int32_t expert, float weight) {
    const auto number = static_cast<uint16_t>(expert);
    std::memcpy(numbers_ + pair * kNumberBytes, &number, sizeof(number));
    std::memcpy(weights_ + pair * kWeightBytes, &weight, sizeof(weight));
  }

 private:
  static constexpr int64_t kWeightBytes = sizeof(float);

  template <typename T>
  static T Read(const std::byte* from) {
    T value;
    std::memcpy(&value, from, sizeof(T));
    return value;
  }

  int64_t row_bytes_;
  std::byte* rows_;
  std::byte* sizes_;
  std::byte* numbers_;
  std::byte* weights_;
};

// Room for what goes one way between two ranks in a layer, all chunks together, and for what
// returns for it; as large as any step needs it.
struct PeerBuffers {
  std::span<std::byte> blocks = {};
  std::span<std::byte> sums = {};

  static PeerBuffers Take(const ExpertRowsOptions& options, ExchangeMemory& memory);
  // Those of a chunk, where the chunks have `counts` of them, `row_bytes` each.
  std::span<std::byte> SumsOf(std::span<const int32_t> counts, int chunk, int64_t row_bytes) const;
  // CHECKs that so much has room.
  void CheckRoom(int64_t block_bytes, int64_t sum_bytes) const;
};

}  // namespace convene::device
