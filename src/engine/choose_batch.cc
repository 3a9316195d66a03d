#include "engine/choose_batch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "base/units.h"
#include "device/step_inputs.h"
#include "strategy/paging.h"

namespace convene::engine {
namespace {

constexpr int kMostSequences = 4096;        // as `convene batch --max-batch`
constexpr int kFewestChosenTokens = 64;     // of a step
constexpr int kMostChosenTokens = 1 << 15;  // likewise
constexpr double kMargin = 0.98;            // a gain of less is none
constexpr double kSequencesFactor = 1.25;   // between numbers that are tried
constexpr double kTokensFactor = 2;

// From `usual` up to `most`, then down to `least`, each by the factor, and by one at least, from
// the one before: so that what is usual is taken where others gain nothing.
std::vector<int> Sizes(int least, int usual, int most, double factor) {
  std::vector<int> sizes;
  const int first = std::clamp(usual, least, most);
  for (double size = first; size < most; size = std::max(size + 1, size * factor)) {
    sizes.push_back(static_cast<int>(size));
  }
  sizes.push_back(most);
  for (int size = first; size > least; sizes.push_back(size)) {
    size = std::max(least, std::min(size - 1, static_cast<int>(size / factor)));
  }
  return sizes;
}

// Experts that a step of so many tokens wants, of all layers, on even routing.
double WantedExperts(const model::ModelSpec& spec, double num_tokens) {
  double wanted = 0;
  for (const model::LayerSpec& layer : spec.layers) {
    if (!layer.moe) continue;
    const double experts = layer.moe->num_experts;
    wanted += experts * (1 - std::pow(1 - layer.moe->top_k / experts, num_tokens));
  }
  return wanted;
}

double ReadBytesPerToken(const model::ModelSpec& spec, const BatchWork& work, int max_sequences,
                         int max_step_tokens, uint64_t page_bytes, const MemoryPlan& memory) {
  const double steps = StepsOf(work, max_sequences, max_step_tokens);
  const auto requests = static_cast<double>(work.num_requests);
  const double tokens_per_step = requests * (work.prompt_tokens + work.gen_tokens) / steps;
  const double missing =
      1 - static_cast<double>(memory.num_page_buffers) / std::max(1, strategy::CountExperts(spec));
  return steps * WantedExperts(spec, tokens_per_step) * missing * static_cast<double>(page_bytes) /
         (requests * work.gen_tokens);
}

}  // namespace

int BlocksOfSequence(const BatchWork& work) {
  const double tokens = work.prompt_tokens + work.gen_tokens;
  return static_cast<int>(std::ceil(tokens / device::kKvBlockTokens)) + 1;
}

double StepsOf(const BatchWork& work, int max_sequences, int max_step_tokens) {
  const auto requests = static_cast<double>(work.num_requests);
  const double together = std::min<double>(requests, max_sequences);
  const double generating = requests / together * work.gen_tokens;
  const double first_prompts = together * work.prompt_tokens / max_step_tokens;
  const double all_tokens = requests * (work.prompt_tokens + work.gen_tokens - 1) / max_step_tokens;
  return std::max({1.0, all_tokens, generating + first_prompts});
}

std::string BatchChoice::Describe() const {
  return fmt::format(
      "{} at a time in steps of at most {}: of what was tried this reads the least from the disk, "
      "about {} for each generated token (KV cache {}, {} in memory)",
      FormatCount(static_cast<uint64_t>(max_sequences), "sequence"),
      FormatCount(static_cast<uint64_t>(max_step_tokens), "token"),
      FormatBytes(static_cast<uint64_t>(read_bytes_per_token)), FormatBytes(memory.kv_bytes()),
      FormatCount(static_cast<uint64_t>(memory.num_page_buffers), "expert"));
}

Result<BatchChoice> ChooseBatch(
    const model::ModelSpec& spec, const BatchWork& work, int max_sequences, int max_step_tokens,
    uint64_t page_bytes,
    const std::function<Result<MemoryPlan>(int max_sequences, int max_step_tokens)>& plan) {
  const auto wanted = static_cast<int>(std::min<int64_t>(work.num_requests, kMostSequences));
  const std::vector<int> sequences_to_try =
      work.chooses_sequences ? Sizes(1, max_sequences, std::max(1, wanted), kSequencesFactor)
                             : std::vector{max_sequences};
  std::optional<BatchChoice> best;
  std::optional<BatchChoice> with_too_few_blocks;
  std::optional<Error> error;
  for (const int sequences : sequences_to_try) {
    const std::vector<int> tokens_to_try =
        work.chooses_step_tokens
            ? Sizes(std::min(kFewestChosenTokens, max_step_tokens), max_step_tokens,
                    std::max({max_step_tokens, sequences, kMostChosenTokens}), kTokensFactor)
            : std::vector{max_step_tokens};
    for (const int tokens : tokens_to_try) {
      if (sequences > tokens) continue;
      const Result<MemoryPlan> memory = plan(sequences, tokens);
      if (!memory) {
        if (!error) error = memory.error();
        continue;
      }
      const BatchChoice choice{.max_sequences = sequences,
                               .max_step_tokens = tokens,
                               .memory = *memory,
                               .read_bytes_per_token = ReadBytesPerToken(
                                   spec, work, sequences, tokens, page_bytes, *memory)};
      if (memory->num_kv_blocks < sequences * BlocksOfSequence(work)) {
        if (!with_too_few_blocks) with_too_few_blocks = choice;
        continue;
      }
      const bool is_better =
          !best || choice.read_bytes_per_token < kMargin * best->read_bytes_per_token;
      if (is_better) best = choice;
    }
  }
  // Requests that differ much in length, or a number of sequences that was given: as many of them
  // as have room run, like in any load.
  if (!best) best = with_too_few_blocks;
  if (!best) return *error;
  return *best;
}

}  // namespace convene::engine
