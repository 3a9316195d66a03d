// What tests of offloaded steps share: steps with everything resident, whose bits they must give
// where the same device attends.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "device/cpu/cpu_device.h"
#include "kernels/choose_kernels.h"
#include "runtime/formats.h"
#include "runtime/offloaded_steps.h"
#include "runtime/transformer.h"
#include "weights/weight_store.h"

namespace convene {

using device::kKvBlockTokens;
using device::SequenceStep;

// Logits of each sequence, by step.
using Logits = std::vector<std::vector<std::vector<float>>>;

// A few prompts of different lengths, whose last tokens cross a block, and what generated tokens
// give with everything resident.
class Resident {
 public:
  static constexpr int kSteps = 4;

  // On a CPU, or on this device. Keeps a reference to the weights.
  Resident(const weights::ModelWeights& weights, const runtime::Formats& formats, int num_sequences,
           std::unique_ptr<device::Device> given = nullptr)
      : weights_(weights),
        formats_(formats),
        device_pool_({0}),
        host_pool_({0}),
        device_(given ? std::move(given)
                      : device::MakeCpuDevice(**kernels::ChooseKernels(), device_pool_)),
        device_ledger_({.kind = device_->memory()}),
        host_ledger_({.kind = device_->memory() == memory::TierKind::kDevice
                                  ? memory::TierKind::kPinned
                                  : memory::TierKind::kHost}),
        host_(device::MakeCpuDevice(**kernels::ChooseKernels(), host_pool_)) {
    for (int i = 0; i < num_sequences; ++i) {
      std::vector<int32_t>& tokens = tokens_.emplace_back(static_cast<size_t>(58 + 3 * i));
      for (size_t j = 0; j < tokens.size(); ++j) {
        const auto mixed = static_cast<int>((j * 7 + static_cast<size_t>(i) * 13) % 96);
        tokens[j] = mixed % weights.spec.vocab_size;
      }
      prompt_lengths_.push_back(static_cast<int>(tokens.size()));
      blocks_.emplace_back(kBlocksPerSequence);
      std::iota(blocks_.back().begin(), blocks_.back().end(), i * kBlocksPerSequence);
    }
    Run();
  }

  // The prompts' keys and values in the host's memory, as the device has them.
  std::unique_ptr<device::KvCache> HostCache() {
    auto cache = device_->CreateKvCache(weights_.spec, formats_.kv, num_blocks(), host_ledger_);
    EXPECT_TRUE(cache.ok());
    size_t place = 0;
    for (int layer = 0; layer < (*cache)->num_layers(); ++layer) {
      for (int block = 0; block < num_blocks(); ++block) {
        const std::vector<std::byte>& bytes = of_prompts_[place++];
        std::memcpy((*cache)->Address(layer, block), bytes.data(), bytes.size());
      }
    }
    return *std::move(cache);
  }

  Result<runtime::Transformer> Offload(const strategy::OffloadPipeline& pipeline,
                                       device::KvCache& cache) {
    auto steps = runtime::OffloadedSteps::Create(
        weights_, *device_, *host_, cache,
        {.pipeline = pipeline,
         .max_sequences = num_sequences(),
         .max_step_tokens = kBlocksPerSequence * kKvBlockTokens * num_sequences(),
         .context = kBlocksPerSequence * kKvBlockTokens,
         .activations = formats_.activations,
         .kv = formats_.kv,
         .cpus = {.compute = {0}}},
        {device_ledger_, host_ledger_});
    if (!steps) return steps.error();
    return runtime::Transformer::Offload(*std::move(steps));
  }

  // The same without any.
  std::unique_ptr<device::KvCache> EmptyCache() {
    auto cache = device_->CreateKvCache(weights_.spec, formats_.kv, num_blocks(), host_ledger_);
    EXPECT_TRUE(cache.ok());
    return *std::move(cache);
  }

  // All prompts, whose last tokens' logits are wanted.
  std::vector<SequenceStep> Prompts() const {
    std::vector<SequenceStep> step;
    for (size_t i = 0; i < tokens_.size(); ++i) {
      const int length = prompt_lengths_[i];
      step.push_back({.tokens = std::span(tokens_[i]).first(static_cast<size_t>(length)),
                      .blocks = blocks_[i],
                      .prompt_length = length,
                      .first_logits_token = length - 1});
    }
    return step;
  }
  const std::vector<std::vector<float>>& prompt_logits() const { return prompt_logits_; }

  // Sequences of generated token `index`, each with that one token.
  std::vector<SequenceStep> StepAt(int index) const {
    std::vector<SequenceStep> step;
    for (size_t i = 0; i < tokens_.size(); ++i) {
      const auto position = static_cast<size_t>(prompt_lengths_[i] + index);
      step.push_back({.tokens = std::span(tokens_[i]).subspan(position, 1),
                      .first_position = static_cast<int>(position),
                      .blocks = blocks_[i],
                      .prompt_length = prompt_lengths_[i]});
    }
    return step;
  }

