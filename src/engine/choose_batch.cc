#include "engine/choose_batch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "base/units.h"
#include "device/step_inputs.h"
#include "engine/scheduler.h"
#include "planner/spilled_steps.h"
#include "strategy/paging.h"

namespace convene::engine {
namespace {

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
    if (layer.moe) wanted += strategy::ChosenExperts(*layer.moe, num_tokens);
  }
  return wanted;
}

// Of steps that have so many tokens, where so many experts have room.
double ReadExpertsOf(const model::ModelSpec& spec, const BatchChoice& choice, double num_steps,
                     double tokens) {
  const strategy::Paging paging = strategy::PagingOf(
      spec, /*encoder=*/false, choice.memory.num_page_buffers, std::llround(tokens));
  return num_steps * WantedExperts(spec, tokens) * paging.missing;
}

// Of all of the batch's steps.
double ReadExpertBytes(const model::ModelSpec& spec, const BatchWork& work,
                       const BatchChoice& choice, uint64_t page_bytes) {
  if (work.num_requests == 1) {
    // Steps of its prompt want most experts, and those that generate a token few: unlike those of
    // many requests, they have nothing in common.
    const double steps = std::max(1.0, std::ceil(work.prompt_tokens / choice.max_step_tokens));
    const double experts =
        ReadExpertsOf(spec, choice, steps, std::max(1.0, work.prompt_tokens / steps)) +
        ReadExpertsOf(spec, choice, work.gen_tokens - 1, 1);
    return experts * static_cast<double>(page_bytes);
  }
  // Where memory has room for fewer of them, these run.
  const int fitting = choice.memory.all_kv_blocks() / BlocksOfSequence(work);
  const double steps =
      StepsOf(work, std::clamp(fitting, 1, choice.max_sequences), choice.max_step_tokens);
  const auto requests = static_cast<double>(work.num_requests);
  const double tokens_per_step = requests * (work.prompt_tokens + work.gen_tokens) / steps;
  return ReadExpertsOf(spec, choice, steps, tokens_per_step) * static_cast<double>(page_bytes);
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

// Likewise. The step of each generated token but the first reads the blocks of its sequence that it
// sees and writes the last one again; before it the blocks of the prompt are written once, and
// where that is longer than a step, what was written is read in each of its steps.
double MovedKvBytes(const model::ModelSpec& spec, const BatchWork& work, const BatchChoice& choice,
                    uint64_t block_bytes) {
  const double generating = work.gen_tokens - 1;
  const double blocks = (work.prompt_tokens + work.gen_tokens / 2) / device::kKvBlockTokens + 0.5;
  const double prompt_blocks = work.prompt_tokens / device::kKvBlockTokens + 0.5;
  const double more_steps = std::floor(work.prompt_tokens / choice.max_step_tokens);
  const double moved = generating * (ReadBlocks(spec, blocks) + 1) + prompt_blocks +
                       more_steps * ReadBlocks(spec, prompt_blocks / 2);
  return static_cast<double>(work.num_requests) * moved * choice.memory.spilled_share() *
         static_cast<double>(block_bytes);
}

}  // namespace

int BlocksOfSequence(const BatchWork& work) {
  const double tokens = work.prompt_tokens + work.gen_tokens;
  if (work.longest != tokens) return planner::BlocksOfSequence(tokens);
  // All are alike: the last one is let in while the others have read their prompts at most.
  return std::max(Scheduler::BlocksFor(work.longest),
                  Scheduler::BlocksFor(static_cast<int>(work.prompt_tokens)) + 1);
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
  const double share = memory.spilled_share();
  return fmt::format(
      "{} at a time in steps of at most {}: of what was tried this {} the least {} the "
      "disk, about {} for each generated token (KV cache {}{}, {} in memory)",
      FormatCount(static_cast<uint64_t>(max_sequences), "sequence"),
      FormatCount(static_cast<uint64_t>(max_step_tokens), "token"), share > 0 ? "moves" : "reads",
      share > 0 ? "from and to" : "from", FormatBytes(static_cast<uint64_t>(moved_bytes_per_token)),
      FormatBytes(memory.kv_bytes()),
      share > 0 ? fmt::format(" and {:.0f} % of it on the disk", 100 * share) : "",
      FormatCount(static_cast<uint64_t>(memory.num_page_buffers), "expert"));
}

