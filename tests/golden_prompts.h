// Prompts of the fixtures with what Hugging Face transformers gave for them, and a loaded fixture
// that runs them whole, in chunks and together.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "runtime/transformer.h"
#include "tests/golden_fixtures.h"

namespace convene {

inline constexpr int kMaxLength = 384;  // the longest prompt and 32 tokens more
inline constexpr int kNumSequences = 3;
inline constexpr int kBlocksEach = kMaxLength / device::kKvBlockTokens;

struct Prompt {
  std::vector<int32_t> tokens;
  std::vector<float> logits;
  std::vector<float> router_margin;
  std::vector<int32_t> greedy;
  std::vector<float> greedy_margin;
};

inline Prompt ReadPrompt(const std::filesystem::path& directory, const std::string& name) {
  const auto at = [&](const char* kind) { return directory / (name + "." + kind + ".npy"); };
  return {.tokens = ReadNpy<int32_t>(at("tokens")),
          .logits = ReadNpy<float>(at("logits")),
          .router_margin = ReadNpy<float>(at("router_margin")),
          .greedy = ReadNpy<int32_t>(at("greedy")),
          .greedy_margin = ReadNpy<float>(at("greedy_margin"))};
}

// The fixtures with prompts; those of encoder-decoders have inputs (golden_switch_test.cc).
inline std::vector<std::filesystem::path> Fixtures() {
  std::vector<std::filesystem::path> fixtures;
  const std::filesystem::path root = CONVENE_SOURCE_DIR "/tests/golden/models";
  for (const auto& entry : std::filesystem::directory_iterator(root)) {
    if (std::filesystem::exists(entry.path() / "prompt_300.tokens.npy")) {
      fixtures.push_back(entry.path());
    }
  }
  std::sort(fixtures.begin(), fixtures.end());
  return fixtures;
}

// A loaded model with room for a few sequences, each with blocks of its own.
class LoadedModel : public LoadedFixture {
 public:
  LoadedModel(const checkpoint::Checkpoint& checkpoint, const runtime::Formats& formats,
              const kernels::KernelSet& kernels, int num_threads,
              int expand_from_tokens = strategy::kExpandFromTokens,
              const DeviceOf& device_of = device::MakeCpuDevice, const StoreOf& store_of = {})
      : LoadedFixture(checkpoint, formats, kernels, num_threads,
                      {.max_step_tokens = kMaxLength * kNumSequences,
                       .num_kv_blocks = kBlocksEach * kNumSequences,
                       .parallel = {.roles = strategy::Roles().ExpandingFrom(expand_from_tokens)}},
                      {}, store_of, device_of) {
    for (int i = 0; i < kNumSequences; ++i) {
      // Interleaved, so that no sequence's blocks are neighbours.
      for (int block = 0; block < kBlocksEach; ++block) {
        blocks_[i].push_back(block * kNumSequences + i);
      }
    }
  }

  // Logits of all positions of `tokens`, as sequence `slot`, in steps of at most `chunk` tokens.
  std::vector<float> Logits(std::span<const int32_t> tokens, int chunk, int slot = 0) {
    std::vector<float> logits;
    const auto length = static_cast<int>(tokens.size());
    for (int begin = 0; begin < length; begin += chunk) {
      const auto part = tokens.subspan(begin, std::min(chunk, length - begin));
      const device::SequenceStep step{.tokens = part,
                                      .first_position = begin,
                                      .blocks = blocks_[slot],
                                      .prompt_length = length};
      ExpectDone(transformer().Forward({&step, 1}, [&](int, int, std::span<const float> row) {
        logits.insert(logits.end(), row.begin(), row.end());
      }));
    }
    return logits;
  }

  // Logits of tokens[wanted_from ...] in one step.
  std::vector<float> LogitsFrom(std::span<const int32_t> tokens, int wanted_from) {
    std::vector<float> logits;
    const device::SequenceStep step{.tokens = tokens,
                                    .blocks = blocks_[1],
                                    .prompt_length = static_cast<int>(tokens.size()),
                                    .first_logits_token = wanted_from};
    ExpectDone(
        transformer().Forward({&step, 1}, [&](int, int token_idx, std::span<const float> row) {
          CHECK(token_idx >= wanted_from);
          logits.insert(logits.end(), row.begin(), row.end());
        }));
    return logits;
  }

  // Logits of all positions of several prompts, run together.
  std::vector<std::vector<float>> LogitsTogether(const std::vector<Prompt>& prompts) {
    std::vector<device::SequenceStep> steps;
    for (size_t i = 0; i < prompts.size(); ++i) {
      steps.push_back({.tokens = prompts[i].tokens,
                       .first_position = 0,
                       .blocks = blocks_[i],
                       .prompt_length = static_cast<int>(prompts[i].tokens.size())});
    }
    std::vector<std::vector<float>> logits(prompts.size());
    ExpectDone(transformer().Forward(steps, [&](int sequence_idx, int, std::span<const float> row) {
      logits[sequence_idx].insert(logits[sequence_idx].end(), row.begin(), row.end());
    }));
    return logits;
  }

  std::vector<int32_t> Greedy(const Prompt& prompt, size_t count) {
    std::vector<int32_t> generated;
    std::vector<int32_t> next = prompt.tokens;
    const auto prompt_length = static_cast<int>(prompt.tokens.size());
    int position = 0;
    while (generated.size() < count) {
      const auto length = static_cast<int>(next.size());
      const device::SequenceStep step{.tokens = next,
                                      .first_position = position,
                                      .blocks = blocks_[0],
                                      .prompt_length = prompt_length,
                                      .first_logits_token = length - 1,
                                      .largest_suffices = true};
      int32_t best = 0;
      ExpectDone(transformer().Forward({&step, 1}, [&](int, int, const runtime::Logits& logits) {
        best = logits.largest();
        if (logits.is_largest_alone()) return;
        const std::span<const float> row = logits;
        best = static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
      }));
      generated.push_back(best);
      position += length;
      next = {best};
    }
    return generated;
  }

 private:
  std::vector<int32_t> blocks_[kNumSequences];
};

}  // namespace convene