  const Logits& logits() const { return logits_; }
  int num_sequences() const { return static_cast<int>(tokens_.size()); }

 private:
  static constexpr int kBlocksPerSequence = 2;

  int num_blocks() const { return num_sequences() * kBlocksPerSequence; }

  void Run() {
    weights::ResidentWeights store(weights_);
    auto transformer = runtime::Transformer::Create(
        store, *device_,
        {.num_kv_blocks = num_blocks(), .activations = formats_.activations, .kv = formats_.kv},
        device_ledger_);
    ASSERT_TRUE(transformer.ok()) << transformer.error().message;
    prompt_logits_.resize(tokens_.size());
    std::vector<int32_t> next(tokens_.size());
    const auto choose = [&](int sequence, std::span<const float> logits) {
      next[sequence] =
          static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    };
    ASSERT_TRUE(transformer
                    ->Forward(Prompts(),
                              [&](int sequence, int, std::span<const float> logits) {
                                prompt_logits_[sequence].assign(logits.begin(), logits.end());
                                choose(sequence, logits);
                              })
                    .ok());
    device::KvCache& cache = transformer->kv_cache();
    const auto lane = device_->CreateCopyLane();
    ASSERT_TRUE(lane.ok()) << lane.error().message;
    for (int layer = 0; layer < cache.num_layers(); ++layer) {
      for (int block = 0; block < num_blocks(); ++block) {
        std::vector<std::byte>& bytes =
            of_prompts_.emplace_back(static_cast<size_t>(cache.BlockBytes(layer)));
        (*lane)->Copy(bytes.data(), cache.Address(layer, block), bytes.size());
        ASSERT_TRUE((*lane)->Wait().ok());
      }
    }
    for (int index = 0; index < kSteps; ++index) {
      for (size_t i = 0; i < tokens_.size(); ++i) tokens_[i].push_back(next[i]);
      std::vector<std::vector<float>>& of_step = logits_.emplace_back(tokens_.size());
      ASSERT_TRUE(transformer
                      ->Forward(StepAt(index),
                                [&](int sequence, int, std::span<const float> logits) {
                                  of_step[sequence].assign(logits.begin(), logits.end());
                                  choose(sequence, logits);
                                })
                      .ok());
    }
  }

  const weights::ModelWeights& weights_;
  runtime::Formats formats_;
  // One each, since both compute at the same time.
  hardware::ThreadPool device_pool_;
  hardware::ThreadPool host_pool_;
  std::unique_ptr<device::Device> device_;
  memory::Ledger device_ledger_;
  memory::Ledger host_ledger_;
  std::unique_ptr<device::Device> host_;
  std::vector<std::vector<int32_t>> tokens_;
  std::vector<int> prompt_lengths_;
  std::vector<std::vector<int32_t>> blocks_;
  std::vector<std::vector<std::byte>> of_prompts_;  // by layer and block
  std::vector<std::vector<float>> prompt_logits_;
  Logits logits_;
};

// Of each sequence's last token.
inline std::vector<std::vector<float>> LogitsOf(runtime::Transformer& transformer,
                                                const std::vector<SequenceStep>& step) {
  std::vector<std::vector<float>> logits(step.size());
  const Status done =
      transformer.Forward(step, [&](int sequence, int, std::span<const float> of_sequence) {
        logits[static_cast<size_t>(sequence)].assign(of_sequence.begin(), of_sequence.end());
      });
  EXPECT_TRUE(done.ok()) << done.error().message;
  return logits;
}

// All steps in such an order; from the prompts on, which go through all together, or with the keys
// and values that the resident device has made of these.
inline void ExpectSameBits(Resident& resident, const strategy::OffloadPipeline& pipeline,
                           bool reads_prompts = false) {
  SCOPED_TRACE(testing::Message() << strategy::Name(pipeline.order) << ", "
                                  << pipeline.micro_batches << " micro-batches");
  const auto cache = reads_prompts ? resident.EmptyCache() : resident.HostCache();
  auto steps = resident.Offload(pipeline, *cache);
  ASSERT_TRUE(steps.ok()) << steps.error().message;
  if (reads_prompts) {
    EXPECT_EQ(LogitsOf(*steps, resident.Prompts()), resident.prompt_logits());
  }
  for (int index = 0; index < Resident::kSteps; ++index) {
    EXPECT_EQ(LogitsOf(*steps, resident.StepAt(index)), resident.logits()[index])
        << "step " << index;
  }
}

}  // namespace convene
