// The steps that a workload is run in, as few as stand for all: what the engine's scheduler would
// cut, by kind of step one or two with how often they occur. It prices nothing.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/workload.h"
#include "strategy/attention_sizes.h"
#include "strategy/role.h"
#include "strategy/step.h"
#include "strategy/step_load.h"

namespace convene::planner {

// By group of ranks, in the order of the step.
using StepSequences = std::vector<std::vector<strategy::SequenceRows>>;

// The pipeline of a step that is not cut.
strategy::Pipeline InOnePiece(strategy::Pipeline pipeline);

int64_t NumTokens(const StepSequences& groups);
strategy::StepLoad LoadOf(const StepSequences& groups);

struct TypicalStep {
  StepSequences groups;
  double count = 1;           // steps that it stands for
  StepSequences inputs = {};  // of an encoder-decoder: what the encoder sees before the step
};

// All prompts from first to last, in steps of at most `step_tokens` tokens of each group of ranks,
// as engine/scheduler.h cuts them; a sequence goes to the group with the fewest tokens so far. Of
// steps with the same numbers of rows the one with the fewest keys before them and the one with the
// most stand for all, so that the mean of the keys is right.
std::vector<TypicalStep> PrefillSteps(const std::vector<RequestLengths>& sequences,
                                      const strategy::Roles& roles, int step_tokens);

// Of an encoder-decoder: prompts are inputs, of which each is in one step whole, and of each the
// decoder has one token in it, with which the answer begins. Of steps with the same numbers of
// inputs the one with the fewest tokens and the one with the most stand for all. Precondition: no
// prompt is longer than a step.
std::vector<TypicalStep> EncoderSteps(const std::vector<RequestLengths>& sequences,
                                      const strategy::Roles& roles, int step_tokens);

// One new token of each of `batch` sequences behind so many others.
StepSequences DecodeStep(int batch, int context, int prompt_tokens, const strategy::Roles& roles);

// What a model does with a workload of which `batch` sequences run together: PrefillSteps or
// EncoderSteps, and the decode step in the middle of all.
std::vector<TypicalStep> PrefillStepsOf(const model::ModelSpec& spec,
                                        const std::vector<RequestLengths>& sequences,
                                        const strategy::Roles& roles, int step_tokens);
StepSequences DecodeStepOf(const model::ModelSpec& spec, const Workload& workload, int batch,
                           const strategy::Roles& roles);
// The same behind so many tokens, of which the first ones are the prompt.
StepSequences DecodeStepOf(const model::ModelSpec& spec, int prompt_tokens, int context, int batch,
                           const strategy::Roles& roles);

}  // namespace convene::planner
