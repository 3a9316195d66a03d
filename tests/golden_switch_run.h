// Running a fixture of an encoder-decoder: its inputs encoded, its answers decoded and some tokens
// more generated.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "tests/golden_ranks.h"

namespace convene {

struct SwitchInput {
  std::vector<int32_t> tokens;
  std::vector<int32_t> decoder_tokens;
};

struct SwitchAnswers {
  std::vector<std::vector<float>> states;  // by input
  std::vector<std::vector<float>> logits;
  std::vector<std::vector<int32_t>> tokens;
};

inline constexpr int kNumGenerated = 5;
inline constexpr int kMostTokens = 320;  // of an input, and of an answer
inline constexpr int kInputBlocks = kMostTokens / device::kKvBlockTokens;

class SwitchRun {
 public:
  SwitchRun(runtime::Transformer& transformer, const std::vector<SwitchInput>& inputs,
            int num_groups)
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
    std::vector<device::EncoderInput> step;
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

  device::SequenceStep Step(size_t i, std::span<const int32_t> tokens, int position,
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
      std::vector<device::SequenceStep> steps;
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
    std::vector<device::SequenceStep> steps;
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
  const std::vector<SwitchInput>& inputs_;
  int num_groups_;
  std::vector<std::vector<int32_t>> blocks_;
  std::vector<std::vector<int32_t>> encoder_blocks_;
  SwitchAnswers answers_;
};

// Those of a fixture's directory.
inline std::vector<SwitchInput> ReadSwitchInputs(const std::filesystem::path& directory) {
  std::vector<SwitchInput> inputs;
  for (const std::string name : {"input_300", "input_17", "input_1"}) {
    if (!std::filesystem::exists(directory / (name + ".tokens.npy"))) continue;
    inputs.push_back({ReadNpy<int32_t>(directory / (name + ".tokens.npy")),
                      ReadNpy<int32_t>(directory / (name + ".decoder_tokens.npy"))});
  }
  return inputs;
}

}  // namespace convene
