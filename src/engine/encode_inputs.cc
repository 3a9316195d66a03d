#include "engine/encode_inputs.h"

#include <fmt/format.h>

#include <numeric>
#include <vector>

#include "base/units.h"
#include "engine/check_tokens.h"
#include "engine/scheduler.h"

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
  std::vector<int32_t> blocks(static_cast<size_t>(model.num_kv_blocks()));
  std::iota(blocks.begin(), blocks.end(), 0);
  std::vector<runtime::EncoderInput> step;
  size_t first = 0;  // of the step's inputs
  int64_t num_tokens = 0;
  int64_t num_blocks = 0;
  const auto encode = [&] {
    model.transformer().Encode(step,
                               [&](int input_idx, int token_idx, std::span<const float> states) {
                                 sink(static_cast<int>(first) + input_idx, token_idx, states);
                               });
    first += step.size();
    step.clear();
    num_tokens = num_blocks = 0;
  };
  for (const std::span<const int32_t> input : inputs) {
    const int needed = Scheduler::BlocksFor(static_cast<int>(input.size()));
    if (num_tokens + std::ssize(input) > model.max_step_tokens() ||
        num_blocks + needed > model.num_kv_blocks()) {
      encode();
    }
    step.push_back({input, std::span<const int32_t>(blocks).subspan(static_cast<size_t>(num_blocks),
                                                                    static_cast<size_t>(needed))});
    num_tokens += std::ssize(input);
    num_blocks += needed;
  }
  if (!step.empty()) encode();
  return {};
}

}  // namespace convene::engine
