// The tokens that a step gives its requests: what is long to draw is drawn after the step, by all
// threads together. What is drawn does not depend on that, since each request draws for itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/active_request.h"
#include "hardware/thread_pool.h"
#include "runtime/step_outputs.h"

namespace convene::engine {

class StepSampling {
 public:
  // Most that it takes while so many threads draw for so many sequences.
  static uint64_t BytesOf(int64_t vocab_size, int num_sequences, int num_threads);

  struct Sampled {
    ActiveRequest* request;
    std::optional<GeneratedToken> token;  // nothing: the logits were not finite
  };

  // During a step, from its thread: the logits of a request, valid during the call, or until Take
  // where they stay.
  void Add(ActiveRequest& request, const runtime::Logits& of_step, bool stays);

  // After the step, whose thread alone uses `pool` now: of each request that was added, in order.
  std::vector<Sampled> Take(hardware::ThreadPool& pool);

 private:
  // What is drawn from after the step.
  struct Waiting {
    size_t sampled_idx;
    std::span<const float> logits;
  };

  std::vector<Sampled> sampled_;
  std::vector<Waiting> waiting_;
  // Copies of logits that do not stay; the first ones in use, the others of steps before.
  std::vector<std::vector<float>> copies_;
  size_t num_copies_ = 0;
  std::vector<SamplerBuffers> buffers_ = std::vector<SamplerBuffers>(1);  // by thread of the pool
};

}  // namespace convene::engine
