// The memory of the paged KV cache on a GPU, or in pinned memory of the host beside it, by the
// ledger that it is reserved in: what a block holds is what kernels/cuda/attention.h says, in bf16.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "device/kv_cache.h"
#include "kernels/kernel_set.h"
#include "memory/ledger.h"
#include "model/model_spec.h"

namespace convene::device {

class CudaKvCache final : public KvCache {
 public:
  // As DeviceBytes.
  static uint64_t BlockBytes(const model::ModelSpec& spec, kernels::KvFormat format);
  static uint64_t LayerBlockBytes(const model::ModelSpec& spec, kernels::KvFormat format);

  // Errors: as Ledger::Allocate, and of CUDA.
  static Result<CudaKvCache> Create(const model::ModelSpec& spec, int num_blocks,
                                    memory::Ledger& ledger);

  int num_layers() const override { return static_cast<int>(layers_.size()); }
  int num_blocks() const override { return num_blocks_; }
  int64_t BlockBytes(int layer) const override { return layers_[layer].block_bytes; }
  std::byte* Address(int layer, int block) const override { return layers_[layer].blocks[block]; }
  // A GPU's memory is there when it is allocated.
  void TakeMemory(hardware::ThreadPool&, double) override {}
  void Move(int layer, int block, std::byte* to) override;
  void SetPlaces(int count) override;
  void Put(int layer, int place, std::byte* at) override;

  // The layer's table of blocks in the device's memory; it lies where it did until SetPlaces.
  std::byte* const* Table(int layer) const {
    return reinterpret_cast<std::byte* const*>(tables_.data()) + layer * table_size_;
  }
  // Bytes of one position in one layer.
  int64_t TokenBytes(int layer) const {
    return layers_[layer].block_bytes / kernels::kKvBlockTokens;
  }

 private:
  struct Layer {
    std::vector<std::byte*> blocks = {};
    int64_t block_bytes = 0;
  };
  Status MakeTables();
  void Upload(int layer, int first, int count);

  memory::Reservation memory_;
  memory::Reservation tables_;
  int64_t table_size_ = 0;  // entries of a layer's
  std::vector<Layer> layers_;
  int num_blocks_ = 0;
  memory::Ledger* ledger_ = nullptr;
};

}  // namespace convene::device
