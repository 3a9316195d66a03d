#include "evaluate/trial_steps.h"

#include <algorithm>
#include <random>

namespace convene::evaluate {
namespace {

int NumBlocks(const strategy::SequenceRows& rows) {
  const int64_t positions = rows.first_position + rows.num_tokens;
  return static_cast<int>((positions + device::kKvBlockTokens - 1) / device::kKvBlockTokens);
}

}  // namespace

StepToRun::StepToRun(const planner::StepSequences& groups, double count, strategy::Phase phase,
                     int vocab_size)
    : vocab_size_(vocab_size), count_(count), phase_(phase) {
  for (size_t group = 0; group < groups.size(); ++group) {
    int first_block = 0;
    for (const strategy::SequenceRows& rows : groups[group]) {
      auto& tokens = tokens_.emplace_back(static_cast<size_t>(rows.num_tokens));
      auto& blocks = blocks_.emplace_back(static_cast<size_t>(NumBlocks(rows)));
      for (int32_t& each : blocks) each = first_block++;
      sequences_.push_back(
          {.tokens = tokens,
           .first_position = static_cast<int>(rows.first_position),
           .blocks = blocks,
           .prompt_length = static_cast<int>(rows.prompt_length),
           .first_logits_token = static_cast<int>(rows.num_tokens - rows.num_wanted),
           .largest_suffices = true,  // as of greedy answers
           .group = static_cast<int>(group)});
    }
    num_blocks_ = std::max(num_blocks_, first_block);
  }
  for (size_t i = 0; i < sequences_.size(); ++i) {
    sequences_[i].tokens = tokens_[i];
    sequences_[i].blocks = blocks_[i];
  }
  DrawTokens(0);
}

void StepToRun::DrawTokens(uint64_t number) {
  std::mt19937_64 random(number);
  std::uniform_int_distribution<int32_t> token(0, vocab_size_ - 1);
  for (std::vector<int32_t>& tokens : tokens_) {
    for (int32_t& each : tokens) each = token(random);
  }
}

std::vector<StepToRun> StepsOf(const TrialQuestion& question, const plan::Plan& plan,
                               int vocab_size) {
  const auto roles = [&](const strategy::Layout& layout) {
    return strategy::Roles(layout).ExpandingFrom(question.expand_from_tokens);
  };
  std::vector<StepToRun> steps;
  const int step_tokens =
      plan.step_tokens_for(static_cast<int>(question.sequences.size()), question.step_tokens);
  for (const planner::TypicalStep& typical :
       PrefillSteps(question.sequences, roles(plan.layout), step_tokens)) {
    if (typical.count > 0) {
      steps.emplace_back(typical.groups, typical.count, strategy::Phase::kPrefill, vocab_size);
    }
  }
  if (question.context <= 0) return steps;
  double prompts = 0;
  for (const planner::RequestLengths& each : question.sequences) prompts += each.prompt_tokens;
  const auto batch = static_cast<int>(question.sequences.size());
  steps.emplace_back(planner::DecodeStep(batch, question.context, static_cast<int>(prompts / batch),
                                         roles(plan.decode.value_or(plan.layout))),
                     1, strategy::Phase::kDecode, vocab_size);
  return steps;
}

}  // namespace convene::evaluate
