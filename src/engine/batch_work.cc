#include "engine/batch_work.h"

#include <algorithm>
#include <cmath>

#include "engine/scheduler.h"
#include "planner/spilled_steps.h"

namespace convene::engine {

int BlocksOfSequence(const BatchWork& work) {
  const double tokens = work.prompt_tokens + work.gen_tokens;
  if (work.longest != tokens) return planner::BlocksOfSequence(tokens);
  // All are alike: the last one is let in while the others have read their prompts at most.
  return std::max(Scheduler::BlocksFor(work.longest),
                  Scheduler::BlocksFor(static_cast<int>(work.prompt_tokens)) + 1);
}

double StepsOf(const BatchWork& work, int max_sequences, int max_step_tokens) {
  const auto requests = static_cast<double>(work.num_requests);
  const double together = std::min<double>(requests, max_sequences);
  const double generating = std::ceil(requests / together) * work.gen_tokens;
  const double first_prompts = together * work.prompt_tokens / max_step_tokens;
  const double all_tokens = requests * (work.prompt_tokens + work.gen_tokens - 1) / max_step_tokens;
  return std::max({1.0, all_tokens, generating + first_prompts});
}

}  // namespace convene::engine
