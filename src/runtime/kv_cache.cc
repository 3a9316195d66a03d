#include "runtime/kv_cache.h"

#include <cstring>

namespace convene::runtime {
namespace {

int64_t HeadBytes(const model::AttentionSpec& attention, kernels::KvFormat format) {
  return kernels::KeyBlockBytes(format, attention.head_dim) +
         kernels::ValueBlockBytes(format, attention.head_dim);
}

}  // namespace

uint64_t KvCache::BlockBytes(const model::ModelSpec& spec, kernels::KvFormat format) {
  uint64_t size_bytes = 0;
  for (const model::LayerSpec& layer : spec.layers) {
    size_bytes += HeadBytes(layer.attention, format) * layer.attention.num_kv_heads;
  }
  return size_bytes;
}

Result<KvCache> KvCache::Create(const model::ModelSpec& spec, kernels::KvFormat format,
                                int num_blocks) {
  KvCache cache;
  cache.num_blocks_ = num_blocks;
  cache.format_ = format;
  Result<hardware::HugeBuffer> memory =
      hardware::HugeBuffer::Allocate(BlockBytes(spec, format) * num_blocks, "the KV cache");
  if (!memory) return memory.error();
  cache.memory_ = std::move(*memory);
  std::byte* base = cache.memory_.data();
  for (const model::LayerSpec& layer : spec.layers) {
    const model::AttentionSpec& attention = layer.attention;
    const int64_t head_bytes = HeadBytes(attention, format);
    cache.layers_.push_back({.base = base,
                             .block_bytes = head_bytes * attention.num_kv_heads,
                             .head_bytes = head_bytes,
                             .key_bytes = kernels::KeyBlockBytes(format, attention.head_dim),
                             .num_heads = attention.num_kv_heads});
    base += cache.layers_.back().block_bytes * num_blocks;
  }
  return cache;
}

void KvCache::ClearValues(int layer, int block) {
  const Layer& at = layers_[layer];
  for (int head = 0; head < at.num_heads; ++head) {
    std::memset(Block(layer, head, block) + at.key_bytes, 0, at.head_bytes - at.key_bytes);
  }
}

}  // namespace convene::runtime
