// Which step comes next where prompts and generated tokens have different divisions of the experts
// (plan/plan.h, PhaseChange): so that experts move seldom, prompts are computed together, and then
// tokens are generated for a while. What a step has of which sequence is the scheduler's.
#pragma once

#include <limits>
#include <vector>

#include "engine/scheduler.h"
#include "plan/plan.h"
#include "strategy/role.h"

namespace convene::engine {

// How requests come.
enum class Arrivals {
  kStream,  // while others run
  kAtOnce,  // all before the first step
};

class PhaseOrder {
 public:
  struct Step {
    std::vector<ScheduledTokens> tokens;
    strategy::Phase phase = strategy::Phase::kPrefill;
    // Of a step in prefill: the next one is in decode, unless requests come or end meanwhile.
    bool decode_follows = false;
  };

  // Where all come at once, an epoch lasts until nobody generates.
  PhaseOrder(const plan::PhaseChange& change, Arrivals arrivals)
      : epoch_steps_(arrivals == Arrivals::kAtOnce ? kEndless : change.epoch_steps),
        prompts_join_(change.prompts_join && arrivals == Arrivals::kStream) {}

  // Empty only if there is no sequence.
  Step Next(Scheduler& scheduler);

 private:
  static constexpr int kEndless = std::numeric_limits<int>::max();

  bool in_epoch() const { return phase_ == strategy::Phase::kDecode && num_steps_ < epoch_steps_; }
  Step InDecode(std::vector<ScheduledTokens> tokens);
  Step InPrefill(const Scheduler& scheduler, std::vector<ScheduledTokens> tokens);
  Step NextApart(Scheduler& scheduler);
  Step NextTogether(Scheduler& scheduler);

  int epoch_steps_;
  bool prompts_join_;
  strategy::Phase phase_ = strategy::Phase::kPrefill;
  int num_steps_ = 0;  // of the epoch so far
};

}  // namespace convene::engine