namespace {

// Keeps the best of those that are tried.
class Best {
 public:
  Best(const model::ModelSpec& spec, const BatchWork& work, uint64_t page_bytes,
       uint64_t block_bytes)
      : spec_(spec), work_(work), page_bytes_(page_bytes), block_bytes_(block_bytes) {}

  void Try(int sequences, int tokens, Result<MemoryPlan> memory) {
    if (!memory) {
      // People are told what the smallest takes: less memory than that is of no use. Of the same
      // size the last one says most, since it may keep keys and values on the disk.
      if (error_ && std::pair(tokens, sequences) > error_size_) return;
      error_ = memory.error();
      error_size_ = {tokens, sequences};
      return;
    }
    BatchChoice choice{
        .max_sequences = sequences, .max_step_tokens = tokens, .memory = *std::move(memory)};
    choice.moved_bytes_per_token = (ReadExpertBytes(spec_, work_, choice, page_bytes_) +
                                    MovedKvBytes(spec_, work_, choice, block_bytes_)) /
                                   (static_cast<double>(work_.num_requests) * work_.gen_tokens);
    if (choice.memory.all_kv_blocks() < sequences * BlocksOfSequence(work_)) {
      if (!with_too_few_blocks_) with_too_few_blocks_ = choice;
      return;
    }
    const bool is_better =
        !best_ || choice.moved_bytes_per_token < kMargin * best_->moved_bytes_per_token;
    if (is_better) best_ = std::move(choice);
  }

  // Requests that differ much in length, or a number of sequences that was given: as many of them
  // as have room run, like in any load.
  Result<BatchChoice> Take() {
    const bool fewer_are_better =
        best_ && with_too_few_blocks_ && !work_.chooses_sequences &&
        with_too_few_blocks_->moved_bytes_per_token < best_->moved_bytes_per_token;
    if (!best_ || fewer_are_better) best_ = with_too_few_blocks_;
    if (!best_) return *error_;
    return *best_;
  }

 private:
  const model::ModelSpec& spec_;
  const BatchWork& work_;
  uint64_t page_bytes_;
  uint64_t block_bytes_;
  std::optional<BatchChoice> best_;
  std::optional<BatchChoice> with_too_few_blocks_;
  std::optional<Error> error_;
  std::pair<int, int> error_size_;  // tokens of a step, sequences
};

}  // namespace

Result<BatchChoice> ChooseBatch(
    const model::ModelSpec& spec, const BatchWork& work, int max_sequences, int max_step_tokens,
    uint64_t page_bytes,
    const std::function<Result<MemoryPlan>(int max_sequences, int max_step_tokens)>& plan,
    const SpillCosts& spill) {
  const auto wanted = static_cast<int>(std::min<int64_t>(work.num_requests, plan::kMostSequences));
  const std::vector<int> sequences_to_try =
      work.chooses_sequences ? Sizes(1, max_sequences, std::max(1, wanted), kSequencesFactor)
                             : std::vector{max_sequences};
  // No step has more than all prompts.
  const double all_prompts = static_cast<double>(work.num_requests) * work.prompt_tokens;
  const auto most_tokens =
      static_cast<int>(std::ceil(std::clamp<double>(all_prompts, 1, kMostChosenTokens)));
  Best best(spec, work, page_bytes, spill.block_bytes);
  for (const int sequences : sequences_to_try) {
    const std::vector<int> tokens_to_try =
        work.chooses_step_tokens
            ? Sizes(std::min(kFewestChosenTokens, max_step_tokens), max_step_tokens,
                    std::max({max_step_tokens, sequences, most_tokens}), kTokensFactor)
            : std::vector{max_step_tokens};
    for (const int tokens : tokens_to_try) {
      if (sequences > tokens) continue;
      best.Try(sequences, tokens, plan(sequences, tokens));
      if (!spill.plan) continue;
      for (const double share : planner::kKvShares) {
        best.Try(sequences, tokens, spill.plan(sequences, tokens, share));
      }
    }
  }
  return best.Take();
}

}  // namespace convene::engine
