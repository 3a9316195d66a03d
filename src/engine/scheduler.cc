#include "engine/scheduler.h"

#include <algorithm>
#include <limits>
#include <tuple>

#include "base/check.h"

namespace convene::engine {

namespace {

// Of those that wait, who could be read beside a long prompt: each is looked up in the cache.
constexpr int kMostLookedAt = 64;

// The tokens that may be found in a cache: the last one is always computed, as its logits are
// wanted.
std::span<const int32_t> ShareableTokens(const Sequence& sequence) {
  const int count = std::min(sequence.length() - 1, sequence.sharing_limit);
  return std::span<const int32_t>(sequence.tokens).first(static_cast<size_t>(count));
}

bool IsBefore(const Sequence* one, const Sequence* other) {
  return std::tie(one->priority, one->arrival) < std::tie(other->priority, other->arrival);
}

template <typename Sequences>
void InsertInOrder(Sequences* sequences, Sequence* sequence) {
  sequences->insert(std::ranges::upper_bound(*sequences, sequence, IsBefore), sequence);
}

}  // namespace

Scheduler::Scheduler(BlockManager& blocks, const SchedulerOptions& options)
    : Scheduler(std::span(&blocks, 1), options) {}

Scheduler::Scheduler(std::span<BlockManager> blocks, const SchedulerOptions& options)
    : options_(options) {
  CHECK(!blocks.empty(), "no group");
  const auto num_groups = static_cast<int>(blocks.size());
  const int most_of_group = (options.max_sequences + num_groups - 1) / num_groups;
  CHECK(options.max_sequences >= 1 && most_of_group <= options.max_step_tokens,
        "{} sequences of {} groups in steps of {} tokens", options.max_sequences, num_groups,
        options.max_step_tokens);
  for (BlockManager& of_group : blocks) {
    CHECK(of_group.num_blocks() == blocks.front().num_blocks(), "groups of {} and {} blocks",
          of_group.num_blocks(), blocks.front().num_blocks());
    groups_.push_back({of_group});
  }
}

int Scheduler::num_sequences() const { return static_cast<int>(waiting_.size()) + num_running(); }

int Scheduler::num_running() const {
  size_t count = 0;
  for (const Group& group : groups_) count += group.running.size();
  return static_cast<int>(count);
}

bool Scheduler::HasPromptsBehind(std::span<const ScheduledTokens> step) const {
  const auto has_prompt = [&](const Sequence* sequence) {
    if (sequence->num_padding() > 0) return true;  // its last token comes behind that
    const auto found = std::ranges::find(step, sequence, &ScheduledTokens::sequence);
    const int given = found != step.end() ? found->num_tokens : 0;
    return sequence->num_computed + given < sequence->prompt_length;
  };
  // Who waits without a place is not read before somebody ends.
  const bool has_place = num_running() < options_.max_sequences;
  return (has_place && std::ranges::any_of(waiting_, has_prompt)) ||
         std::ranges::any_of(groups_, [&](const Group& group) {
           return std::ranges::any_of(group.running, has_prompt);
         });
}

void Scheduler::Add(Sequence* sequence) {
  const auto input_length = static_cast<int>(sequence->input.size());
  CHECK(sequence->length() > 0 && input_length <= options_.max_step_tokens &&
            BlocksFor(sequence->padded_length()) + BlocksFor(input_length) <=
                groups_.front().blocks.num_blocks(),
        "a sequence of {} tokens, its input of {}", sequence->padded_length(), input_length);
  sequence->arrival = ++last_arrival_;
  InsertInOrder(&waiting_, sequence);
}

void Scheduler::Remove(Sequence* sequence) {
  GiveUpBlocks(*sequence);
  std::erase(GroupOf(*sequence).running, sequence);
  std::erase(waiting_, sequence);
}

std::vector<ScheduledTokens> Scheduler::Schedule(StepTokens which) {
  which_ = which;
  std::vector<ScheduledTokens> step;
  if (which != StepTokens::kGenerated && !waiting_.empty()) MakeRoomForFirst();
  for (Group& group : groups_) {
    ScheduleGenerating(group, &step);
    ScheduleShortPrompts(group, &step);
  }
  if (which != StepTokens::kGenerated) AdmitShort(&step);
  for (Group& group : groups_) SchedulePrompts(group, &step);
  while (which != StepTokens::kGenerated && !waiting_.empty() && AdmitFirst(&step)) {
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
      return sequence.num_padding() > 0 ? sequence.num_pending() : num_of_prompt;
    case StepTokens::kGenerated:
      return num_of_prompt > 0 ? 0 : sequence.num_pending();
  }
  return 0;
}

// A token for every sequence that generates comes before any prompt.
void Scheduler::ScheduleGenerating(Group& group, std::vector<ScheduledTokens>* step) {
  group.prompts.clear();
  group.budget = options_.max_step_tokens;
  group.input_budget = options_.max_step_tokens;
  // Preemption takes sequences off the end of `running`.
  const int64_t num_preemptions_before = num_preemptions_;
  for (size_t i = 0; i < group.running.size(); ++i) {
    Sequence& sequence = *group.running[i];
    if (sequence.num_pending() != 1 || NumAllowed(sequence) != 1) continue;
    if (!Reserve(sequence, 1)) continue;
    step->push_back({&sequence, 1});
    --group.budget;
  }
  for (Sequence* sequence : group.running) {
    const bool is_generating = sequence->num_pending() == 1;
    if (!is_generating && NumAllowed(*sequence) > 0) group.prompts.push_back(sequence);
  }
  // After a preemption the next step decides: who was just sent to wait would come back at once.
  group.admits = num_preemptions_ == num_preemptions_before;
}

void Scheduler::ScheduleShortPrompts(Group& group, std::vector<ScheduledTokens>* step) {
  int64_t wanted = 0;
  for (const Sequence* prompt : group.prompts) wanted += NumAllowed(*prompt);
  group.for_short = wanted >= group.budget ? group.budget / 2 : 0;
  if (group.prompts.size() < 2) return;
  const auto is_read = [&](Sequence* prompt) {
    const int num_tokens = NumAllowed(*prompt);
    if (num_tokens > group.for_short) return false;
    step->push_back({prompt, num_tokens});
    group.budget -= num_tokens;
    group.for_short -= num_tokens;
    return true;
  };
  group.prompts.erase(std::remove_if(group.prompts.begin() + 1, group.prompts.end(), is_read),
                      group.prompts.end());
}

// Blocks were taken when they were admitted.
void Scheduler::SchedulePrompts(Group& group, std::vector<ScheduledTokens>* step) {
  for (Sequence* prompt : group.prompts) {
    const int num_tokens = std::min(NumAllowed(*prompt), group.budget);
    if (num_tokens == 0) break;
    step->push_back({prompt, num_tokens});
    group.budget -= num_tokens;
  }
}

bool Scheduler::HasPlaces(const Group& group, int num_places) const {
  const auto num_groups = static_cast<int>(groups_.size());
  const int most_of_group = (options_.max_sequences + num_groups - 1) / num_groups;
  return std::ssize(group.running) + num_places <= most_of_group &&
         num_running() + num_places <= options_.max_sequences;
}

bool Scheduler::HasRoom(const Group& group, const Sequence& sequence, int num_places) const {
  return group.admits && HasPlaces(group, num_places) &&
         std::ssize(sequence.input) <= group.input_budget;
}

bool Scheduler::HasRoomFor(std::span<const int32_t> tokens, int num_input, int64_t priority) const {
  if (num_sequences() == 0) return true;
  const auto is_less_urgent = [&](const Sequence* other) { return other->priority > priority; };
  if (std::ranges::any_of(waiting_, is_less_urgent)) return true;
  int num_left = 0;
  int num_needed = std::numeric_limits<int>::max();
  for (const Group& group : groups_) {
    if (std::ranges::any_of(group.running, is_less_urgent)) return true;
    num_left += group.blocks.num_available() - static_cast<int>(group.running.size());
    num_needed = std::min(num_needed, BlocksFor(static_cast<int>(tokens.size())) -
                                          group.blocks.CountHeldPrefix(tokens));
  }
  for (const Sequence* waiting : waiting_) {
    const int num_tokens = waiting->padded_length();
    num_left -= BlocksFor(num_tokens) + BlocksFor(static_cast<int>(waiting->input.size())) + 1;
  }
  return num_needed + BlocksFor(num_input) <= num_left;
}

bool Scheduler::IsReadBesideLong(std::span<const int32_t> tokens) const {
  const auto num_tokens = static_cast<int64_t>(tokens.size());
  return std::ranges::any_of(groups_, [&](const Group& group) {
    int64_t wanted = 0;
    int budget = options_.max_step_tokens;
    for (const Sequence* running : group.running) {
      const int num_pending = running->num_pending();
      if (num_pending == 1) {
        --budget;
      } else {
        wanted += num_pending;
      }
    }
    const int64_t known = group.blocks.CountPrefix(tokens) * int64_t{device::kKvBlockTokens};
    const int num_new =
        BlocksFor(static_cast<int>(num_tokens)) - group.blocks.CountHeldPrefix(tokens);
    return wanted >= budget && num_tokens - known <= budget / 2 && HasPlaces(group, 2) &&
           num_new + std::ssize(group.running) <= group.blocks.num_available();
  });
}

// Takes blocks from those of lower priority, where they have enough.
void Scheduler::MakeRoomForFirst() {
  const Sequence& first = *waiting_.front();
  Group* chosen = nullptr;  // where the least urgent runs
  for (Group& group : groups_) {
    if (group.running.empty() || !HasPlaces(group, 1)) continue;
    if (HasBlocksFor(group, first)) return;
    const int64_t last = group.running.back()->priority;
    if (last > first.priority && (!chosen || last > chosen->running.back()->priority)) {
      chosen = &group;
    }
  }
  if (chosen == nullptr) return;
  const auto is_less_urgent = [&](const Sequence* other) {
    return other->priority > first.priority;
  };
  const int64_t num_wanted = NumBlocksWanted(*chosen, first);
  if (BlocksBesideUrgent(*chosen, first, num_wanted) < num_wanted) return;
  while (!chosen->running.empty() && is_less_urgent(chosen->running.back()) &&
         !HasBlocksFor(*chosen, first)) {
    Preempt(*chosen);
  }
}

// Blocks that there would be for `first`, with those that it shares, if all that are less urgent
// were preempted. Where even a rough count is below `num_wanted` it is returned as it is, since
// this is asked in each step in which somebody waits.
int64_t Scheduler::BlocksBesideUrgent(Group& group, const Sequence& first, int64_t num_wanted) {
  const std::vector<int32_t> known = group.blocks.TakePrefix(ShareableTokens(first));
  group.blocks.Release(known);
  const auto is_less_urgent = [&](const Sequence* running) {
    return running->priority > first.priority;
  };
  int64_t most = group.blocks.num_available() + std::ssize(known);
  for (const Sequence* running : group.running) {
    if (!is_less_urgent(running)) continue;
    most += std::ssize(running->blocks) + std::ssize(running->input_blocks);
  }
  if (most < num_wanted) return most;
  // Several may hold the same block, and who stays keeps it.
  enum class Holder : uint8_t { kNobody, kLessUrgent, kStays };
  std::vector<Holder> holders(static_cast<size_t>(group.blocks.num_blocks()), Holder::kNobody);
  const auto mark = [&](const std::vector<int32_t>& blocks, Holder holder) {
    for (const int32_t block : blocks) {
      Holder& of_block = holders[static_cast<size_t>(block)];
      of_block = std::max(of_block, holder);
    }
  };
  for (const Sequence* running : group.running) {
    const Holder holder = is_less_urgent(running) ? Holder::kLessUrgent : Holder::kStays;
    mark(running->blocks, holder);
    mark(running->input_blocks, holder);
  }
  const auto num_shared = std::ranges::count_if(
      known, [&](int32_t block) { return holders[static_cast<size_t>(block)] == Holder::kStays; });
  return group.blocks.num_available() + std::ranges::count(holders, Holder::kLessUrgent) +
         num_shared;
}

void Scheduler::AdmitShort(std::vector<ScheduledTokens>* step) {
  int num_left = kMostLookedAt;
  for (size_t i = 0; i < waiting_.size() && num_left > 0; --num_left) {
    Sequence& sequence = *waiting_[i];
    std::vector<Group*> groups;
    for (Group& group : groups_) {
      // Who overtakes leaves a place for the one who has waited longest.
      if (group.for_short == 0 || !HasRoom(group, sequence, i > 0 ? 2 : 1)) continue;
      const int64_t known =
          group.blocks.CountPrefix(ShareableTokens(sequence)) * int64_t{device::kKvBlockTokens};
      if (sequence.length() - known <= group.for_short) groups.push_back(&group);
    }
    if (groups.empty() || !AdmitTo(std::move(groups), sequence, step)) {
      ++i;
      continue;
    }
    waiting_.erase(waiting_.begin() + static_cast<ptrdiff_t>(i));
    CountOvertakes(sequence);
    Group& group = GroupOf(sequence);
    group.for_short = std::max(0, group.for_short - step->back().num_tokens);
  }
}

// Tries the groups that have room, the best one first.
bool Scheduler::AdmitFirst(std::vector<ScheduledTokens>* step) {
  Sequence& sequence = *waiting_.front();
  std::vector<Group*> groups;
  for (Group& group : groups_) {
    if (group.budget > 0 && HasRoom(group, sequence, 1)) groups.push_back(&group);
  }
  if (!AdmitTo(std::move(groups), sequence, step)) return false;
  waiting_.pop_front();
  CountOvertakes(sequence);
  return true;
}

void Scheduler::CountOvertakes(const Sequence& admitted) {
  if (waiting_.empty()) return;
  const auto oldest = std::ranges::min_element(waiting_, {}, &Sequence::arrival);
  Sequence* sequence = *oldest;
  if (admitted.arrival < sequence->arrival) {
    num_overtakes_ = 0;
  } else if (admitted.priority < sequence->priority && ++num_overtakes_ >= kMostOvertakes) {
    num_overtakes_ = 0;
    sequence->priority = std::numeric_limits<int64_t>::min();
    waiting_.erase(oldest);
    InsertInOrder(&waiting_, sequence);
  }
}

bool Scheduler::AdmitTo(std::vector<Group*> groups, Sequence& sequence,
                        std::vector<ScheduledTokens>* step) {
  if (groups.size() > 1) {
    std::ranges::stable_sort(
        groups, {}, [&](const Group* group) { return TokensUntilComputed(*group, sequence); });
  }
  for (Group* group : groups) {
    sequence.group = static_cast<int>(group - groups_.data());
    if (!Admit(sequence)) continue;
    group->input_budget -= static_cast<int>(sequence.input.size());
    InsertInOrder(&group->running, &sequence);
    // Of one that was preempted, all of the prompt may have been found.
    const int num_tokens = std::min(NumAllowed(sequence), group->budget);
    if (num_tokens > 0) step->push_back({&sequence, num_tokens});
    group->budget -= num_tokens;
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
  const int num_needed = BlocksFor(sequence.num_computed + sequence.num_padded + num_tokens);
  while (std::ssize(sequence.blocks) < num_needed) {
    if (const auto block = group.blocks.Allocate()) {
      sequence.blocks.push_back(*block);
      continue;
    }
    CHECK(group.running.size() > 1,
          "the KV cache of {} blocks is too small for one sequence of {} tokens",
          group.blocks.num_blocks(), sequence.length());
    const bool is_last = group.running.back() == &sequence;
    Preempt(group);
    if (is_last) return false;
  }
  return true;
}

// The last of a group.
void Scheduler::Preempt(Group& group) {
  Sequence& sequence = *group.running.back();
  GiveUpBlocks(sequence);
  group.running.pop_back();
  InsertInOrder(&waiting_, &sequence);
  ++num_preemptions_;
}

int64_t Scheduler::NumBlocksWanted(const Group& group, const Sequence& sequence) {
  // Those that run will each want a block before long; who is less urgent gives up its own.
  const auto num_running = std::ranges::count_if(group.running, [&](const Sequence* running) {
    return running->priority <= sequence.priority;
  });
  return BlocksFor(static_cast<int>(sequence.input.size())) + BlocksFor(sequence.padded_length()) +
         num_running;
}

bool Scheduler::HasBlocksFor(Group& group, const Sequence& sequence) {
  const std::vector<int32_t> known = group.blocks.TakePrefix(ShareableTokens(sequence));
  const bool has_blocks =
      group.blocks.num_available() + std::ssize(known) >= NumBlocksWanted(group, sequence);
  group.blocks.Release(known);
  return has_blocks || group.running.empty();
}

// Takes the known beginning and blocks for all the rest; does nothing if there are too few.
bool Scheduler::Admit(Sequence& sequence) {
  if (!HasBlocksFor(GroupOf(sequence), sequence)) return false;
  BlockManager& blocks = GroupOf(sequence).blocks;
  const int num_input = BlocksFor(static_cast<int>(sequence.input.size()));
  sequence.blocks = blocks.TakePrefix(ShareableTokens(sequence));
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
    const bool is_padded = sequence.num_padding() > 0;
    const int of_prompt = is_padded ? std::min(scheduled.num_tokens,
                                               sequence.prompt_length - 1 - sequence.num_computed)
                                    : scheduled.num_tokens;
    sequence.num_computed += of_prompt;
    sequence.num_padded += scheduled.num_tokens - of_prompt;
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
  // What came before the first generated token is not done twice.
  if (sequence.num_padding() > 0) sequence.num_padded = 0;
}

}  // namespace convene::engine
