// Encoder-decoders against Hugging Face transformers (tests/golden/models/switch_*, made by
// tools/make_switch_fixtures.py), and that nothing but a sequence decides about its results.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>

#include "checkpoint/checkpoint.h"
#include "kernels/choose_kernels.h"
#include "runtime/transformer.h"
#include "tests/golden_fixtures.h"
#include "weights/load_weights.h"

namespace convene {
namespace {

using kernels::KernelSet;
using kernels::WeightFormat;
using runtime::DefaultFormats;
using runtime::Formats;

constexpr int kMostTokens = 320;  // of an input, and of an answer
constexpr int kNumInputs = 3;
constexpr int kBlocksEach = kMostTokens / device::kKvBlockTokens;

struct Input {
  std::vector<int32_t> tokens;
  std::vector<float> states;  // (tokens, hidden)
  std::vector<float> router_margin;
  std::vector<int32_t> decoder_tokens;
  std::vector<float> decoder_router_margin;
  std::vector<float> logits;  // (decoder_tokens, vocab)
  std::vector<int32_t> greedy;
  std::vector<float> greedy_margin;
};

class Model : public LoadedFixture {
 public:
  Model(const checkpoint::Checkpoint& checkpoint, const Formats& formats, const KernelSet& kernels,
        int num_threads, int capacity)
      : LoadedFixture(checkpoint, formats, kernels, num_threads,
                      {.max_step_tokens = kMostTokens * kNumInputs,
                       .num_kv_blocks = 2 * kBlocksEach * kNumInputs,
                       .expert_capacity = capacity}) {
    for (int block = 0; block < kBlocksEach; ++block) {
      for (int i = 0; i < kNumInputs; ++i) {
        blocks_[i].push_back(2 * (block * kNumInputs + i));
        encoder_blocks_[i].push_back(2 * (block * kNumInputs + i) + 1);
      }
    }
  }

  // States of several inputs, encoded together; input i keeps place `first_place` + i.
  std::vector<std::vector<float>> Encode(std::span<const Input> inputs, int first_place = 0) {
    std::vector<device::EncoderInput> step;
    for (size_t i = 0; i < inputs.size(); ++i) {
      step.push_back({inputs[i].tokens, encoder_blocks_[first_place + i]});
    }
    std::vector<std::vector<float>> states(inputs.size());
    ExpectDone(transformer().Encode(step, [&](int input, int, std::span<const float> row) {
      states[input].insert(states[input].end(), row.begin(), row.end());
    }));
    return states;
  }

  // Logits of all decoder tokens, in steps of at most `chunk`, after Encode.
  std::vector<float> Logits(const Input& input, int chunk, int place = 0) {
    std::vector<float> logits;
    const auto length = static_cast<int>(input.decoder_tokens.size());
    for (int begin = 0; begin < length; begin += chunk) {
      const int count = std::min(chunk, length - begin);
      const auto part = std::span(input.decoder_tokens).subspan(begin, count);
      const device::SequenceStep step = Step(input, part, begin, length, 0, place);
      ExpectDone(transformer().Forward({&step, 1}, [&](int, int, std::span<const float> row) {
        logits.insert(logits.end(), row.begin(), row.end());
      }));
    }
    return logits;
  }

  std::vector<std::vector<float>> LogitsTogether(std::span<const Input> inputs) {
    std::vector<device::SequenceStep> steps;
    for (size_t i = 0; i < inputs.size(); ++i) {
      const auto& tokens = inputs[i].decoder_tokens;
      steps.push_back(
          Step(inputs[i], tokens, 0, static_cast<int>(tokens.size()), 0, static_cast<int>(i)));
    }
    std::vector<std::vector<float>> logits(inputs.size());
    ExpectDone(transformer().Forward(steps, [&](int i, int, std::span<const float> row) {
      logits[i].insert(logits[i].end(), row.begin(), row.end());
    }));
    return logits;
  }

  std::vector<int32_t> Greedy(const Input& input) {
    std::vector<int32_t> generated;
    std::vector<int32_t> next = {spec().decoder_start_token};
    while (generated.size() < input.greedy.size()) {
      const auto position = static_cast<int>(generated.size());
      const device::SequenceStep step = Step(input, next, position, 1, 0, 0);
      ExpectDone(transformer().Forward({&step, 1}, [&](int, int, std::span<const float> row) {
        next = {static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin())};
      }));
      generated.push_back(next.front());
    }
    return generated;
  }

 private:
  device::SequenceStep Step(const Input& input, std::span<const int32_t> tokens, int position,
                            int prompt_length, int first_logits_token, int place) const {
    return {.tokens = tokens,
            .first_position = position,
            .blocks = blocks_[place],
            .prompt_length = prompt_length,
            .first_logits_token = first_logits_token,
            .encoder_blocks = encoder_blocks_[place],
            .encoder_length = static_cast<int>(input.tokens.size())};
  }

  std::vector<int32_t> blocks_[kNumInputs];
  std::vector<int32_t> encoder_blocks_[kNumInputs];
};

class GoldenSwitch : public testing::TestWithParam<const char*> {
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
    for (const char* name : {"input_300", "input_17", "input_1"}) {
      const auto at = [&](const char* kind) {
        return directory / fmt::format("{}.{}.npy", name, kind);
      };
      if (!std::filesystem::exists(at("tokens"))) continue;
      inputs_.push_back({.tokens = ReadNpy<int32_t>(at("tokens")),
                         .states = ReadNpy<float>(at("states")),
                         .router_margin = ReadNpy<float>(at("router_margin")),
                         .decoder_tokens = ReadNpy<int32_t>(at("decoder_tokens")),
                         .decoder_router_margin = ReadNpy<float>(at("decoder_router_margin")),
                         .logits = ReadNpy<float>(at("logits")),
                         .greedy = ReadNpy<int32_t>(at("greedy")),
                         .greedy_margin = ReadNpy<float>(at("greedy_margin"))});
    }
    ASSERT_FALSE(inputs_.empty());
  }

