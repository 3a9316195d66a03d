// Decode steps of all families whose weights are streamed layer by layer, attention on a host or
// not, give the bits of resident ones.
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/golden_fixtures.h"
#include "tests/offloaded_steps.h"

namespace convene {
namespace {

class GoldenOffload : public testing::TestWithParam<const char*> {};

TEST_P(GoldenOffload, GivesTheSameBitsInAllOrders) {
  const auto directory =
      std::filesystem::path(CONVENE_SOURCE_DIR "/tests/golden/models") / GetParam();
  const auto checkpoint = checkpoint::Checkpoint::Open(directory.string());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  for (const runtime::Formats& formats : EveryFormat()) {
    SCOPED_TRACE(Describe(formats));
    hardware::ThreadPool pool({0});
    memory::Ledger ledger;
    const auto weights = weights::LoadWeights(*checkpoint, formats.weights, {},
                                              hardware::NumaPolicy::kAuto, pool, ledger, {});
    ASSERT_TRUE(weights.ok()) << weights.error().message;
    Resident resident(*weights, formats, /*num_sequences=*/5);
    for (const strategy::OffloadOrder order : strategy::kOffloadOrders) {
      ExpectSameBits(resident, {.order = order, .micro_batches = 3});
      if (!strategy::AttendsOnHost(order)) continue;
      ExpectSameBits(resident, {.order = order, .micro_batches = 2}, /*reads_prompts=*/true);
    }
  }
}

// Sinks, windows, biases, clipped projections, norms of queries and keys, shared experts, dense
// layers between, multipliers.
INSTANTIATE_TEST_SUITE_P(Fixtures, GoldenOffload,
                         testing::Values("dbrx_clip", "gpt_oss_plain", "granitemoe_plain",
                                         "mixtral_window", "olmoe_clip", "qwen2_many",
                                         "qwen3_window", "qwen3_yarn"));

}  // namespace
}  // namespace convene
