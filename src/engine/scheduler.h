// Continuous batching: which tokens of which sequences the next step computes, and who must wait
// for KV cache blocks. It runs nothing and picks no tokens.
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "engine/block_manager.h"

namespace convene::engine {

// A prompt and the answer so far, and how much of it is in the KV cache.
struct Sequence {
  uint64_t id = 0;
  int group = 0;                // of the data-parallel groups, the one whose cache has its blocks
  uint64_t arrival = 0;         // its place in the order of arrival; Scheduler::Add sets it
  int64_t priority = 0;         // lower ones come first, whenever they arrive
  std::vector<int32_t> tokens;  // the prompt, then what was generated
  int prompt_length = 0;        // in tokens
  // Where the prompt is padded (Request::padded_length): all of it but its last token, and the
  // padding, which are computed in its place; then the last token at its own position again.
  std::vector<int32_t> padded;
  int num_padded = 0;  // of the padding, that were computed
  // Of an encoder-decoder: what the encoder sees, with blocks of its own; `tokens` is then the
  // answer behind its start token.
  std::vector<int32_t> input;
  std::vector<int32_t> input_blocks;
  bool is_encoded = false;  // input_blocks hold what the decoder attends to
  int num_computed = 0;     // leading tokens whose keys and values are in `blocks`
  std::vector<int32_t> blocks;
  int num_published = 0;          // leading blocks that other sequences can use
  std::optional<int> num_reused;  // leading tokens found in the cache at the first admission
  // Positions from here on must not be shared: what they hold depends on more than the tokens
  // before them (runtime::Transformer::SharingLimit).
  int sharing_limit = std::numeric_limits<int>::max();

  int length() const { return static_cast<int>(tokens.size()); }
  int num_padding() const {  // to be computed before the prompt's last token
    return padded.empty() ? 0 : static_cast<int>(padded.size()) - (prompt_length - 1) - num_padded;
  }
  int num_pending() const {
    return num_padding() > 0 ? prompt_length - 1 - num_computed + num_padding()
                             : length() - num_computed;
  }
  // Of the first of them, and what lies there.
  int next_position() const { return num_computed + (num_padding() > 0 ? num_padded : 0); }
  std::span<const int32_t> pending() const {
    return std::span(num_padding() > 0 ? padded : tokens)
        .subspan(static_cast<size_t>(next_position()), static_cast<size_t>(num_pending()));
  }
  // That it would have if it were as long as it is padded.
  int padded_length() const {
    return length() + (padded.empty() ? 0 : static_cast<int>(padded.size()) - (prompt_length - 1));
  }
};

// The first `num_tokens` of sequence->pending() are to be computed, after the input where that is
// not encoded yet. Where they reach the end of the sequence, the next token is sampled.
struct ScheduledTokens {
  Sequence* sequence = nullptr;
  int num_tokens = 0;

  bool reach_end() const {
    return num_tokens == sequence->num_pending() && sequence->num_padding() == 0;
  }
};

// Which tokens a step may have: those of prompts alone, behind them alone, or both.
enum class StepTokens { kAny, kPrompts, kGenerated };

struct SchedulerOptions {
  // Of each group of ranks: over all sequences of a step, and over all inputs encoded before it.
  int max_step_tokens = 512;
  // That run at the same time, of all groups together and of each its even share rounded up, for
  // which its memory was planned; that share is at most max_step_tokens.
  int max_sequences = 1;
};

// Sequences run in the order of their priorities and, where those are equal, of arrival, but that a
// prompt which would take all of a step leaves up to half of it to younger ones that can be read to
// their end in that: the first token of a short prompt comes within two steps, however long a
// prompt is being read, and the long one takes at most twice its time. Only while such a prompt is
// read do short ones overtake others that wait. Where ranks divide the sequences among them, each
// group of them has its own cache and blocks; a sequence goes where the fewest tokens would have
// been computed until its prompt is, so that groups are loaded alike and known beginnings are
// found. Blocks are taken as they are needed; when they run out, the last running sequence of the
// group in that order gives up its own and waits, to be computed again, and so do those of lower
// priority than one that waits for blocks. So the first of a group always advances, the first that
// waits is always the next to run, and no set of sequences, each of which fits alone, can block
// itself. The oldest that waits is overtaken by so many others in a row; then it is the first of
// all.
class Scheduler {
 public:
  static constexpr int kMostOvertakes = 7;

  // Keeps references to `blocks`, of one group or one for each of several, all of one size.
  Scheduler(BlockManager& blocks, const SchedulerOptions& options);
  Scheduler(std::span<BlockManager> blocks, const SchedulerOptions& options);

