#include "engine/encode_inputs.h"

#include <fmt/format.h>

#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "base/units.h"
#include "engine/check_tokens.h"
#include "engine/scheduler.h"
#include "engine/step_plan.h"
#include "tensor/finite.h"
#include "weights/finite_weights.h"

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
    std::vector<device::EncoderInput> step;
    for (const StepPart& part : planned) {
      step.push_back({.tokens = inputs[static_cast<size_t>(part.sequence_idx)],
                      .blocks = std::span<const int32_t>(blocks).subspan(
                          static_cast<size_t>(part.first_block),
                          static_cast<size_t>(Scheduler::BlocksFor(part.num_tokens))),
                      .group = part.group});
    }
    std::optional<int> bad_input;
    const auto check = [&](int input_idx, int token_idx, std::span<const float> states) {
      const int input = planned[static_cast<size_t>(input_idx)].sequence_idx;
      if (!bad_input && !tensor::AllFinite(states)) bad_input = input;
      if (!bad_input) sink(input, token_idx, states);
    };
    if (Status done = model.transformer().Encode(step, check); !done) return done;
    if (!bad_input) continue;
    const std::optional<std::string> matrix = weights::FindNotFinite(model.weights());
    return Internal(fmt::format(
        "the states of input {} are NaN or infinite: {}", *bad_input + 1,
        matrix ? fmt::format("the packed weights {} are; make the directory again with convene "
                             "quantize",
                             *matrix)
               : "no weight is, but values overflow; use --weights f32 or bf16"));
  }
  return {};
}

}  // namespace convene::engine
