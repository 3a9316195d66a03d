// Encoder-decoders divided among ranks against one rank with all of it: the encoder's output, the
// decoder's logits and greedy tokens.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "tests/golden_switch_run.h"

namespace convene {
namespace {

class GoldenRanksOfSwitch : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::filesystem::path directory =
        std::filesystem::path(CONVENE_SOURCE_DIR "/tests/golden/models") / GetParam();
    auto checkpoint = checkpoint::Checkpoint::Open(directory.string());
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
    checkpoint_ = std::make_unique<checkpoint::Checkpoint>(std::move(*checkpoint));
    std::ifstream file(directory / "fixture.json");
    const nlohmann::json fixture = nlohmann::json::parse(file);
    if (!fixture["expert_capacity"].is_null()) capacity_ = fixture["expert_capacity"];
    inputs_ = ReadSwitchInputs(directory);
    ASSERT_FALSE(inputs_.empty());
  }

  SwitchAnswers Run(const DividedOptions& divided) {
    SwitchAnswers answers;
    RunDivided(*checkpoint_, divided,
               {.max_step_tokens = kMostTokens * 2,
                .num_kv_blocks = 2 * kInputBlocks * static_cast<int>(inputs_.size()),
                .expert_capacity = capacity_},
               [&](runtime::Transformer& transformer) {
                 const int num_groups = divided.division.layout.attention_dp;
                 answers = SwitchRun(transformer, inputs_, num_groups).Execute();
               });
    return answers;
  }

  std::unique_ptr<checkpoint::Checkpoint> checkpoint_;
  std::vector<SwitchInput> inputs_;
  int capacity_ = 0;
};

TEST_P(GoldenRanksOfSwitch, ComputeWhatOneRankDoes) {
  for (const kernels::WeightFormat format :
       {kernels::WeightFormat::kF32, kernels::WeightFormat::kBf16}) {
    DividedOptions divided{.formats = runtime::DefaultFormats(format)};
    const SwitchAnswers one = Run(divided);
    int num_divisions = 0;
    for (const Division& division : Divisions()) {
      divided.division = division;
      if (!Fits(*checkpoint_, divided)) continue;
      // Refused: who comes too late is decided where all of a sequence is.
      if (capacity_ > 0 && division.layout.attention_tp > 1) continue;
      const bool to_the_bit = IsExact(checkpoint_->spec(), division.layout);
      if (!to_the_bit && format != kernels::WeightFormat::kF32) continue;
      SCOPED_TRACE(division.name);
      ++num_divisions;
      const SwitchAnswers many = Run(divided);
      EXPECT_EQ(many.tokens, one.tokens);
      for (size_t i = 0; i < inputs_.size(); ++i) {
        ASSERT_EQ(many.states[i].size(), one.states[i].size());
        ASSERT_EQ(many.logits[i].size(), one.logits[i].size());
        if (to_the_bit) {
          EXPECT_TRUE(many.states[i] == one.states[i]) << "input " << i;
          EXPECT_TRUE(many.logits[i] == one.logits[i]) << "input " << i;
        } else {
          EXPECT_LT(RelativeDifference(many.states[i], one.states[i]), 1e-5) << "input " << i;
          EXPECT_LT(RelativeDifference(many.logits[i], one.logits[i]), 1e-5) << "input " << i;
        }
      }
    }
    EXPECT_GE(num_divisions, 4);
  }
}

TEST_P(GoldenRanksOfSwitch, WithACapacityShareNoSequence) {
  const kernels::KernelSet& kernels = **kernels::ChooseKernels();
  hardware::ThreadPool pool({0});
  memory::Ledger ledger;
  auto weights = weights::LoadWeights(*checkpoint_, {.matrices = kernels::WeightFormat::kF32}, {},
                                      hardware::NumaPolicy::kAuto, pool, ledger, {});
  ASSERT_TRUE(weights.ok());
  runtime::TransformerOptions options{.num_kv_blocks = 1,
                                      .activations = kernels::ActivationFormat::kF32,
                                      .kv = kernels::KvFormat::kF32,
                                      .expert_capacity = 5};
  options.parallel.roles = strategy::Layout{2, 1, 1, 2};
  weights::ResidentWeights store(*weights);
  const auto refused =
      runtime::Transformer::Create(store, *device::MakeCpuDevice(kernels, pool), options, ledger);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("divide attention by sequences"), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Fixture, GoldenRanksOfSwitch,
                         testing::Values("switch_plain", "switch_untied", "switch_capacity"),
                         [](const auto& fixture) { return fixture.param; });

}  // namespace
}  // namespace convene
