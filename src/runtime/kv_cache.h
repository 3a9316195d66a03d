// The memory of the paged KV cache: blocks of kKvBlockTokens positions, over all layers. They are
// reached through a table of addresses, so that a block may lie, and move, anywhere. Which sequence
// owns which block is engine/'s matter.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "kernels/kernel_set.h"
#include "memory/ledger.h"
#include "model/model_spec.h"

namespace convene::runtime {

class KvCache {
 public:
  // Bytes of one block over all layers.
  static uint64_t BlockBytes(const model::ModelSpec& spec, kernels::KvFormat format);

  // Error: as Ledger::Allocate.
  static Result<KvCache> Create(const model::ModelSpec& spec, kernels::KvFormat format,
                                int num_blocks, memory::Ledger& ledger);

  int num_layers() const { return static_cast<int>(layers_.size()); }
  int num_blocks() const { return num_blocks_; }
  kernels::KvFormat format() const { return format_; }

  // The table of layer `layer`, by block: there the block's heads lie one behind the other (layout:
  // kernels/kernel_set.h), head `head` at HeadOffset.
  std::byte* const* blocks(int layer) const { return layers_[layer].blocks.data(); }
  int64_t HeadOffset(int layer, int head) const { return layers_[layer].head_bytes * head; }
  std::byte* Block(int layer, int head, int block) const {
    return blocks(layer)[block] + HeadOffset(layer, head);
  }
  // Bytes of a block in one layer.
  int64_t BlockBytes(int layer) const { return layers_[layer].block_bytes; }

  // From here on layer `layer` of the block lies at `to` (BlockBytes(layer), 64-byte aligned),
  // whose owner keeps it while it does. Not while a step is under way.
  void Move(int layer, int block, std::byte* to);

  // Bytes of one position in one layer.
  int64_t TokenBytes(int layer) const {
    return layers_[layer].block_bytes / kernels::kKvBlockTokens;
  }

 private:
  struct Layer {
    std::vector<std::byte*> blocks = {};
    int64_t block_bytes = 0;
    int64_t head_bytes = 0;
  };

  memory::Reservation memory_;
  std::vector<Layer> layers_;
  int num_blocks_ = 0;
  kernels::KvFormat format_ = kernels::KvFormat::kBf16;
};

}  // namespace convene::runtime