  int num_layers() const {
    return static_cast<int>(checkpoint_->spec().layers.size() +
                            checkpoint_->spec().encoder_layers.size());
  }

  std::unique_ptr<checkpoint::Checkpoint> checkpoint_;
  std::vector<Input> inputs_;
  int capacity_ = 0;
};

TEST_P(GoldenSwitch, Float32EqualsTransformers) {
  for (const KernelSet* kernels : kernels::SupportedKernels()) {
    Model model(*checkpoint_, DefaultFormats(WeightFormat::kF32), *kernels, 1, capacity_);
    for (const Input& input : inputs_) {
      const auto states = model.Encode({&input, 1}).front();
      ASSERT_EQ(states.size(), input.states.size());
      EXPECT_LE(NormOfDifference(states, input.states), 1e-5 * NormOf(input.states))
          << kernels->name << ", states of " << input.tokens.size();
      const auto logits = model.Logits(input, kMostTokens);
      ASSERT_EQ(logits.size(), input.logits.size());
      EXPECT_LE(NormOfDifference(logits, input.logits), 1e-5 * NormOf(input.logits))
          << kernels->name << ", logits of " << input.tokens.size();
      EXPECT_EQ(model.Greedy(input), input.greedy) << kernels->name;
    }
  }
}

// Without a capacity: a rounding may change who comes too late.
class GoldenSwitchRounded : public GoldenSwitch {};

TEST_P(GoldenSwitchRounded, Bf16StaysWithinTheBoundOfItsRoundings) {
  const double bound = Bf16Bound(num_layers());
  for (const KernelSet* kernels : kernels::SupportedKernels()) {
    Model model(*checkpoint_, DefaultFormats(WeightFormat::kBf16), *kernels, 1, capacity_);
    int num_left_out = 0;
    int num_positions = 0;
    const auto compare = [&](const std::vector<float>& actual, const std::vector<float>& expected,
                             const std::vector<float>& margin) {
      ASSERT_EQ(actual.size(), expected.size());
      const size_t width = expected.size() / margin.size();
      for (size_t position = 0; position < margin.size(); ++position) {
        ++num_positions;
        if (margin[position] <= bound) {
          ++num_left_out;
          continue;
        }
        const std::span there(&expected[position * width], width);
        EXPECT_LE(NormOfDifference({&actual[position * width], width}, there),
                  bound * NormOf(there))
            << kernels->name << ", position " << position;
      }
    };
    for (const Input& input : inputs_) {
      compare(model.Encode({&input, 1}).front(), input.states, input.router_margin);
      compare(model.Logits(input, kMostTokens), input.logits, input.decoder_router_margin);
    }
    EXPECT_LE(num_left_out, 0.05 * num_positions);
  }
}

TEST_P(GoldenSwitch, ResultsDependOnNothingButTheSequence) {
  for (const Formats& formats : EveryFormat()) {
    for (const KernelSet* kernels : kernels::SupportedKernels()) {
      const bool reference = kernels->name == std::string_view("reference");
      if (reference && kernels::IsInteger(formats.weights.matrices)) continue;  // slow
      Model alone(*checkpoint_, formats, *kernels, 1, capacity_);
      std::vector<std::vector<float>> states;
      std::vector<std::vector<float>> logits;
      for (const Input& input : inputs_) {
        states.push_back(alone.Encode({&input, 1}).front());
        logits.push_back(alone.Logits(input, kMostTokens));
      }
      Model model(*checkpoint_, formats, *kernels, 3, capacity_);
      EXPECT_TRUE(model.Encode(inputs_) == states) << kernels->name << " " << Describe(formats);
      EXPECT_TRUE(model.LogitsTogether(inputs_) == logits)
          << kernels->name << " " << Describe(formats);
      for (const int chunk : {1, 7, 64}) {
        if (chunk == 1 && reference) continue;  // slow
        for (size_t i = 0; i < inputs_.size(); ++i) {
          EXPECT_TRUE(model.Logits(inputs_[i], chunk, static_cast<int>(i)) == logits[i])
              << kernels->name << " " << Describe(formats) << ", chunks of " << chunk;
        }
      }
    }
  }
}

TEST_P(GoldenSwitchRounded, IntegerFormatsStayNearFloat32) {
  for (const Formats& formats : EveryFormat()) {
    if (!kernels::IsInteger(formats.weights.matrices)) continue;
    const bool int8 = formats.weights.matrices == WeightFormat::kInt8;
    Model model(*checkpoint_, formats, *kernels::SupportedKernels().front(), 2, capacity_);
    double error = 0;
    double energy = 0;
    for (const Input& input : inputs_) {
      const auto states = model.Encode({&input, 1}).front();
      error += std::pow(NormOfDifference(states, input.states), 2);
      energy += std::pow(NormOf(input.states), 2);
    }
    EXPECT_LE(std::sqrt(error / energy), int8 ? 0.12 : 0.7) << Describe(formats);
  }
}

std::string NameOf(const testing::TestParamInfo<const char*>& fixture) { return fixture.param; }

INSTANTIATE_TEST_SUITE_P(Fixture, GoldenSwitch,
                         testing::Values("switch_plain", "switch_untied", "switch_capacity"),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Fixture, GoldenSwitchRounded,
                         testing::Values("switch_plain", "switch_untied"), NameOf);

}  // namespace
}  // namespace convene
