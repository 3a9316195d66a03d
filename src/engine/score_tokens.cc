#include "engine/score_tokens.h"

#include <fmt/format.h>

#include <numeric>
#include <vector>

#include "base/units.h"
#include "engine/check_tokens.h"
#include "engine/not_finite.h"
#include "engine/scheduler.h"
#include "engine/step_plan.h"
#include "tensor/finite.h"

namespace convene::engine {
Status CheckPredictsText(const model::ModelSpec& spec) {
  if (!spec.has_encoder()) return {};
  return Error{fmt::format(
      "a {} model is an encoder-decoder, which predicts an answer to an input, not the next token "
      "of a text; use run, batch or encode",
      spec.family)};
}

Status ForEachLogits(LoadedModel& model, std::span<const std::span<const int32_t>> sequences,
                     const ScoredSink& sink) {
  if (const Status checked = CheckPredictsText(model.spec()); !checked) return checked;
  for (const std::span<const int32_t> tokens : sequences) {
    if (const Status status = CheckTokens(tokens, model.spec().vocab_size); !status) return status;
    if (std::ssize(tokens) > model.context()) {
      return Error{fmt::format("{} tokens are more than the context of {}; raise --context",
                               FormatCount(tokens.size()), model.context())};
    }
  }
  std::vector<int> lengths;
  for (const auto& tokens : sequences) lengths.push_back(static_cast<int>(tokens.size()));
  std::vector<int32_t> blocks(static_cast<size_t>(model.num_kv_blocks()));
  std::iota(blocks.begin(), blocks.end(), 0);
  const StepLimits limits{.max_step_tokens = model.max_step_tokens(),
                          .num_kv_blocks = model.num_kv_blocks(),
                          .num_groups = model.num_groups()};
  for (const PlannedStep& planned : PlanSteps(lengths, limits)) {
    std::vector<device::SequenceStep> step;
    for (const StepPart& part : planned) {
      const auto idx = static_cast<size_t>(part.sequence_idx);
      const int end = part.first_position + part.num_tokens;
      step.push_back({
          .tokens = sequences[idx].subspan(static_cast<size_t>(part.first_position),
                                           static_cast<size_t>(part.num_tokens)),
          .first_position = part.first_position,
          .blocks = std::span<const int32_t>(blocks).subspan(
              static_cast<size_t>(part.first_block),
              static_cast<size_t>(Scheduler::BlocksFor(end))),
          .prompt_length = lengths[idx],
          .first_logits_token = 0,
          .group = part.group,
      });
    }
    bool all_finite = true;
    const auto check = [&](int step_idx, int token_idx, std::span<const float> logits) {
      const StepPart& part = planned[static_cast<size_t>(step_idx)];
      all_finite = all_finite && tensor::AllFinite(logits);
      if (all_finite) sink(part.sequence_idx, part.first_position + token_idx, logits);
    };
    if (Status done = model.transformer().Forward(step, check); !done) return done;
    if (!all_finite) return NotFiniteError(NotFiniteReason().Find(model, step));
  }
  return {};
}

}  // namespace convene::engine
