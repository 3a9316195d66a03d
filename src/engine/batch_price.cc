#include "engine/batch_price.h"

#include <algorithm>
#include <cmath>

#include "cost/memory_tiers.h"
#include "device/step_inputs.h"
#include "model/model_size.h"
#include "strategy/paging.h"

namespace convene::engine {
namespace {

// Of the roofs of a profile, which loops of dot products and of reads reach. Of a model of 8 layers
// of 64 experts in int8 steps of one token reached 41 of 81 GB/s, and those of 200 tokens 1.1 of
// 2.1 trillion operations per second (two cores of an AMD EPYC, 30 November 2026).
constexpr double kReachedShare = 0.5;

// Experts that a step of so many tokens wants, of all layers, on even routing.
double WantedExperts(const model::ModelSpec& spec, double num_tokens) {
  double wanted = 0;
  for (const model::LayerSpec& layer : spec.layers) {
    if (layer.moe) wanted += strategy::ChosenExperts(*layer.moe, num_tokens);
  }
  return wanted;
}

// Of so many blocks of a sequence, each of all layers, how many a step reads: in a layer with a
// window those that its queries see.
double ReadBlocks(const model::ModelSpec& spec, double blocks) {
  double read = 0;
  double all = 0;
  for (const model::LayerSpec& layer : spec.layers) {
    const model::AttentionSpec& attention = layer.attention;
    const double token_elements = attention.kv_dim() + attention.value_width();
    // Half of the first block and half of the last one are read in vain.
    const double seen = attention.window > 0
                            ? static_cast<double>(attention.window) / device::kKvBlockTokens + 1
                            : blocks;
    read += token_elements * std::min(blocks, seen);
    all += token_elements;
  }
  return all > 0 ? read / all : blocks;
}

// Of a sequence, half of whose answer is there.
double BlocksWhileGenerating(const BatchWork& work) {
  return (work.prompt_tokens + work.gen_tokens / 2) / device::kKvBlockTokens + 0.5;
}

// Of all tokens of a request, on average.
double OperationsPerToken(const model::ModelSpec& spec, const BatchWork& work) {
  const auto prompt = static_cast<int>(std::max(1.0, work.prompt_tokens));
  const auto generating = static_cast<int>(work.gen_tokens) - 1;
  const double all = model::FlopsOfTokens(spec, 0, prompt, /*num_logits=*/1).total() +
                     model::FlopsOfTokens(spec, prompt, generating, generating).total();
  return all / (prompt + generating);
}

}  // namespace

BatchRates UsualRates(bool is_gpu) {
  if (is_gpu) {
    return {.disk_bytes_per_second = 20e9,
            .memory_bytes_per_second = 1e12,
            .operations_per_second = 100e12};
  }
  return {.disk_bytes_per_second = 2e9,
          .memory_bytes_per_second = 27e9,
          .operations_per_second = 730e9};
}

std::optional<BatchRates> RatesOf(const cost::MachineProfile& profile, std::string_view format,
                                  double share) {
  const auto tiers = cost::TiersOf(profile, format);
  if (!tiers) return std::nullopt;
  const cost::MemoryTier& fast = tiers->front();
  return BatchRates{.disk_bytes_per_second = (*tiers)[1].up_bytes_per_second,
                    .memory_bytes_per_second = kReachedShare * share * fast.bytes_per_second,
                    .operations_per_second = kReachedShare * share * fast.flops.value_or(0),
                    .are_measured = true};
}

BatchPricer::BatchPricer(const model::ModelSpec& spec, const BatchWork& work,
                         const BatchBytes& bytes, const BatchRates& rates)
    : spec_(spec),
      work_(work),
      bytes_(bytes),
      rates_(rates),
      operations_(OperationsPerToken(spec, work)),
      kv_blocks_read_(static_cast<double>(work.num_requests) * (work.gen_tokens - 1) *
                      ReadBlocks(spec, BlocksWhileGenerating(work))) {}

std::vector<BatchPricer::Steps> BatchPricer::StepsWith(int max_sequences, int max_step_tokens,
                                                       const MemoryPlan& memory) const {
  if (work_.num_requests == 1) {
    // Steps of its prompt want most experts, and those that generate a token few: unlike those of
    // many requests, they have nothing in common.
    const double of_prompt = std::max(1.0, std::ceil(work_.prompt_tokens / max_step_tokens));
    return {{of_prompt, std::max(1.0, work_.prompt_tokens / of_prompt)}, {work_.gen_tokens - 1, 1}};
  }
  // Where memory has room for fewer of them, these run.
  const int fitting = memory.all_kv_blocks() / BlocksOfSequence(work_);
  const double count = StepsOf(work_, std::clamp(fitting, 1, max_sequences), max_step_tokens);
  const auto requests = static_cast<double>(work_.num_requests);
  return {{count, requests * (work_.prompt_tokens + work_.gen_tokens) / count}};
}

// From the disk and to it. The step of each generated token but the first reads the blocks of its
// sequence that it sees and writes the last one again; before it the blocks of the prompt are
// written once, and where that is longer than a step, what was written is read in each of its
// steps.
double BatchPricer::MovedKvBlocks(int max_step_tokens, const MemoryPlan& memory) const {
  const double generating = work_.gen_tokens - 1;
  const double prompt_blocks = work_.prompt_tokens / device::kKvBlockTokens + 0.5;
  const double more_steps = std::floor(work_.prompt_tokens / max_step_tokens);
  const double moved = generating * (ReadBlocks(spec_, BlocksWhileGenerating(work_)) + 1) +
                       prompt_blocks + more_steps * ReadBlocks(spec_, prompt_blocks / 2);
  return static_cast<double>(work_.num_requests) * moved * memory.spilled_share();
}

BatchPrice BatchPricer::PriceOf(int max_sequences, int max_step_tokens,
                                const MemoryPlan& memory) const {
  const auto page_bytes = static_cast<double>(bytes_.page);
  const auto block_bytes = static_cast<double>(bytes_.kv_block);
  // Keys and values go with the last steps, which generate.
  double moved = block_bytes * MovedKvBlocks(max_step_tokens, memory);
  double read = block_bytes * kv_blocks_read_;
  BatchPrice all;
  const std::vector<Steps> kinds = StepsWith(max_sequences, max_step_tokens, memory);
  for (auto steps = kinds.rbegin(); steps != kinds.rend(); ++steps) {
    const double wanted = WantedExperts(spec_, steps->tokens);
    double hidden = 1;  // of the less busy one of disk and cores
    if (memory.num_page_buffers > 0) {
      const strategy::Paging paging = strategy::PagingOf(
          spec_, /*encoder=*/false, memory.num_page_buffers, std::llround(steps->tokens));
      moved += page_bytes * steps->count * wanted * paging.missing;
      // While a part of a layer is computed, the others that have room are on their way.
      hidden = std::min(1.0, (paging.depth - 1.0) / paging.chunks);
    }
    read += steps->count *
            (static_cast<double>(bytes_.step) + page_bytes * (wanted - WantedExperts(spec_, 1)));
    // Reading weights of memory hides behind products only in part, the less the fewer rows an
    // expert has.
    const double computing =
        read / rates_.memory_bytes_per_second +
        steps->count * steps->tokens * operations_ / rates_.operations_per_second;
    const double moving = moved / rates_.disk_bytes_per_second;
    all.seconds += std::max(moving, computing) + (1 - hidden) * std::min(moving, computing);
    all.moved_bytes += moved;
    moved = 0;
    read = 0;
  }
  const double tokens = work_.all_gen_tokens();
  return {.moved_bytes = all.moved_bytes / tokens, .seconds = all.seconds / tokens};
}

}  // namespace convene::engine
