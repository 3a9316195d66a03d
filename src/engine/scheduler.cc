#include "engine/scheduler.h"

#include <algorithm>

#include "base/check.h"

namespace convene::engine {

Scheduler::Scheduler(BlockManager& blocks, const SchedulerOptions& options)
    : blocks_(blocks), options_(options) {
  CHECK(options.max_sequences >= 1 && options.max_sequences <= options.max_step_tokens,
        "{} sequences in steps of {} tokens", options.max_sequences, options.max_step_tokens);
}

void Scheduler::Add(Sequence* sequence) {
  const auto input_length = static_cast<int>(sequence->input.size());
  CHECK(sequence->length() > 0 && input_length <= options_.max_step_tokens &&
            BlocksFor(sequence->length()) + BlocksFor(input_length) <= blocks_.num_blocks(),
        "a sequence of {} tokens, its input of {}", sequence->length(), input_length);
  waiting_.push_back(sequence);
}

void Scheduler::Remove(Sequence* sequence) {
  GiveUpBlocks(*sequence);
  std::erase(running_, sequence);
  std::erase(waiting_, sequence);
}

std::vector<ScheduledTokens> Scheduler::Schedule() {
  std::vector<ScheduledTokens> step;
  // A token for every sequence that generates comes before any prompt.
  int num_generating = static_cast<int>(std::count_if(
      running_.begin(), running_.end(), [](const Sequence* s) { return s->num_pending() == 1; }));
  int budget = options_.max_step_tokens - num_generating;

  // Preemption takes sequences off the end of running_.
  const int64_t num_preemptions_before = num_preemptions_;
  for (size_t i = 0; i < running_.size(); ++i) {
    Sequence& sequence = *running_[i];
    const bool is_generating = sequence.num_pending() == 1;
    const int num_tokens = is_generating ? 1 : std::min(sequence.num_pending(), budget);
    if (num_tokens == 0 || !Reserve(sequence, num_tokens)) continue;
    step.push_back({&sequence, num_tokens});
    if (!is_generating) budget -= num_tokens;
  }

  // After a preemption the next step decides: who was just sent to wait would come back at once.
  int input_budget = options_.max_step_tokens;
  while (num_preemptions_ == num_preemptions_before && budget > 0 && !waiting_.empty() &&
         std::ssize(running_) < options_.max_sequences &&
         std::ssize(waiting_.front()->input) <= input_budget && Admit(*waiting_.front())) {
    Sequence& sequence = *waiting_.front();
    waiting_.pop_front();
    input_budget -= static_cast<int>(sequence.input.size());
    running_.push_back(&sequence);
    const int num_tokens = std::min(sequence.num_pending(), budget);
    step.push_back({&sequence, num_tokens});
    budget -= num_tokens;
  }
  CHECK(!step.empty() || num_sequences() == 0, "nothing to run for {} sequences", num_sequences());
  return step;
}

// Makes the sequence's blocks cover `num_tokens` more tokens. False if it had to be preempted
// itself.
bool Scheduler::Reserve(Sequence& sequence, int num_tokens) {
  const int num_needed = BlocksFor(sequence.num_computed + num_tokens);
  while (std::ssize(sequence.blocks) < num_needed) {
    if (const auto block = blocks_.Allocate()) {
      sequence.blocks.push_back(*block);
      continue;
    }
    Sequence& youngest = *running_.back();
    Preempt(youngest);
    if (&youngest == &sequence) return false;
  }
  return true;
}

void Scheduler::Preempt(Sequence& sequence) {
  CHECK(running_.size() > 1, "the KV cache of {} blocks is too small for one sequence of {} tokens",
        blocks_.num_blocks(), sequence.length());
  GiveUpBlocks(sequence);
  running_.pop_back();
  waiting_.push_front(&sequence);
  ++num_preemptions_;
}

// Takes the known beginning and blocks for all the rest; does nothing if there are too few.
bool Scheduler::Admit(Sequence& sequence) {
  // The last token is always computed: its logits are wanted.
  const int num_shareable = std::min(sequence.length() - 1, sequence.sharing_limit);
  sequence.blocks = blocks_.TakePrefix(
      std::span<const int32_t>(sequence.tokens).first(static_cast<size_t>(num_shareable)));
  const int num_input = BlocksFor(static_cast<int>(sequence.input.size()));
  const int num_new =
      num_input + BlocksFor(sequence.length()) - static_cast<int>(sequence.blocks.size());
  // Those that run will each want a block before long.
  if (blocks_.num_available() < num_new + std::ssize(running_) && !running_.empty()) {
    GiveUpBlocks(sequence);
    return false;
  }
  sequence.num_published = static_cast<int>(sequence.blocks.size());
  sequence.num_computed = sequence.num_published * runtime::kKvBlockTokens;
  num_reused_tokens_ += sequence.num_computed;
  while (std::ssize(sequence.input_blocks) < num_input) {
    const auto block = blocks_.Allocate();
    CHECK(block.has_value());
    sequence.input_blocks.push_back(*block);
  }
  CHECK(Reserve(sequence, sequence.num_pending()));
  return true;
}

void Scheduler::Complete(std::span<const ScheduledTokens> step) {
  for (const ScheduledTokens& scheduled : step) {
    Sequence& sequence = *scheduled.sequence;
    sequence.num_computed += scheduled.num_tokens;
    sequence.is_encoded = true;
    const int num_shareable = std::min(sequence.num_computed, sequence.sharing_limit);
    for (; (sequence.num_published + 1) * runtime::kKvBlockTokens <= num_shareable;
         ++sequence.num_published) {
      const auto tokens =
          std::span<const int32_t>(sequence.tokens)
              .subspan(static_cast<size_t>(sequence.num_published) * runtime::kKvBlockTokens,
                       runtime::kKvBlockTokens);
      blocks_.Publish(sequence.blocks, static_cast<size_t>(sequence.num_published), tokens);
    }
  }
}

void Scheduler::GiveUpBlocks(Sequence& sequence) {
  blocks_.Release(sequence.blocks);
  sequence.blocks.clear();
  blocks_.Release(sequence.input_blocks);
  sequence.input_blocks.clear();
  sequence.is_encoded = false;
  sequence.num_published = 0;
  sequence.num_computed = 0;
}

}  // namespace convene::engine
