#include "runtime/kv_cache.h"

#include <gtest/gtest.h>

#include <cstring>

namespace convene::runtime {
namespace {

using kernels::KvFormat;

model::ModelSpec TwoLayers() {
  model::ModelSpec spec;
  for (const int head_dim : {24, 80}) {
    model::LayerSpec layer;
    layer.attention = {
        .num_heads = 4, .num_kv_heads = 2, .head_dim = head_dim, .value_dim = head_dim};
    spec.layers.push_back(layer);
  }
  return spec;
}

TEST(KvCache, HoldsKeysAndPaddedValuesOfEveryLayerAndHead) {
  // Keys 64 x 24 and 64 x 80, values padded to 32 and 80 channels, two heads, two bytes.
  EXPECT_EQ(KvCache::BlockBytes(TwoLayers(), KvFormat::kBf16),
            2u * 2 * (64 * 24 + 64 * 32 + 64 * 80 + 64 * 80));
  EXPECT_EQ(KvCache::BlockBytes(TwoLayers(), KvFormat::kF32),
            2u * 4 * (64 * 24 + 64 * 32 + 64 * 80 + 64 * 80));
  // A byte each, and a float for each key and each value.
  EXPECT_EQ(KvCache::BlockBytes(TwoLayers(), KvFormat::kInt8),
            2u * (64 * 24 + 64 * 32 + 64 * 80 + 64 * 80 + 4 * 4 * 64));
}

model::ModelSpec Latent(int rank, int rope_dim) {
  model::ModelSpec spec;
  model::LayerSpec layer;
  layer.attention = {
      .num_heads = 16,
      .num_kv_heads = 16,
      .head_dim = 128 + rope_dim,
      .value_dim = 128,
      .latent = model::LatentSpec{.kv_rank = rank, .nope_dim = 128, .rope_dim = rope_dim}};
  spec.layers.assign(27, layer);
  return spec;
}

TEST(KvCache, HoldsOfALatentNothingButItAndTheRotatedPart) {
  // DeepSeek-V2-Lite: (512 + 64) numbers per token and layer, of whatever size, for all heads.
  EXPECT_EQ(KvCache::BlockBytes(Latent(512, 64), KvFormat::kBf16), 64u * 27 * (512 + 64) * 2);
  EXPECT_EQ(KvCache::BlockBytes(Latent(512, 64), KvFormat::kF32), 64u * 27 * (512 + 64) * 4);
  // A byte each, and a float for all of them.
  EXPECT_EQ(KvCache::BlockBytes(Latent(512, 64), KvFormat::kInt8), 64u * 27 * (512 + 64 + 4));

  const Result<KvCache> cache = KvCache::Create(Latent(512, 64), KvFormat::kBf16, 3);
  ASSERT_TRUE(cache.ok()) << cache.error().message;
  EXPECT_EQ(cache->TokenBytes(26), (512 + 64) * 2);
  EXPECT_EQ(cache->BlockStride(0), cache->HeadStride(0));
  EXPECT_EQ(cache->Block(1, 0, 0) - cache->Block(0, 0, 0), 3 * cache->BlockStride(0));
}

TEST(KvCache, ClearsALatentsBlockWhole) {
  const model::ModelSpec spec = Latent(10, 4);
  Result<KvCache> cache = KvCache::Create(spec, KvFormat::kBf16, 3);
  ASSERT_TRUE(cache.ok()) << cache.error().message;
  const auto block_bytes = static_cast<size_t>(cache->BlockStride(2));
  std::memset(cache->Block(2, 0, 0), 0xff, block_bytes * 3);
  cache->ClearValues(2, 1);
  for (size_t i = 0; i < 3 * block_bytes; ++i) {
    const bool cleared = i / block_bytes == 1;
    ASSERT_EQ(cache->Block(2, 0, 0)[i], cleared ? std::byte{0} : std::byte{0xff});
  }
}

TEST(KvCache, ClearsTheValuesOfOneBlockInOneLayerAndNothingElse) {
  constexpr int kNumBlocks = 3;
  const model::ModelSpec spec = TwoLayers();
  Result<KvCache> cache = KvCache::Create(spec, KvFormat::kBf16, kNumBlocks);
  ASSERT_TRUE(cache.ok()) << cache.error().message;
  for (int layer = 0; layer < 2; ++layer) {
    std::memset(cache->Block(layer, 0, 0), 0xff,
                static_cast<size_t>(cache->BlockStride(layer)) * kNumBlocks);
  }
  cache->ClearValues(1, 2);
  for (int layer = 0; layer < 2; ++layer) {
    const int head_dim = spec.layers[layer].attention.head_dim;
    const auto key_bytes = kernels::KeyBlockBytes(KvFormat::kBf16, head_dim);
    for (int block = 0; block < kNumBlocks; ++block) {
      for (int head = 0; head < 2; ++head) {
        const std::byte* data = cache->Block(layer, head, block);
        for (int64_t i = 0; i < cache->HeadStride(layer); ++i) {
          const bool cleared = layer == 1 && block == 2 && i >= key_bytes;
          ASSERT_EQ(data[i], cleared ? std::byte{0} : std::byte{0xff});
        }
      }
    }
  }
}

}  // namespace
}  // namespace convene::runtime
