// What a batch is priced at, by the definition.
#include "engine/batch_price.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "device/step_inputs.h"
#include "model/model_size.h"
#include "strategy/paging.h"

namespace convene::engine {
namespace {

constexpr double kPage = 1 << 20;
constexpr BatchBytes kSizes{
    .page = uint64_t{1} << 20, .kv_block = uint64_t{1} << 20, .step = uint64_t{200} << 20};

// 16 layers of 64 experts, of which a token chooses 8.
model::ModelSpec SpecToPrice() {
  model::LayerSpec layer;
  layer.moe = model::MoeSpec{.num_experts = 64, .top_k = 8, .intermediate_size = 512};
  model::ModelSpec spec;
  spec.hidden_size = 682;
  spec.vocab_size = 1000;
  spec.layers = std::vector(16, layer);
  return spec;
}

TEST(BatchPricer, IsTheBusierOfDiskAndCoresAndWhatCannotHideBehindIt) {
  const model::ModelSpec spec = SpecToPrice();
  const BatchWork work{.num_requests = 100, .prompt_tokens = 40, .gen_tokens = 24};
  const BatchRates rates{.disk_bytes_per_second = 2e9,
                         .memory_bytes_per_second = 20e9,
                         .operations_per_second = 500e9};
  const BatchPricer pricer(spec, work, kSizes, rates);
  const double tokens = 100 * 24;
  const double steps = StepsOf(work, 50, 512);
  const double rows = 100 * 64 / steps;
  const double wanted = 16 * strategy::ChosenExperts(*spec.layers[0].moe, rows);
  const double operations = 100 * (model::FlopsOfTokens(spec, 0, 40, 1).total() +
                                   model::FlopsOfTokens(spec, 40, 23, 23).total());
  // Blocks of keys and values that generated tokens read.
  const double blocks = 100 * 23 * ((40 + 12.0) / device::kKvBlockTokens + 0.5);
  const double computing =
      (steps * (200 + wanted - 16 * 8) + blocks) * kPage / 20e9 + operations * (64.0 / 63) / 500e9;
  const MemoryPlan whole{.num_kv_blocks = 1000};
  const BatchPrice all_in_memory = pricer.PriceOf(50, 512, whole);
  EXPECT_EQ(all_in_memory.moved_bytes, 0);
  EXPECT_NEAR(all_in_memory.seconds, computing / tokens, 1e-3 * computing / tokens);
  double before = 1e30;
  for (const int buffers : {2, 40, 100, 500, 900, 1024}) {
    const MemoryPlan paged{.num_kv_blocks = 1000, .num_page_buffers = buffers};
    const strategy::Paging paging = strategy::PagingOf(spec, false, buffers, std::llround(rows));
    const double moved = steps * wanted * paging.missing * kPage;
    const BatchPrice price = pricer.PriceOf(50, 512, paged);
    EXPECT_NEAR(price.moved_bytes, moved / tokens, 1e-6 * moved / tokens) << buffers;
    const double most = std::max(moved / 2e9, computing);
    EXPECT_GE(price.seconds, 0.999 * most / tokens) << buffers;
    EXPECT_LE(price.seconds, 1.001 * (moved / 2e9 + computing) / tokens) << buffers;
    EXPECT_LE(price.seconds, before) << buffers;
    before = price.seconds;
    // Of a layer's 64 experts one is read while one is computed, or all.
    if (buffers == 2) {
      EXPECT_GT(price.seconds, 0.95 * (moved / 2e9 + computing) / tokens);
    }
    if (buffers >= 500) {
      EXPECT_NEAR(price.seconds, most / tokens, 1e-3 * most / tokens) << buffers;
    }
  }
  EXPECT_DOUBLE_EQ(before, all_in_memory.seconds);
}

TEST(BatchPricer, StepsOfOneRequestThatGenerateReadFewExperts) {
  const model::ModelSpec spec = SpecToPrice();
  const BatchWork work{.prompt_tokens = 1000, .gen_tokens = 101};
  const BatchRates rates{
      .disk_bytes_per_second = 1, .memory_bytes_per_second = 1e30, .operations_per_second = 1e30};
  const BatchPricer pricer(spec, work, kSizes, rates);
  const MemoryPlan memory{.num_kv_blocks = 18, .num_page_buffers = 4};
  const auto missing = [&](int64_t rows) {
    return strategy::PagingOf(spec, false, 4, rows).missing;
  };
  const double of_answer = 100 * 16 * 8 * missing(1);
  for (const int chunk : {1000, 500, 100}) {
    const double of_prompt = 1000.0 / chunk * 16 * 64 * missing(chunk);
    EXPECT_NEAR(pricer.PriceOf(1, chunk, memory).moved_bytes, (of_answer + of_prompt) * kPage / 101,
                1e-2 * kPage)
        << chunk;
  }
}

TEST(BatchPricer, KeysAndValuesOnTheDiskAreReadAndWrittenAgain) {
  const model::ModelSpec spec = SpecToPrice();
  const BatchWork work{.num_requests = 1000, .prompt_tokens = 40, .gen_tokens = 24};
  const BatchPricer pricer(spec, work, kSizes, UsualRates(/*is_gpu=*/false));
  const MemoryPlan memory{
      .num_kv_blocks = 500, .num_spilled_blocks = 1500, .num_page_buffers = 1024};
  // By the definition: each of 23 steps reads a block and a half on average, and writes one.
  const double blocks = 23 * ((40 + 12) / 64.0 + 0.5 + 1) + 40 / 64.0 + 0.5;
  EXPECT_NEAR(pricer.PriceOf(1000, 1024, memory).moved_bytes, 0.75 * blocks * kPage / 24, 1);
}

TEST(BatchPricer, LayersWithAWindowMoveTheBlocksThatAQuerySees) {
  const BatchWork work{.num_requests = 100, .prompt_tokens = 3200, .gen_tokens = 257};
  // Blocks of keys and values of a request, where all of them lie on the disk and all experts are
  // in memory.
  const auto moved = [&](int window) {
    model::ModelSpec spec = SpecToPrice();
    for (size_t layer = 0; layer < spec.layers.size(); ++layer) {
      // In every other layer, which has a third of what the others have.
      const int num_kv_heads = layer % 2 == 0 ? 1 : 3;
      spec.layers[layer].attention = {.num_kv_heads = num_kv_heads,
                                      .head_dim = 32,
                                      .value_dim = 32,
                                      .window = layer % 2 == 0 ? window : 0};
    }
    const BatchPricer pricer(spec, work, kSizes, UsualRates(/*is_gpu=*/false));
    const MemoryPlan memory{.num_spilled_blocks = 1 << 20, .num_page_buffers = 1024};
    return pricer.PriceOf(100, 512, memory).moved_bytes * 257 / kPage;
  };
  // By the definition: 256 steps read 52.5078 blocks, the steps of the prompt but the first half of
  // its blocks, of which there are 50.5.
  const double blocks = (3200 + 128.5) / 64 + 0.5;
  EXPECT_NEAR(moved(0), 256 * (blocks + 1) + 50.5 + 6 * 50.5 / 2, 1e-6);
  EXPECT_NEAR(moved(1 << 20), moved(0), 1e-6);
  // A window of 128 begins and ends within a block: it is in three of them.
  EXPECT_NEAR(moved(128),
              256 * (0.25 * 3 + 0.75 * blocks + 1) + 50.5 + 6 * (0.25 * 3 + 0.75 * 50.5 / 2), 1e-6);
}

TEST(BatchRates, AreThoseOfTheTiersOfAProfile) {
  cost::MachineProfile profile;
  EXPECT_FALSE(RatesOf(profile, "int8", 1));
  profile.machine.int8_gops = 2000;
  profile.machine.f32_gflops = 500;
  profile.machine.read_gbps = 80;
  EXPECT_FALSE(RatesOf(profile, "int8", 1)) << "nobody has measured the disk";
  profile.machine.disk_gbps = 3;
  const auto rates = RatesOf(profile, "int8", 1);
  ASSERT_TRUE(rates);
  EXPECT_TRUE(rates->are_measured);
  EXPECT_DOUBLE_EQ(rates->disk_bytes_per_second, 3e9);
  const auto half = RatesOf(profile, "f32", 0.5);
  EXPECT_DOUBLE_EQ(half->disk_bytes_per_second, 3e9) << "of one core it is the same";
  EXPECT_DOUBLE_EQ(half->memory_bytes_per_second, rates->memory_bytes_per_second / 2);
  EXPECT_DOUBLE_EQ(half->operations_per_second, rates->operations_per_second / 8);
}

}  // namespace
}  // namespace convene::engine
