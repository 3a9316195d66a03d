#include "engine/encode_inputs.h"

#include <fmt/format.h>

#include <numeric>
#include <vector>

#include "base/units.h"
#include "engine/check_tokens.h"
#include "engine/scheduler.h"
#include "engine/step_plan.h"

namespace convene::engine {

Status CheckInput(const LoadedModel& model, std::span<const int32_t> tokens) {
  if (std::ssize(tokens) > model.context()) {
    return Error{
        fmt::format("the input has {} tokens, more than the context of {}; raise --context",
                    FormatCount(tokens.size()), model.context())};
  }
  if (std::ssize(tokens) > model.max_step_tokens()) {
    return Error{fmt::format(
        "the input has {} tokens, and an encoder sees all of them in one step of at most {}; raise "
        "--chunk",
        FormatCount(tokens.size()), model.max_step_tokens())};
  }
  return {};
}

Status EncodeInputs(LoadedModel& model, std::span<const std::span<const int32_t>> inputs,
                    const runtime::StatesSink& sink) {
  if (!model.spec().has_encoder()) {
    return Error{fmt::format("a {} model has no encoder", model.spec().family)};
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].empty()) return Error{fmt::format("input {} has no tokens", i + 1)};
    if (const Status known = CheckTokens(inputs[i], model.spec().vocab_size); !known) return known;
    if (const Status fits = CheckInput(model, inputs[i]); !fits) return fits;
  }
  std::vector<int> lengths;
  for (const auto& input : inputs) lengths.push_back(static_cast<int>(input.size()));
  std::vector<int32_t> blocks(static_cast<size_t>(model.num_kv_blocks()));
  std::iota(blocks.begin(), blocks.end(), 0);
  const StepLimits limits{.max_step_tokens = model.max_step_tokens(),
                          .num_kv_blocks = model.num_kv_blocks(),
                          .num_groups = model.num_groups()};
  for (const PlannedStep& planned : PlanWholeSteps(lengths, limits)) {
    std::vector<runtime::EncoderInput> step;
    for (const StepPart& part : planned) {
      step.push_back({.tokens = inputs[static_cast<size_t>(part.sequence_idx)],
                      .blocks = std::span<const int32_t>(blocks).subspan(
                          static_cast<size_t>(part.first_block),
                          static_cast<size_t>(Scheduler::BlocksFor(part.num_tokens))),
                      .group = part.group});
    }
    model.transformer().Encode(
        step, [&](int input_idx, int token_idx, std::span<const float> states) {
          sink(planned[static_cast<size_t>(input_idx)].sequence_idx, token_idx, states);
        });
  }
  return {};
}

}  // namespace convene::engine
