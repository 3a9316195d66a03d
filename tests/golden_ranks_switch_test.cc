// Encoder-decoders divided among ranks against one rank with all of it: the encoder's output, the
// decoder's logits and greedy tokens.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "tests/golden_ranks.h"

namespace convene {
namespace {

struct Input {
  std::vector<int32_t> tokens;
  std::vector<int32_t> decoder_tokens;
};

struct SwitchAnswers {
  std::vector<std::vector<float>> states;  // by input
  std::vector<std::vector<float>> logits;
  std::vector<std::vector<int32_t>> tokens;
};

constexpr int kNumGenerated = 5;
constexpr int kMostTokens = 320;  // of an input, and of an answer
constexpr int kInputBlocks = kMostTokens / runtime::kKvBlockTokens;

class SwitchRun {
 public:
  SwitchRun(runtime::Transformer& transformer, const std::vector<Input>& inputs, int num_groups)
      : transformer_(transformer), inputs_(inputs), num_groups_(num_groups) {
    const size_t count = inputs.size();
    blocks_.resize(count);
    encoder_blocks_.resize(count);
    for (size_t i = 0; i < count; ++i) {
      for (size_t block = 0; block < kInputBlocks; ++block) {
        blocks_[i].push_back(static_cast<int32_t>(2 * (block * count + i)));
        encoder_blocks_[i].push_back(static_cast<int32_t>(2 * (block * count + i) + 1));
      }
    }
    answers_.states.resize(count);
    answers_.logits.resize(count);
    answers_.tokens.resize(count);
  }

  SwitchAnswers Execute() {
    Encode();
    Decode();
    for (int position = 0; position < kNumGenerated; ++position) Generate(position);
    return answers_;
  }

 private:
  int GroupOf(size_t i) const { return static_cast<int>(i) % num_groups_; }

  void Encode() {
    std::vector<runtime::EncoderInput> step;
    for (size_t i = 0; i < inputs_.size(); ++i) {
      step.push_back({inputs_[i].tokens, encoder_blocks_[i], GroupOf(i)});
    }
    ExpectDone(transformer_.Encode(step, [&](int input, int token, std::span<const float> row) {
      EXPECT_EQ(answers_.states[input].size(), token * row.size());
      answers_.states[input].insert(answers_.states[input].end(), row.begin(), row.end());
    }));
    // Nobody has to look.
    ExpectDone(transformer_.Encode(step, {}));
  }

  runtime::SequenceStep Step(size_t i, std::span<const int32_t> tokens, int position,
                             int prompt_length) const {
    return {.tokens = tokens,
            .first_position = position,
            .blocks = blocks_[i],
            .prompt_length = prompt_length,
            .encoder_blocks = encoder_blocks_[i],
            .encoder_length = static_cast<int>(inputs_[i].tokens.size()),
            .group = GroupOf(i)};
  }

  void Decode() {
    // In two steps; in the first one only the last token's logits are wanted, and computed alone.
    for (const bool first : {true, false}) {
      std::vector<runtime::SequenceStep> steps;
      std::vector<size_t> sequences;
      for (size_t i = 0; i < inputs_.size(); ++i) {
        const std::span<const int32_t> tokens = inputs_[i].decoder_tokens;
        const size_t half = (tokens.size() + 1) / 2;
        const auto part = first ? tokens.first(half) : tokens.subspan(half);
        if (part.empty()) continue;
        steps.push_back(
            Step(i, part, first ? 0 : static_cast<int>(half), static_cast<int>(tokens.size())));
        if (first) steps.back().first_logits_token = static_cast<int>(part.size()) - 1;
        sequences.push_back(i);
      }
      if (steps.empty()) continue;
      ExpectDone(transformer_.Forward(steps, [&](int idx, int, std::span<const float> row) {
        auto& logits = answers_.logits[sequences[idx]];
        logits.insert(logits.end(), row.begin(), row.end());
      }));
    }
  }

  void Generate(int position) {
    std::vector<runtime::SequenceStep> steps;
    for (size_t i = 0; i < inputs_.size(); ++i) {
      if (position == 0) answers_.tokens[i] = {0};
      steps.push_back(Step(i, std::span(answers_.tokens[i]).last(1), position, 1));
    }
    std::vector<int32_t> next(inputs_.size());
    ExpectDone(transformer_.Forward(
        steps, [&](int idx, int, std::span<const float> row) { next[idx] = BestToken(row); }));
    for (size_t i = 0; i < next.size(); ++i) answers_.tokens[i].push_back(next[i]);
  }

  runtime::Transformer& transformer_;
  const std::vector<Input>& inputs_;
  int num_groups_;
  std::vector<std::vector<int32_t>> blocks_;
  std::vector<std::vector<int32_t>> encoder_blocks_;
  SwitchAnswers answers_;
};

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
    for (const std::string name : {"input_300", "input_17", "input_1"}) {
      if (!std::filesystem::exists(directory / (name + ".tokens.npy"))) continue;
      inputs_.push_back({ReadNpy<int32_t>(directory / (name + ".tokens.npy")),
                         ReadNpy<int32_t>(directory / (name + ".decoder_tokens.npy"))});
    }
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
  std::vector<Input> inputs_;
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
  auto weights = weights::LoadWeights(*checkpoint_, {.matrices = kernels::WeightFormat::kF32}, {},
                                      hardware::NumaPolicy::kAuto, pool, {});
  ASSERT_TRUE(weights.ok());
  runtime::TransformerOptions options{.num_kv_blocks = 1,
                                      .activations = kernels::ActivationFormat::kF32,
                                      .kv = kernels::KvFormat::kF32,
                                      .expert_capacity = 5};
  options.parallel.roles = strategy::Layout{2, 1, 1, 2};
  const auto refused = runtime::Transformer::Create(*weights, kernels, pool, options);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("divide attention by sequences"), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Fixture, GoldenRanksOfSwitch,
                         testing::Values("switch_plain", "switch_untied", "switch_capacity"),
                         [](const auto& fixture) { return fixture.param; });

}  // namespace
}  // namespace convene
