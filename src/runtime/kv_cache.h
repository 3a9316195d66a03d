// The memory of the paged KV cache: blocks of kKvBlockTokens positions, over all layers. Which
// sequence owns which block is engine/'s matter.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "hardware/huge_buffer.h"
#include "kernels/kernel_set.h"
#include "model/model_spec.h"

namespace convene::runtime {

class KvCache {
 public:
  // Bytes of one block over all layers.
  static uint64_t BlockBytes(const model::ModelSpec& spec, kernels::KvFormat format);

  static Result<KvCache> Create(const model::ModelSpec& spec, kernels::KvFormat format,
                                int num_blocks);

  int num_blocks() const { return num_blocks_; }
  kernels::KvFormat format() const { return format_; }

  // Block `block` of KV head `head` of layer `layer` (layout: kernels/kernel_set.h).
  std::byte* Block(int layer, int head, int block) const {
    const Layer& at = layers_[layer];
    return at.base + at.block_bytes * block + at.head_bytes * head;
  }
  int64_t BlockStride(int layer) const { return layers_[layer].block_bytes; }
  // Bytes of one position in one layer.
  int64_t TokenBytes(int layer) const {
    return layers_[layer].block_bytes / kernels::kKvBlockTokens;
  }

 private:
  struct Layer {
    std::byte* base = nullptr;
    int64_t block_bytes = 0;
    int64_t head_bytes = 0;
  };

  hardware::HugeBuffer memory_;
  std::vector<Layer> layers_;
  int num_blocks_ = 0;
  kernels::KvFormat format_ = kernels::KvFormat::kBf16;
};

}  // namespace convene::runtime
