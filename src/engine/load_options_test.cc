#include "engine/load_options.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "comm/threads/thread_group.h"

namespace convene::engine {
namespace {

TEST(LoadOptions, DefaultsTravelUnchanged) {
  const LoadOptions read = LoadOptionsFromJson(ToJson(LoadOptions()));
  EXPECT_EQ(ToJson(read), ToJson(LoadOptions()));
  EXPECT_FALSE(read.formats.weights);
  EXPECT_FALSE(read.context);
  EXPECT_EQ(read.max_step_tokens, LoadOptions().max_step_tokens);
}

TEST(LoadOptions, EveryFieldTravels) {
  LoadOptions options;
  options.formats = {.weights = kernels::WeightFormat::kInt4,
                     .int4_group = 64,
                     .activations = kernels::ActivationFormat::kBf16,
                     .kv = kernels::KvFormat::kInt8};
  options.numa = hardware::NumaPolicy::kLocal;
  options.num_threads = 3;
  options.may_have_fewer_threads = true;
  options.context = 77;
  options.max_step_tokens = 99;
  options.max_sequences = 5;
  options.kv_memory_s = 0.5;
  options.expert_capacity = 7;
  options.memory_budget = uint64_t{3} << 30;
  options.gpu = 1;
  options.device_memory_budget = uint64_t{15} << 30;
  options.offload = Offload::kLayers;
  options.page_directory = "/some/pages";
  options.spill_directory = "/some/disk";
  options.page_eviction = weights::PageEviction::kLongestUnused;
  options.plan.layout = strategy::Layout{.attention_dp = 2, .expert_ep = 2};
  options.plan.decode = strategy::Layout{.attention_dp = 2, .expert_tp = 2};
  options.plan.wire = plan::Wire::kFp8;
  options.experiment.router = {
      .skew = 0.25, .num_experts = 4, .shares = {{0.5, 0.75, 0.75}, {1, 1, 0}}};
  options.record = true;
  options.random_weights = true;
  options.verify_checkpoint = true;
  const nlohmann::json message = ToJson(options);
  const nlohmann::json defaults = ToJson(LoadOptions());
  // So that a field that is added to the list and forgotten here is noticed.
  for (const auto& [name, value] : message.items()) EXPECT_NE(value, defaults[name]) << name;

  const LoadOptions read = LoadOptionsFromJson(nlohmann::json::parse(message.dump()));
  EXPECT_EQ(ToJson(read), message);
  EXPECT_EQ(read.formats.weights, kernels::WeightFormat::kInt4);
  EXPECT_EQ(read.formats.int4_group, 64);
  EXPECT_EQ(read.formats.activations, kernels::ActivationFormat::kBf16);
  EXPECT_EQ(read.formats.kv, kernels::KvFormat::kInt8);
  EXPECT_EQ(read.numa, hardware::NumaPolicy::kLocal);
  EXPECT_EQ(read.num_threads, 3);
  EXPECT_TRUE(read.may_have_fewer_threads);
  EXPECT_EQ(read.context, 77);
  EXPECT_EQ(read.max_step_tokens, 99);
  EXPECT_EQ(read.max_sequences, 5);
  EXPECT_EQ(read.gpu, 1);
  EXPECT_EQ(read.device_memory_budget, uint64_t{15} << 30);
  EXPECT_EQ(read.spill_directory, "/some/disk");
  EXPECT_EQ(read.kv_memory_s, 0.5);
  EXPECT_EQ(read.expert_capacity, 7);
  EXPECT_EQ(read.plan.layout, options.plan.layout);
  EXPECT_EQ(read.plan.decode, options.plan.decode);
  EXPECT_EQ(read.plan.wire, plan::Wire::kFp8);
  EXPECT_EQ(read.experiment.router.skew, 0.25);
  EXPECT_EQ(read.experiment.router.num_experts, 4);
  EXPECT_EQ(read.experiment.router.shares, options.experiment.router.shares);
  EXPECT_TRUE(read.record);
  EXPECT_TRUE(read.random_weights);
  EXPECT_TRUE(read.verify_checkpoint);
}

TEST(LoadOptions, AGpuComputesForOneProcessAndABudgetOfItsMemoryNeedsIt) {
  EXPECT_TRUE(CheckLoadOptions({.gpu = 0, .device_memory_budget = 1 << 30}).ok());
  EXPECT_TRUE(CheckLoadOptions({.gpu = 0, .offload = Offload::kPages}).ok());
  EXPECT_TRUE(CheckLoadOptions({.offload = Offload::kPages}).ok());
  EXPECT_FALSE(CheckLoadOptions({.offload = Offload::kLayers}).ok());
  EXPECT_TRUE(CheckLoadOptions({.offload = Offload::kMapped}).ok());
  EXPECT_FALSE(CheckLoadOptions({.gpu = 0, .offload = Offload::kMapped}).ok());
  EXPECT_FALSE(CheckLoadOptions({.random_weights = true, .verify_checkpoint = true}).ok());
  const Status without = CheckLoadOptions({.device_memory_budget = 1 << 30});
  ASSERT_FALSE(without.ok());
  EXPECT_NE(without.error().message.find("give --device cuda"), std::string::npos);
  comm::RunOnThreads(2, [](comm::Group& group) {
    const Status several = CheckLoadOptions({.gpu = 0, .group = &group});
    ASSERT_FALSE(several.ok());
    EXPECT_NE(several.error().message.find("leave --device out"), std::string::npos);
  });
}

TEST(LoadOptions, AStepHasRoomForATokenOfEachSequenceOfItsGroupOfRanks) {
  LoadOptions options{.max_step_tokens = 8, .max_sequences = 8};
  EXPECT_TRUE(CheckLoadOptions(options).ok());
  options.max_sequences = 16;
  EXPECT_FALSE(CheckLoadOptions(options).ok());
  options.plan.layout = {.attention_dp = 2, .expert_ep = 2};
  EXPECT_TRUE(CheckLoadOptions(options).ok());
  options.max_sequences = 17;
  const Status refused = CheckLoadOptions(options);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("1 to 16, the 8 tokens of a chunk for each of 2 groups"),
            std::string::npos)
      << refused.error().message;
  EXPECT_NE(refused.error().message.find("raise --chunk"), std::string::npos);
  options.max_sequences = 0;
  EXPECT_FALSE(CheckLoadOptions(options).ok());
  // Ranks that divide heads have the same sequences.
  options = {.max_step_tokens = 8, .max_sequences = 9};
  options.plan.layout = {.attention_tp = 2, .expert_ep = 2};
  EXPECT_FALSE(CheckLoadOptions(options).ok());
}

TEST(LoadOptions, KeysAndValuesOfSeveralRanksAreNotKeptOnADisk) {
  comm::RunOnThreads(2, [](comm::Group& group) {
    LoadOptions options{.group = &group};
    EXPECT_TRUE(CheckLoadOptions(options).ok());
    options.spill_directory = kNoSpill;
    EXPECT_TRUE(CheckLoadOptions(options).ok());
    options.spill_directory = "/some/disk";
    const Status refused = CheckLoadOptions(options);
    ASSERT_FALSE(refused.ok());
    EXPECT_NE(refused.error().message.find("--spill-dir"), std::string::npos);
  });
}

}  // namespace
}  // namespace convene::engine
