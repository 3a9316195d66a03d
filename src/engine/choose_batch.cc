#include "engine/choose_batch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "base/units.h"
#include "plan/plan.h"
#include "planner/spilled_steps.h"

namespace convene::engine {
namespace {

constexpr int kFewestChosenTokens = 64;     // of a step
constexpr int kMostChosenTokens = 1 << 15;  // likewise
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

// The fewest of `requests` that run together for all to be answered in as many rounds as with
// `size` of them: more would take memory, and leave few for the last round.
int EvenRounds(int64_t requests, int size) {
  const int64_t rounds = (requests + size - 1) / size;
  return static_cast<int>((requests + rounds - 1) / rounds);
}

// As many together as are worth a try; the first is what is usual.
std::vector<int> SequencesToTry(const BatchQuestion& question) {
  const BatchWork& work = question.work;
  if (!work.chooses_sequences) return {question.max_sequences};
  const auto wanted = static_cast<int>(std::min<int64_t>(work.num_requests, plan::kMostSequences));
  std::vector<int> sizes = Sizes(1, question.max_sequences, std::max(1, wanted), kSequencesFactor);
  for (size_t i = 1; i < sizes.size(); ++i) sizes[i] = EvenRounds(work.num_requests, sizes[i]);
  return sizes;
}

// "keys and values of 64 sequences take 576 MiB"
std::string SpilledWords(const MemoryPlan& memory, int max_sequences) {
  return fmt::format("keys and values of {} take {}",
                     FormatCount(static_cast<uint64_t>(max_sequences), "sequence"),
                     FormatBytes(memory.spill_file_bytes));
}

// Keeps the best of those that are tried.
class Best {
 public:
  explicit Best(const BatchQuestion& question)
      : question_(question),
        pricer_(question.spec, question.work, question.bytes, question.rates) {}

  void Try(int sequences, int tokens, Result<MemoryPlan> memory) {
    if (!memory) {
      Refuse(sequences, tokens, memory.error());
      return;
    }
    BatchChoice choice{.max_sequences = sequences,
                       .max_step_tokens = tokens,
                       .memory = *std::move(memory),
                       .price = {}};
    choice.price = pricer_.PriceOf(sequences, tokens, choice.memory);
    const Status on_disk =
        CheckDisk(choice.memory, sequences, question_.disk_bytes, question_.disk_directory);
    if (!on_disk) {
      Refuse(sequences, tokens, on_disk.error());
      if (!beyond_disk_ || IsBetter(choice, *beyond_disk_)) beyond_disk_ = std::move(choice);
      return;
    }
    if (choice.memory.all_kv_blocks() < sequences * BlocksOfSequence(question_.work)) {
      if (!with_too_few_blocks_) with_too_few_blocks_ = choice;
      return;
    }
    if (!best_ || IsBetter(choice, *best_)) best_ = std::move(choice);
  }

  // Requests that differ much in length, or a number of sequences that was given: as many of them
  // as have room run, like in any load.
  Result<ChosenBatch> Take() {
    const bool fewer_are_better = best_ && with_too_few_blocks_ &&
                                  !question_.work.chooses_sequences &&
                                  with_too_few_blocks_->price.seconds < best_->price.seconds;
    if (!best_ || fewer_are_better) best_ = with_too_few_blocks_;
    if (!best_) return *error_;
    ChosenBatch chosen{.best = *best_};
    if (beyond_disk_ && IsBetter(*beyond_disk_, *best_)) chosen.beyond_disk = beyond_disk_;
    return chosen;
  }

 private:
  static bool IsBetter(const BatchChoice& one, const BatchChoice& other) {
    return IsClearlyLess(one.price.seconds, other.price.seconds);
  }

  // People are told what the smallest takes: less memory than that is of no use. Of the same size
  // the last one says most, since it may keep keys and values on the disk.
  void Refuse(int sequences, int tokens, const Error& error) {
    if (error_ && std::pair(tokens, sequences) > error_size_) return;
    error_ = error;
    error_size_ = {tokens, sequences};
  }

  const BatchQuestion& question_;
  BatchPricer pricer_;
  std::optional<BatchChoice> best_;
  std::optional<BatchChoice> with_too_few_blocks_;
  std::optional<BatchChoice> beyond_disk_;
  std::optional<Error> error_;
  std::pair<int, int> error_size_;  // tokens of a step, sequences
};

}  // namespace

std::string BatchChoice::Describe(const BatchRates& rates) const {
  const double share = memory.spilled_share();
  const bool is_paged = memory.num_page_buffers > 0;
  std::string text = fmt::format(
      "{} at a time in steps of at most {}: of what was tried the fastest by {} of {}memory and "
      "cores{}",
      FormatCount(static_cast<uint64_t>(max_sequences), "sequence"),
      FormatCount(static_cast<uint64_t>(max_step_tokens), "token"),
      rates.are_measured ? "the measured rates" : "usual rates", is_paged ? "disk, " : "",
      rates.are_measured ? "" : " (convene measure finds those that are here)");
  if (is_paged) {
    text +=
        fmt::format(", {} about {} for each generated token",
                    share > 0 ? "which moves from and to the disk" : "which reads from the disk",
                    FormatBytes(static_cast<uint64_t>(price.moved_bytes)));
  }
  return text + fmt::format(
                    " (KV cache {}{}, {} in memory)", FormatBytes(memory.kv_bytes()),
                    share > 0 ? fmt::format(" and {:.0f} % of it on the disk", 100 * share) : "",
                    is_paged ? FormatCount(static_cast<uint64_t>(memory.num_page_buffers), "expert")
                             : "all experts");
}

Status CheckDisk(const MemoryPlan& memory, int max_sequences, uint64_t disk_bytes,
                 const std::string& directory) {
  if (memory.spill_file_bytes <= disk_bytes) return {};
  return ResourceExhausted(fmt::format(
      "{} of the disk in {}, which has {} for them: give another --spill-dir, let fewer run "
      "together (--max-batch), or --spill-dir none, which keeps all in memory",
      SpilledWords(memory, max_sequences), directory, FormatBytes(disk_bytes)));
}

Result<ChosenBatch> ChooseBatch(const BatchQuestion& question) {
  const BatchWork& work = question.work;
  const int max_step_tokens = question.max_step_tokens;
  // No step has more than all prompts.
  const double all_prompts = static_cast<double>(work.num_requests) * work.prompt_tokens;
  const auto most_tokens =
      static_cast<int>(std::ceil(std::clamp<double>(all_prompts, 1, kMostChosenTokens)));
  Best best(question);
  for (const int sequences : SequencesToTry(question)) {
    const std::vector<int> tokens_to_try =
        work.chooses_step_tokens
            ? Sizes(std::min(kFewestChosenTokens, max_step_tokens), max_step_tokens,
                    std::max({max_step_tokens, sequences, most_tokens}), kTokensFactor)
            : std::vector{max_step_tokens};
    for (const int tokens : tokens_to_try) {
      if (sequences > tokens) continue;
      best.Try(sequences, tokens, question.plan(sequences, tokens));
      if (!question.plan_spilled) continue;
      for (const double share : planner::kKvShares) {
        best.Try(sequences, tokens, question.plan_spilled(sequences, tokens, share));
      }
    }
  }
  return best.Take();
}

}  // namespace convene::engine
