#include "device/cuda/cuda_kv_cache.h"

#include <algorithm>

#include "device/cuda/cuda_error.h"
#include "kernels/cuda/attention.h"

namespace convene::device {
namespace {

int64_t BlockBytesOf(const model::AttentionSpec& attention) {
  if (attention.latent) {
    return 2 * kernels::cuda::KvBlockElements(1, attention.latent->key_dim(), 0);
  }
  return 2 * kernels::cuda::KvBlockElements(attention.num_kv_heads, attention.head_dim,
                                            attention.value_dim);
}

}  // namespace

uint64_t CudaKvCache::BlockBytes(const model::ModelSpec& spec, kernels::KvFormat) {
  int64_t size_bytes = 0;
  for (const model::LayerSpec& layer : spec.layers) {
    // And its place in the layer's table.
    size_bytes += BlockBytesOf(layer.attention) + int64_t{sizeof(std::byte*)};
  }
  return static_cast<uint64_t>(size_bytes);
}

uint64_t CudaKvCache::LayerBlockBytes(const model::ModelSpec& spec, kernels::KvFormat) {
  int64_t most = 0;
  for (const model::LayerSpec& layer : spec.layers) {
    most = std::max(most, BlockBytesOf(layer.attention));
  }
  return static_cast<uint64_t>(most);
}

Result<CudaKvCache> CudaKvCache::Create(const model::ModelSpec& spec, int num_blocks,
                                        memory::Ledger& ledger) {
  CudaKvCache cache;
  cache.num_blocks_ = num_blocks;
  cache.ledger_ = &ledger;
  int64_t size_bytes = 0;
  for (const model::LayerSpec& layer : spec.layers) {
    size_bytes += BlockBytesOf(layer.attention) * num_blocks;
  }
  auto memory = ledger.Allocate(memory::Use::kKvCache, static_cast<uint64_t>(size_bytes));
  if (!memory) return memory.error();
  cache.memory_ = std::move(*memory);
  std::byte* base = cache.memory_.data();
  for (const model::LayerSpec& layer : spec.layers) {
    Layer& layer_at = cache.layers_.emplace_back();
    layer_at.block_bytes = BlockBytesOf(layer.attention);
    for (int block = 0; block < num_blocks; ++block, base += layer_at.block_bytes) {
      layer_at.blocks.push_back(base);
    }
  }
  if (Status made = cache.MakeTables(); !made) return made.error();
  return cache;
}

Status CudaKvCache::MakeTables() {
  if (layers_.empty()) return {};
  table_size_ = std::ssize(layers_.front().blocks);
  auto tables =
      ledger_->Allocate(memory::Use::kKvCache,
                        std::max<uint64_t>(1, layers_.size() * static_cast<uint64_t>(table_size_)) *
                            sizeof(std::byte*));
  if (!tables) return tables.error();
  tables_ = std::move(*tables);
  for (int layer = 0; layer < num_layers(); ++layer) {
    Upload(layer, 0, static_cast<int>(table_size_));
  }
  return CudaStatus(cudaGetLastError(), "writing the table of KV blocks");
}

// Whoever changes a table does so where nothing is under way that reads it.
void CudaKvCache::Upload(int layer, int first, int count) {
  auto* to = const_cast<std::byte**>(Table(layer)) + first;
  cudaMemcpy(to, layers_[layer].blocks.data() + first,
             static_cast<size_t>(count) * sizeof(std::byte*), cudaMemcpyDefault);
}

void CudaKvCache::Move(int layer, int block, std::byte* to) {
  std::byte*& at = layers_[layer].blocks[block];
  cudaMemcpy(to, at, static_cast<size_t>(layers_[layer].block_bytes), cudaMemcpyDefault);
  at = to;
  Upload(layer, block, 1);
}

void CudaKvCache::SetPlaces(int count) {
  for (Layer& layer : layers_) {
    layer.blocks.resize(static_cast<size_t>(num_blocks_));
    layer.blocks.resize(static_cast<size_t>(num_blocks_) + static_cast<size_t>(count), nullptr);
  }
  const Status made = MakeTables();
  CHECK(made.ok(), "{}", made.error().message);
}

void CudaKvCache::Put(int layer, int place, std::byte* at) {
  std::byte*& block = layers_[layer].blocks[num_blocks_ + place];
  if (block == at) return;
  block = at;
  Upload(layer, num_blocks_ + place, 1);
}

}  // namespace convene::device