  // Appends a sequence, at least one token long, to those that wait; keeps the pointer until
  // Remove. The caller has made sure that it fits alone: BlocksFor(its greatest length) and those
  // of its input <= num_blocks(); its input <= max_step_tokens.
  void Add(Sequence* sequence);

  // Forgets a sequence and gives up its blocks, which stay available as a prefix.
  void Remove(Sequence* sequence);

  // What to compute next, oldest first. Empty if there is no sequence, or where `which` says less
  // than any, if none has such tokens; with kGenerated nobody who waits is admitted. Every token
  // given out has its place in the sequence's blocks.
  std::vector<ScheduledTokens> Schedule(StepTokens which = StepTokens::kAny);

  // Tells that a step was computed, before its sampled tokens are appended.
  void Complete(std::span<const ScheduledTokens> step);

  // Whether a sequence that begins with `tokens` and has so many of input would find the blocks
  // that it needs at once, also after those that wait, or is more urgent than somebody who is
  // there.
  bool HasRoomFor(std::span<const int32_t> tokens, int num_input, int64_t priority) const;

  // Whether it would be read beside a prompt that takes whole steps, before others that wait.
  bool IsReadBesideLong(std::span<const int32_t> tokens) const;

  int num_sequences() const;
  // Whether somebody, running or waiting where there is a place, still has tokens of a prompt to be
  // computed behind this step, which was given out and is not completed.
  bool HasPromptsBehind(std::span<const ScheduledTokens> step) const;
  int num_waiting() const { return static_cast<int>(waiting_.size()); }
  int64_t num_preemptions() const { return num_preemptions_; }
  int64_t num_reused_tokens() const { return num_reused_tokens_; }  // found in the prefix cache

  static int BlocksFor(int num_tokens) {
    return (num_tokens + device::kKvBlockTokens - 1) / device::kKvBlockTokens;
  }

 private:
  struct Group {
    BlockManager& blocks;
    std::vector<Sequence*> running = {};  // the first in order first
    // Of the step that is being made:
    std::vector<Sequence*> prompts = {};  // of `running`, that may have more than one token
    int budget = 0;                       // tokens that may still be added
    int for_short = 0;     // of them, that prompts which end with this step may have first
    int input_budget = 0;  // tokens of inputs that may still be added
    bool admits = false;
  };

  // Of a sequence that runs or would; 0: it has none that this step may have.
  int NumAllowed(const Sequence& sequence) const;
  Group& GroupOf(const Sequence& sequence) { return groups_[static_cast<size_t>(sequence.group)]; }
  void ScheduleGenerating(Group& group, std::vector<ScheduledTokens>* step);
  void ScheduleShortPrompts(Group& group, std::vector<ScheduledTokens>* step);
  void SchedulePrompts(Group& group, std::vector<ScheduledTokens>* step);
  void MakeRoomForFirst();
  void AdmitShort(std::vector<ScheduledTokens>* step);
  bool AdmitFirst(std::vector<ScheduledTokens>* step);
  // In the first of the groups, the one where it is computed soonest, that has the blocks.
  bool AdmitTo(std::vector<Group*> groups, Sequence& sequence, std::vector<ScheduledTokens>* step);
  int num_running() const;
  // Whether so many more sequences may run in the group, of which this is one.
  bool HasPlaces(const Group& group, int num_places) const;
  bool HasRoom(const Group& group, const Sequence& sequence, int num_places) const;
  // Blocks that the sequence takes, with one more for each that runs before it.
  static int64_t NumBlocksWanted(const Group& group, const Sequence& sequence);
  static int64_t BlocksBesideUrgent(Group& group, const Sequence& first, int64_t num_wanted);
  // Whether the sequence finds its blocks, and those that run before it one more each.
  bool HasBlocksFor(Group& group, const Sequence& sequence);
  int64_t TokensUntilComputed(const Group& group, const Sequence& sequence) const;
  bool Reserve(Sequence& sequence, int num_tokens);
  void Preempt(Group& group);
  bool Admit(Sequence& sequence);
  void CountOvertakes(const Sequence& admitted);
  void GiveUpBlocks(Sequence& sequence);

  SchedulerOptions options_;
  StepTokens which_ = StepTokens::kAny;  // of the step that is being made
  std::vector<Group> groups_;
  std::deque<Sequence*> waiting_;  // the first in order first
  uint64_t last_arrival_ = 0;
  int num_overtakes_ = 0;  // of the oldest that waits, one after the other
  int64_t num_preemptions_ = 0;
  int64_t num_reused_tokens_ = 0;
};

}  // namespace convene::engine
