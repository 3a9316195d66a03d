#include "engine/paged_memory.h"

#include <gtest/gtest.h>

#include <vector>

#include "checkpoint/model_files.h"
#include "device/cpu/cpu_device.h"

namespace convene::engine {
namespace {

constexpr uint64_t kPagedMib = uint64_t{1} << 20;

TEST(PagedMemory, KeepsWithinMemoryWhateverStaysInMemory) {
  const auto spec = checkpoint::OpenConfig(CONVENE_SOURCE_DIR "/models/demo");
  ASSERT_TRUE(spec) << spec.error().message;
  const runtime::Formats formats = runtime::DefaultFormats(kernels::WeightFormat::kInt8);
  LoadOptions options{.context = 256, .max_step_tokens = 512, .max_sequences = 300};
  options.batch_work = {.num_requests = 300, .prompt_tokens = 100, .gen_tokens = 50};
  const uint64_t block_bytes = device::CpuBytes().of_kv_block(*spec, formats.kv);
  const int num_blocks = 300 * BlocksOfSequence(*options.batch_work);
  const auto plan_in = [&](uint64_t budget_bytes, double kv_share) {
    memory::Ledger ledger(memory::Tier{.budget_bytes = budget_bytes, .limited_by = "a test"});
    return PlanSpilledMemoryOf(device::CpuBytes(), *spec, options, formats, /*num_threads=*/1,
                               kv_share, ledger);
  };
  uint64_t least = 0;
  for (uint64_t budget = kPagedMib; budget < 400 * kPagedMib; budget += 5 * kPagedMib) {
    int most_in_memory = -1;
    for (const double share : {0.0, 0.5, 1.0}) {
      const auto plan = plan_in(budget, share);
      if (!plan) {
        EXPECT_EQ(plan.error().kind, ErrorKind::kResourceExhausted);
        EXPECT_EQ(least, 0u) << "more memory is never too little";
        continue;
      }
      if (least == 0) least = budget;
      EXPECT_LE(plan->needed_bytes(), budget);
      EXPECT_EQ(plan->all_kv_blocks(), num_blocks);
      EXPECT_GT(plan->num_spilled_blocks, 0);
      EXPECT_GE(plan->spill_file_bytes, plan->num_spilled_blocks * block_bytes);
      EXPECT_GE(plan->spill_part_blocks, 4) << "those of a context";
      EXPECT_GE(plan->spill_depth, 2);
      EXPECT_GE(plan->num_kv_blocks, most_in_memory);
      most_in_memory = plan->num_kv_blocks;
    }
  }
  EXPECT_GT(least, 0u);
}

// What they have in common is counted once, and is no part of what is asked.
TEST(PagedMemory, AnyShapeThatIsAskedOfOneIsPlannedAsAlone) {
  const auto spec = checkpoint::OpenConfig(CONVENE_SOURCE_DIR "/models/demo");
  ASSERT_TRUE(spec) << spec.error().message;
  const runtime::Formats formats = runtime::DefaultFormats(kernels::WeightFormat::kInt8);
  LoadOptions options{.context = 256};
  options.batch_work = {.num_requests = 300, .prompt_tokens = 100, .gen_tokens = 50};
  memory::Ledger ledger(memory::Tier{.budget_bytes = 120 * kPagedMib, .limited_by = "a test"});
  const auto memory = PagedMemory::Create(device::CpuBytes(), *spec, options, formats, 2);
  ASSERT_TRUE(memory) << memory.error().message;
  for (const auto& [sequences, tokens] :
       std::vector<std::pair<int, int>>{{300, 512}, {1, 64}, {40, 2048}, {300, 512}}) {
    options.max_sequences = sequences;
    options.max_step_tokens = tokens;
    const auto planned = memory->InMemory(sequences, tokens, ledger);
    const auto alone = PlanPagedMemoryOf(device::CpuBytes(), *spec, options, formats, 2, ledger);
    ASSERT_EQ(planned.ok(), alone.ok());
    if (planned) {
      EXPECT_EQ(planned->bytes, alone->bytes);
      EXPECT_EQ(planned->num_page_buffers, alone->num_page_buffers);
      EXPECT_EQ(planned->num_kv_blocks, alone->num_kv_blocks);
    } else {
      EXPECT_EQ(planned.error().message, alone.error().message);
    }
    const auto spilled = memory->Spilled(sequences, tokens, 0.5, ledger);
    const auto spilled_alone =
        PlanSpilledMemoryOf(device::CpuBytes(), *spec, options, formats, 2, 0.5, ledger);
    ASSERT_EQ(spilled.ok(), spilled_alone.ok());
    if (spilled) {
      EXPECT_EQ(spilled->bytes, spilled_alone->bytes);
      EXPECT_EQ(spilled->num_spilled_blocks, spilled_alone->num_spilled_blocks);
    }
  }
}

}  // namespace
}  // namespace convene::engine
