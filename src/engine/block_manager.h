// Which sequence holds which blocks of the KV cache, and which blocks hold tokens that a later
// sequence can use again. Bookkeeping only: the cache's memory is the runtime's.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "device/step_inputs.h"

namespace convene::engine {

// A full block is *published* under its tokens and the block before it, so that a sequence with the
// same beginning finds it. A published block that no sequence holds stays until its memory is
// wanted, the longest unused first.
class BlockManager {
 public:
  explicit BlockManager(int num_blocks);

  int num_blocks() const { return static_cast<int>(blocks_.size()); }
  // Blocks that Allocate can still give.
  int num_available() const { return static_cast<int>(free_.size() + unused_.size()); }

  // The published blocks that hold the beginning of `tokens`, in order, now held by the caller too.
  // Whole blocks only.
  std::vector<int32_t> TakePrefix(std::span<const int32_t> tokens);

  // How many blocks TakePrefix would give.
  int CountPrefix(std::span<const int32_t> tokens) const;
  // Of these, those that somebody holds, which take no room.
  int CountHeldPrefix(std::span<const int32_t> tokens) const;

  // A block held by the caller alone, its contents undefined; nothing if all are held.
  std::optional<int32_t> Allocate();

  // Publishes blocks[block_idx], which now holds `tokens` (exactly a block's worth). All of
  // `blocks` before it must be published.
  void Publish(std::span<const int32_t> blocks, size_t block_idx, std::span<const int32_t> tokens);

  // Gives up one hold on each of `blocks`, a whole sequence's in order.
  void Release(std::span<const int32_t> blocks);

 private:
  using Tokens = std::array<int32_t, device::kKvBlockTokens>;

  // The contents of a block: its tokens and the contents before it, by number (0: none). Compared
  // in full, so that equal hashes cannot mix two prefixes.
  struct Contents {
    uint64_t parent = 0;
    Tokens tokens{};
    bool operator==(const Contents&) const = default;
  };
  struct HashContents {
    size_t operator()(const Contents& contents) const;
  };
  struct Published {
    int32_t block = 0;
    uint64_t number = 0;  // of these contents; never used again
  };
  using Index = std::unordered_map<Contents, Published, HashContents>;

  struct Block {
    int num_holders = 0;
    uint64_t contents = 0;                   // number of the contents, once published
    const Contents* indexed = nullptr;       // the index's key, where that names this very block
    std::list<int32_t>::iterator unused_at;  // where num_holders is 0 and `indexed` is set
  };

  // Calls visit(published block) for each block of the beginning.
  template <typename F>
  void ForPrefix(std::span<const int32_t> tokens, F&& visit) const;
  static Contents MakeContents(uint64_t parent, std::span<const int32_t> tokens);
  void Hold(int32_t block);

  std::vector<Block> blocks_;
  std::vector<int32_t> free_;  // neither held nor published
  std::list<int32_t> unused_;  // published and not held, longest unused first
  Index index_;
  uint64_t last_number_ = 0;
};

}  // namespace convene::engine
