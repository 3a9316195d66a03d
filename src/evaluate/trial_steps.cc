#include "evaluate/trial_steps.h"

#include <algorithm>
#include <numeric>
#include <random>

namespace convene::evaluate {

using planner::TypicalStep;
using strategy::SequenceRows;

StepToRun::StepToRun(const TypicalStep& typical, strategy::Phase phase, int vocab_size)
    : vocab_size_(vocab_size), count_(typical.count), phase_(phase) {
  for (size_t group = 0; group < typical.groups.size(); ++group) {
    int next_block = 0;
    const size_t first = sequences_.size();
    for (const SequenceRows& rows : typical.groups[group]) {
      sequences_.push_back(
          {.tokens = Tokens(rows.num_tokens),
           .first_position = static_cast<int>(rows.first_position),
           .blocks = {},  // behind the inputs
           .prompt_length = static_cast<int>(rows.prompt_length),
           .first_logits_token = static_cast<int>(rows.num_tokens - rows.num_wanted),
           .largest_suffices = true,  // as of greedy answers
           .encoder_blocks = Blocks(rows.input_length, next_block),
           .encoder_length = static_cast<int>(rows.input_length),
           .group = static_cast<int>(group)});
      if (typical.inputs.empty()) continue;
      inputs_.push_back({.tokens = Tokens(rows.input_length),
                         .blocks = sequences_.back().encoder_blocks,
                         .group = static_cast<int>(group)});
    }
    for (size_t i = first; i < sequences_.size(); ++i) {
      device::SequenceStep& each = sequences_[i];
      each.blocks = Blocks(each.first_position + std::ssize(each.tokens), next_block);
    }
    num_blocks_ = std::max(num_blocks_, next_block);
  }
  DrawTokens(0);
}

std::span<const int32_t> StepToRun::Blocks(int64_t num_positions, int& first_block) {
  const int64_t count = (num_positions + device::kKvBlockTokens - 1) / device::kKvBlockTokens;
  auto& blocks = blocks_.emplace_back(static_cast<size_t>(count));
  std::iota(blocks.begin(), blocks.end(), first_block);
  first_block += static_cast<int>(count);
  return blocks;
}

std::span<const int32_t> StepToRun::Tokens(int64_t num_tokens) {
  return tokens_.emplace_back(static_cast<size_t>(num_tokens));
}

int StepToRun::longest() const {
  int64_t longest = 0;
  for (const device::SequenceStep& each : sequences_) {
    longest = std::max<int64_t>(longest, each.first_position + std::ssize(each.tokens));
    longest = std::max<int64_t>(longest, each.encoder_length);
  }
  return static_cast<int>(longest);
}

void StepToRun::DrawTokens(uint64_t number) {
  std::mt19937_64 random(number);
  std::uniform_int_distribution<int32_t> token(0, vocab_size_ - 1);
  for (std::vector<int32_t>& tokens : tokens_) {
    for (int32_t& each : tokens) each = token(random);
  }
}

std::vector<StepToRun> StepsOf(const TrialQuestion& question, const plan::Plan& plan,
                               const model::ModelSpec& spec) {
  const auto roles = [&](const strategy::Layout& layout) {
    return strategy::Roles(layout).ExpandingFrom(question.expand_from_tokens);
  };
  const auto batch = static_cast<int>(question.sequences.size());
  std::vector<StepToRun> steps;
  for (const TypicalStep& typical :
       PrefillStepsOf(spec, question.sequences, roles(plan.layout),
                      plan.step_tokens_for(batch, question.step_tokens))) {
    if (typical.count > 0) {
      steps.emplace_back(typical, strategy::Phase::kPrefill, spec.vocab_size);
    }
  }
  if (question.context <= 0) return steps;
  steps.emplace_back(
      TypicalStep{.groups = planner::DecodeStepOf(spec, question.prompt_tokens, question.context,
                                                  batch, roles(plan.decode.value_or(plan.layout)))},
      strategy::Phase::kDecode, spec.vocab_size);
  return steps;
}

}  // namespace convene::evaluate
