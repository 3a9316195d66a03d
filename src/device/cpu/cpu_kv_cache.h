// The memory of the paged KV cache where the device is a CPU: what a block holds is what
// kernels/kernel_set.h says.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "device/kv_cache.h"
#include "kernels/kernel_set.h"
#include "memory/ledger.h"
#include "model/model_spec.h"

namespace convene::device {

class CpuKvCache final : public KvCache {
 public:
  // Bytes of one block over all layers.
  static uint64_t BlockBytes(const model::ModelSpec& spec, kernels::KvFormat format);

  // Of one in the layer where it is the largest.
  static uint64_t LayerBlockBytes(const model::ModelSpec& spec, kernels::KvFormat format);

  // Error: as Ledger::Allocate.
  static Result<CpuKvCache> Create(const model::ModelSpec& spec, kernels::KvFormat format,
                                   int num_blocks, memory::Ledger& ledger);

  int num_layers() const override { return static_cast<int>(layers_.size()); }
  int num_blocks() const override { return num_blocks_; }
  kernels::KvFormat format() const { return format_; }

  // The table of layer `layer`, by block: there the block's heads lie one behind the other (layout:
  // kernels/kernel_set.h), head `head` at HeadOffset.
  std::byte* const* blocks(int layer) const { return layers_[layer].blocks.data(); }
  int64_t HeadOffset(int layer, int head) const { return layers_[layer].head_bytes * head; }
  std::byte* Block(int layer, int head, int block) const {
    return blocks(layer)[block] + HeadOffset(layer, head);
  }
  int64_t BlockBytes(int layer) const override { return layers_[layer].block_bytes; }
  std::byte* Address(int layer, int block) const override { return blocks(layer)[block]; }
  void TakeMemory(hardware::ThreadPool& pool, double most_s) override;
  void Move(int layer, int block, std::byte* to) override;
  void SetPlaces(int count) override;
  void Put(int layer, int place, std::byte* at) override {
    layers_[layer].blocks[num_blocks_ + place] = at;
  }

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

}  // namespace convene::device
