#include "engine/phase_order.h"

#include <algorithm>
#include <utility>

namespace convene::engine {

using strategy::Phase;

PhaseOrder::Step PhaseOrder::Next(Scheduler& scheduler) {
  if (scheduler.num_sequences() == 0) return {};
  if (epoch_steps_ == 0) return InPrefill(scheduler, scheduler.Schedule());
  return prompts_join_ ? NextTogether(scheduler) : NextApart(scheduler);
}

PhaseOrder::Step PhaseOrder::InDecode(std::vector<ScheduledTokens> tokens) {
  // When nobody waits at its end, the next epoch begins.
  num_steps_ = in_epoch() ? num_steps_ + 1 : 1;
  phase_ = Phase::kDecode;
  return {std::move(tokens), phase_};
}

PhaseOrder::Step PhaseOrder::InPrefill(const Scheduler& scheduler,
                                       std::vector<ScheduledTokens> tokens) {
  phase_ = Phase::kPrefill;
  const bool decode_follows = epoch_steps_ > 0 && !scheduler.HasPromptsBehind(tokens);
  return {std::move(tokens), phase_, decode_follows};
}

// No step has both: so the division of the experts that a token has passed depends on its position
// alone, and not on who came when.
PhaseOrder::Step PhaseOrder::NextApart(Scheduler& scheduler) {
  if (in_epoch()) {
    std::vector<ScheduledTokens> generated = scheduler.Schedule(StepTokens::kGenerated);
    if (!generated.empty()) return InDecode(std::move(generated));
  }
  std::vector<ScheduledTokens> prompts = scheduler.Schedule(StepTokens::kPrompts);
  if (!prompts.empty()) return InPrefill(scheduler, std::move(prompts));
  return InDecode(scheduler.Schedule(StepTokens::kGenerated));
}

PhaseOrder::Step PhaseOrder::NextTogether(Scheduler& scheduler) {
  std::vector<ScheduledTokens> step = scheduler.Schedule();
  const bool has_prompts = std::ranges::any_of(step, [](const ScheduledTokens& scheduled) {
    return scheduled.sequence->num_computed < scheduled.sequence->prompt_length;
  });
  return has_prompts && !in_epoch() ? InPrefill(scheduler, std::move(step))
                                    : InDecode(std::move(step));
}

}  // namespace convene::engine
