// The tokens that a step gives its requests: what is long to draw is drawn after the step, by all
// threads together. What is drawn does not depend on that, since each request draws for itself.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "engine/active_request.h"
#include "hardware/thread_pool.h"

namespace convene::engine {

class StepSampling {
 public:
  struct Sampled {
    ActiveRequest* request;
    std::optional<GeneratedToken> token;  // nothing: the logits were not finite
  };

  // During a step, from its thread: the logits (vocab) of a request, valid during the call.
  void Add(ActiveRequest& request, std::span<const float> logits);

  // After the step, whose thread alone uses `pool` now: of each request that was added, in order.
  std::vector<Sampled> Take(hardware::ThreadPool& pool);

 private:
  // Where the logits of a request are kept until they are drawn from.
  struct Kept {
    size_t sampled_idx;
    std::vector<float> logits;
  };

  std::vector<Sampled> sampled_;
  std::vector<Kept> kept_;  // more than num_kept_ where steps before had more
  size_t num_kept_ = 0;
  size_t kept_bytes_ = 0;
};

}  // namespace convene::engine
