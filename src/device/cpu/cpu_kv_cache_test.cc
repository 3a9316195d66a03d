#include "device/cpu/cpu_kv_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "hardware/huge_buffer.h"
#include "hardware/memory_status.h"
#include "hardware/thread_pool.h"

namespace convene::device {
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

TEST(CpuKvCache, HoldsKeysAndPaddedValuesOfEveryLayerAndHead) {
  // Keys 64 x 24 and 64 x 80, values padded to 32 and 80 channels, two heads, two bytes.
  EXPECT_EQ(CpuKvCache::BlockBytes(TwoLayers(), KvFormat::kBf16),
            2u * 2 * (64 * 24 + 64 * 32 + 64 * 80 + 64 * 80));
  EXPECT_EQ(CpuKvCache::BlockBytes(TwoLayers(), KvFormat::kF32),
            2u * 4 * (64 * 24 + 64 * 32 + 64 * 80 + 64 * 80));
  // A byte each, and a float for each key and each value.
  EXPECT_EQ(CpuKvCache::BlockBytes(TwoLayers(), KvFormat::kInt8),
            2u * (64 * 24 + 64 * 32 + 64 * 80 + 64 * 80 + 4 * 4 * 64));
}

TEST(CpuKvCache, TakesItsMemoryBeforeItIsWrittenForAsLongAsItMay) {
  memory::Ledger ledger;
  Result<CpuKvCache> cache = CpuKvCache::Create(TwoLayers(), KvFormat::kBf16, 500, ledger);
  ASSERT_TRUE(cache.ok()) << cache.error().message;
  hardware::ThreadPool pool({0, 0});
  const auto resident_bytes = [&] {
    const hardware::ResidentMemory resident = hardware::ReadResidentMemory();
    return static_cast<int64_t>(resident.own_bytes);
  };
  const int64_t before = resident_bytes();
  cache->TakeMemory(pool, 0);
  EXPECT_LT(resident_bytes() - before, 1 << 20) << "no time, no memory";
  *cache->Block(1, 1, 499) = std::byte{5};
  cache->TakeMemory(pool, 1e9);
  if (!hardware::TakePages({cache->Block(0, 0, 0), 1})) GTEST_SKIP() << "before Linux 5.14";
  const auto all = static_cast<int64_t>(500 * CpuKvCache::BlockBytes(TwoLayers(), KvFormat::kBf16));
  EXPECT_GE(resident_bytes() - before, all * 9 / 10);
  EXPECT_EQ(*cache->Block(1, 1, 499), std::byte{5});
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

TEST(CpuKvCache, HoldsOfALatentNothingButItAndTheRotatedPart) {
  // DeepSeek-V2-Lite: (512 + 64) numbers per token and layer, of whatever size, for all heads.
  EXPECT_EQ(CpuKvCache::BlockBytes(Latent(512, 64), KvFormat::kBf16), 64u * 27 * (512 + 64) * 2);
  EXPECT_EQ(CpuKvCache::BlockBytes(Latent(512, 64), KvFormat::kF32), 64u * 27 * (512 + 64) * 4);
  // A byte each, and a float for all of them.
  EXPECT_EQ(CpuKvCache::BlockBytes(Latent(512, 64), KvFormat::kInt8), 64u * 27 * (512 + 64 + 4));

  memory::Ledger ledger;
  const Result<CpuKvCache> cache = CpuKvCache::Create(Latent(512, 64), KvFormat::kBf16, 3, ledger);
  ASSERT_TRUE(cache.ok()) << cache.error().message;
  EXPECT_EQ(cache->TokenBytes(26), (512 + 64) * 2);
  EXPECT_EQ(cache->BlockBytes(0), 64 * (512 + 64) * 2);
}

TEST(CpuKvCache, BlocksOfAllLayersAndHeadsOverlapNowhere) {
  constexpr int kBlocks = 3;
  memory::Ledger ledger;
  const Result<CpuKvCache> cache =
      CpuKvCache::Create(TwoLayers(), KvFormat::kBf16, kBlocks, ledger);
  ASSERT_TRUE(cache.ok()) << cache.error().message;
  std::vector<std::byte*> begins;
  for (const int layer : {0, 1}) {
    for (int block = 0; block < kBlocks; ++block) {
      EXPECT_EQ(cache->blocks(layer)[block], cache->Block(layer, 0, block));
      EXPECT_EQ(2 * cache->HeadOffset(layer, 1), cache->BlockBytes(layer));
      for (const int head : {0, 1}) begins.push_back(cache->Block(layer, head, block));
    }
  }
  std::ranges::sort(begins);
  uint64_t least = UINT64_MAX;
  for (size_t i = 1; i < begins.size(); ++i) {
    least = std::min(least, static_cast<uint64_t>(begins[i] - begins[i - 1]));
  }
  EXPECT_EQ(least, 2u * (64 * 24 + 64 * 32));  // a head of the narrower layer
}

TEST(CpuKvCache, PlacesLieBehindTheBlocksAndWhereTheyArePut) {
  memory::Ledger ledger;
  Result<CpuKvCache> cache = CpuKvCache::Create(TwoLayers(), KvFormat::kBf16, 2, ledger);
  ASSERT_TRUE(cache.ok()) << cache.error().message;
  EXPECT_EQ(static_cast<int64_t>(CpuKvCache::LayerBlockBytes(TwoLayers(), KvFormat::kBf16)),
            cache->BlockBytes(1));
  alignas(64) static std::byte elsewhere[64];
  cache->SetPlaces(2);
  EXPECT_EQ(cache->num_blocks(), 2);
  cache->Put(0, 1, elsewhere);
  EXPECT_EQ(cache->blocks(0)[3], elsewhere);
  EXPECT_EQ(cache->blocks(0)[2], nullptr);
  EXPECT_EQ(cache->blocks(1)[3], nullptr);
  std::byte* const own = cache->blocks(0)[1];
  cache->SetPlaces(4);
  EXPECT_EQ(cache->blocks(0)[3], nullptr) << "of another step";
  EXPECT_EQ(cache->blocks(0)[1], own);
}

TEST(CpuKvCache, ABlockMovesWithItsBytesAndAlone) {
  memory::Ledger ledger;
  Result<CpuKvCache> cache = CpuKvCache::Create(TwoLayers(), KvFormat::kBf16, 2, ledger);
  ASSERT_TRUE(cache.ok()) << cache.error().message;
  const auto size = static_cast<size_t>(cache->BlockBytes(1));
  for (const int block : {0, 1}) std::memset(cache->Block(1, 0, block), 5 + block, size);
  std::byte* const stays = cache->Block(1, 0, 0);
  std::byte* const other_layer = cache->Block(0, 0, 1);
  alignas(64) static std::byte elsewhere[2 * 2 * (64 * 80 + 64 * 80)];
  ASSERT_EQ(size, sizeof(elsewhere));
  cache->Move(1, 1, elsewhere);
  EXPECT_EQ(cache->Block(1, 0, 1), elsewhere);
  EXPECT_EQ(cache->Block(1, 1, 1), elsewhere + cache->HeadOffset(1, 1));
  EXPECT_TRUE(std::ranges::all_of(elsewhere, [](std::byte b) { return b == std::byte{6}; }));
  EXPECT_EQ(cache->Block(1, 0, 0), stays);
  EXPECT_EQ(cache->Block(0, 0, 1), other_layer);
}

}  // namespace
}  // namespace convene::device
