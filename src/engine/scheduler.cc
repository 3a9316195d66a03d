#include "engine/scheduler.h"

#include <algorithm>

#include "base/check.h"

namespace convene::engine {

namespace {

// The tokens that may be found in a cache: the last one is always computed, as its logits are
// wanted.
std::span<const int32_t> ShareableTokens(const Sequence& sequence) {
  const int count = std::min(sequence.length() - 1, sequence.sharing_limit);
  return std::span<const int32_t>(sequence.tokens).first(static_cast<size_t>(count));
}

}  // namespace

Scheduler::Scheduler(BlockManager& blocks, const SchedulerOptions& options)
    : Scheduler(std::span(&blocks, 1), options) {}

Scheduler::Scheduler(std::span<BlockManager> blocks, const SchedulerOptions& options)
    : options_(options) {
  CHECK(options.max_sequences >= 1 && options.max_sequences <= options.max_step_tokens,
        "{} sequences in steps of {} tokens", options.max_sequences, options.max_step_tokens);
  CHECK(!blocks.empty(), "no group");
  for (BlockManager& of_group : blocks) {
    CHECK(of_group.num_blocks() == blocks.front().num_blocks(), "groups of {} and {} blocks",
          of_group.num_blocks(), blocks.front().num_blocks());
    groups_.push_back({of_group});
  }
}

int Scheduler::num_sequences() const {
  size_t count = waiting_.size();
  for (const Group& group : groups_) count += group.running.size();
  return static_cast<int>(count);
}

void Scheduler::Add(Sequence* sequence) {
  const auto input_length = static_cast<int>(sequence->input.size());
  CHECK(sequence->length() > 0 && input_length <= options_.max_step_tokens &&
            BlocksFor(sequence->length()) + BlocksFor(input_length) <=
                groups_.front().blocks.num_blocks(),
        "a sequence of {} tokens, its input of {}", sequence->length(), input_length);
  sequence->arrival = ++last_arrival_;
  waiting_.push_back(sequence);
}

void Scheduler::Remove(Sequence* sequence) {
  GiveUpBlocks(*sequence);
  std::erase(GroupOf(*sequence).running, sequence);
  std::erase(waiting_, sequence);
}

std::vector<ScheduledTokens> Scheduler::Schedule(StepTokens which) {
  which_ = which;
  std::vector<ScheduledTokens> step;
  for (Group& group : groups_) ScheduleRunning(group, &step);
  while (which != StepTokens::kGenerated && !waiting_.empty() && AdmitOldest(&step)) {
  }
  CHECK(!step.empty() || num_sequences() == 0 || which != StepTokens::kAny,
        "nothing to run for {} sequences", num_sequences());
  std::ranges::sort(step, {}, [](const ScheduledTokens& s) { return s.sequence->arrival; });
  return step;
}

int Scheduler::NumAllowed(const Sequence& sequence) const {
  const int num_of_prompt = std::max(0, sequence.prompt_length - sequence.num_computed);
  switch (which_) {
    case StepTokens::kAny:
      return sequence.num_pending();
    case StepTokens::kPrompts:
      return num_of_prompt;
    case StepTokens::kGenerated:
      return num_of_prompt > 0 ? 0 : sequence.num_pending();
  }
  return 0;
}

void Scheduler::ScheduleRunning(Group& group, std::vector<ScheduledTokens>* step) {
  // A token for every sequence that generates comes before any prompt.
  const auto num_generating = std::ranges::count_if(group.running, [&](const Sequence* s) {
    return s->num_pending() == 1 && NumAllowed(*s) == 1;
  });
  group.budget = options_.max_step_tokens - static_cast<int>(num_generating);
  group.input_budget = options_.max_step_tokens;

  // Preemption takes sequences off the end of `running`.
  const int64_t num_preemptions_before = num_preemptions_;
  for (size_t i = 0; i < group.running.size(); ++i) {
    Sequence& sequence = *group.running[i];
    const int num_allowed = NumAllowed(sequence);
    const bool is_generating = sequence.num_pending() == 1 && num_allowed == 1;
    const int num_tokens = is_generating ? 1 : std::min(num_allowed, group.budget);
    if (num_tokens == 0 || !Reserve(sequence, num_tokens)) continue;
    step->push_back({&sequence, num_tokens});
    if (!is_generating) group.budget -= num_tokens;
  }
  // After a preemption the next step decides: who was just sent to wait would come back at once.
  group.admits = num_preemptions_ == num_preemptions_before;
}

// Tries the groups that have room, the best one first.
bool Scheduler::AdmitOldest(std::vector<ScheduledTokens>* step) {
  Sequence& sequence = *waiting_.front();
  struct Candidate {
    int64_t tokens;
    int group;
  };
  std::vector<Candidate> candidates;
  for (int i = 0; i < std::ssize(groups_); ++i) {
    const Group& group = groups_[static_cast<size_t>(i)];
    if (group.admits && group.budget > 0 && std::ssize(group.running) < options_.max_sequences &&
        std::ssize(sequence.input) <= group.input_budget) {
      candidates.push_back({groups_.size() > 1 ? TokensUntilComputed(group, sequence) : 0, i});
    }
  }
  std::ranges::stable_sort(candidates, {}, &Candidate::tokens);
  for (const Candidate& candidate : candidates) {
    sequence.group = candidate.group;
    if (!Admit(sequence)) continue;
    waiting_.pop_front();
    Group& group = GroupOf(sequence);
    group.input_budget -= static_cast<int>(sequence.input.size());
    group.running.push_back(&sequence);
    // Of one that was preempted, all of the prompt may have been found.
    const int num_tokens = std::min(NumAllowed(sequence), group.budget);
    if (num_tokens > 0) step->push_back({&sequence, num_tokens});
    group.budget -= num_tokens;
    return true;
  }
  return false;
}

int64_t Scheduler::TokensUntilComputed(const Group& group, const Sequence& sequence) const {
  int64_t tokens = sequence.length() + std::ssize(sequence.input);
  tokens -= group.blocks.CountPrefix(ShareableTokens(sequence)) * device::kKvBlockTokens;
  for (const Sequence* running : group.running) {
    tokens += running->num_pending();
    if (!running->is_encoded) tokens += std::ssize(running->input);
  }
  return tokens;
}

// Makes the sequence's blocks cover `num_tokens` more tokens. False if it had to be preempted
// itself.
bool Scheduler::Reserve(Sequence& sequence, int num_tokens) {
  Group& group = GroupOf(sequence);
  const int num_needed = BlocksFor(sequence.num_computed + num_tokens);
  while (std::ssize(sequence.blocks) < num_needed) {
    if (const auto block = group.blocks.Allocate()) {
      sequence.blocks.push_back(*block);
      continue;
    }
    const bool is_youngest = group.running.back() == &sequence;
    Preempt(group);
    if (is_youngest) return false;
  }
  return true;
}

// The youngest of a group.
void Scheduler::Preempt(Group& group) {
  Sequence& sequence = *group.running.back();
  CHECK(group.running.size() > 1,
        "the KV cache of {} blocks is too small for one sequence of {} tokens",
        group.blocks.num_blocks(), sequence.length());
  GiveUpBlocks(sequence);
  group.running.pop_back();
  const auto place = std::ranges::upper_bound(waiting_, sequence.arrival, {}, &Sequence::arrival);
  waiting_.insert(place, &sequence);
  ++num_preemptions_;
}

// Takes the known beginning and blocks for all the rest; does nothing if there are too few.
bool Scheduler::Admit(Sequence& sequence) {
  BlockManager& blocks = GroupOf(sequence).blocks;
  const std::vector<Sequence*>& running = GroupOf(sequence).running;
  sequence.blocks = blocks.TakePrefix(ShareableTokens(sequence));
  const int num_input = BlocksFor(static_cast<int>(sequence.input.size()));
  const int num_new =
      num_input + BlocksFor(sequence.length()) - static_cast<int>(sequence.blocks.size());
  // Those that run will each want a block before long.
  if (blocks.num_available() < num_new + std::ssize(running) && !running.empty()) {
    GiveUpBlocks(sequence);
    return false;
  }
  sequence.num_published = static_cast<int>(sequence.blocks.size());
  sequence.num_computed = sequence.num_published * device::kKvBlockTokens;
  num_reused_tokens_ += sequence.num_computed;
  if (!sequence.num_reused) sequence.num_reused = sequence.num_computed;
  while (std::ssize(sequence.input_blocks) < num_input) {
    const auto block = blocks.Allocate();
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
    for (; (sequence.num_published + 1) * device::kKvBlockTokens <= num_shareable;
         ++sequence.num_published) {
      const auto tokens =
          std::span<const int32_t>(sequence.tokens)
              .subspan(static_cast<size_t>(sequence.num_published) * device::kKvBlockTokens,
                       device::kKvBlockTokens);
      GroupOf(sequence).blocks.Publish(sequence.blocks, static_cast<size_t>(sequence.num_published),
                                       tokens);
    }
  }
}

void Scheduler::GiveUpBlocks(Sequence& sequence) {
  GroupOf(sequence).blocks.Release(sequence.blocks);
  sequence.blocks.clear();
  GroupOf(sequence).blocks.Release(sequence.input_blocks);
  sequence.input_blocks.clear();
  sequence.is_encoded = false;
  sequence.num_published = 0;
  sequence.num_computed = 0;
}

}  // namespace convene::engine
