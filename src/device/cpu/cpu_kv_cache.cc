#include "device/cpu/cpu_kv_cache.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>

#include "hardware/huge_buffer.h"
#include "strategy/role.h"

namespace convene::device {
namespace {

// What one block of one head holds; a latent is keys without values, for all heads.
struct HeadShape {
  int num_heads = 0;
  int64_t key_bytes = 0;
  int64_t value_bytes = 0;

  int64_t size_bytes() const { return key_bytes + value_bytes; }
};

HeadShape ShapeOf(const model::AttentionSpec& attention, kernels::KvFormat format) {
  // The attention is this rank's already, and it caches all of it.
  const int num_heads = strategy::AttentionRole().CacheOf(attention).heads.size;
  if (attention.latent) {
    return {num_heads, kernels::KeyBlockBytes(format, attention.latent->key_dim()), 0};
  }
  return {num_heads, kernels::KeyBlockBytes(format, attention.head_dim),
          kernels::ValueBlockBytes(format, attention.value_dim)};
}

constexpr auto kPieceBytes = static_cast<int64_t>(hardware::kHugePageBytes);
int64_t PiecesOf(int64_t size_bytes) { return (size_bytes + kPieceBytes - 1) / kPieceBytes; }

}  // namespace

uint64_t CpuKvCache::BlockBytes(const model::ModelSpec& spec, kernels::KvFormat format) {
  uint64_t size_bytes = 0;
  for (const model::LayerSpec& layer : spec.layers) {
    const HeadShape shape = ShapeOf(layer.attention, format);
    size_bytes += static_cast<uint64_t>(shape.size_bytes() * shape.num_heads);
  }
  return size_bytes;
}

uint64_t CpuKvCache::LayerBlockBytes(const model::ModelSpec& spec, kernels::KvFormat format) {
  uint64_t most = 0;
  for (const model::LayerSpec& layer : spec.layers) {
    const HeadShape shape = ShapeOf(layer.attention, format);
    most = std::max(most, static_cast<uint64_t>(shape.size_bytes() * shape.num_heads));
  }
  return most;
}

Result<CpuKvCache> CpuKvCache::Create(const model::ModelSpec& spec, kernels::KvFormat format,
                                      int num_blocks, memory::Ledger& ledger) {
  CpuKvCache cache;
  cache.num_blocks_ = num_blocks;
  cache.format_ = format;
  Result<memory::Reservation> memory =
      ledger.Allocate(memory::Use::kKvCache, BlockBytes(spec, format) * num_blocks);
  if (!memory) return memory.error();
  cache.memory_ = std::move(*memory);
  std::byte* base = cache.memory_.data();
  for (const model::LayerSpec& layer : spec.layers) {
    const HeadShape shape = ShapeOf(layer.attention, format);
    Layer& layer_at = cache.layers_.emplace_back();
    layer_at.block_bytes = shape.size_bytes() * shape.num_heads;
    layer_at.head_bytes = shape.size_bytes();
    for (int block = 0; block < num_blocks; ++block, base += layer_at.block_bytes) {
      layer_at.blocks.push_back(base);
    }
  }
  return cache;
}

void CpuKvCache::TakeMemory(hardware::ThreadPool& pool, double most_s) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration<double>(most_s);
  // Each layer has its blocks in a row, in pieces of a huge page here.
  int64_t most_pieces = 0;
  for (const Layer& layer : layers_) {
    most_pieces = std::max(most_pieces, PiecesOf(layer.block_bytes * num_blocks_));
  }
  std::atomic<bool> is_over = false;
  pool.ParallelFor(most_pieces * num_layers(), [&](int64_t index, int) {
    const Layer& layer = layers_[static_cast<size_t>(index % num_layers())];
    const int64_t piece = index / num_layers();
    const int64_t layer_bytes = layer.block_bytes * num_blocks_;
    if (is_over || piece >= PiecesOf(layer_bytes)) return;
    const int64_t at = piece * kPieceBytes;
    const int64_t size_bytes = std::min(kPieceBytes, layer_bytes - at);
    if (Clock::now() >= end ||
        !hardware::TakePages({layer.blocks.front() + at, static_cast<size_t>(size_bytes)})) {
      is_over = true;
    }
  });
}

void CpuKvCache::Move(int layer, int block, std::byte* to) {
  std::byte*& at = layers_[layer].blocks[block];
  std::memmove(to, at, static_cast<size_t>(layers_[layer].block_bytes));
  at = to;
}

void CpuKvCache::SetPlaces(int count) {
  for (Layer& layer : layers_) {
    layer.blocks.resize(static_cast<size_t>(num_blocks_));
    layer.blocks.resize(static_cast<size_t>(num_blocks_) + static_cast<size_t>(count), nullptr);
  }
}

}  // namespace convene::device
