#include "engine/step_sampling.h"

#include <cstdint>
#include <utility>

#include "tensor/finite.h"

namespace convene::engine {
namespace {

// Copies of more than this would take memory that nobody has planned; what is beyond is drawn at
// once, by the step's thread.
constexpr size_t kMostCopiedBytes = size_t{64} << 20;

std::optional<GeneratedToken> SampleFinite(ActiveRequest& request, std::span<const float> logits) {
  if (!tensor::AllFinite(logits)) return std::nullopt;
  return request.Sample(logits);
}

}  // namespace

void StepSampling::Add(ActiveRequest& request, const runtime::Logits& of_step, bool stays) {
  Sampled& sampled = sampled_.emplace_back(Sampled{.request = &request, .token = {}});
  if (of_step.is_largest_alone()) {
    if (of_step.largest() >= 0) sampled.token = GeneratedToken{.token = of_step.largest()};
    return;
  }
  std::span<const float> logits = of_step;
  const bool may_wait = request.samples_slowly() && request.samples_alone();
  if (!may_wait || (!stays && (num_copies_ + 1) * logits.size_bytes() > kMostCopiedBytes)) {
    sampled.token = SampleFinite(request, logits);
    return;
  }
  if (!stays) {
    if (num_copies_ == copies_.size()) copies_.emplace_back();
    std::vector<float>& copy = copies_[num_copies_++];
    copy.assign(logits.begin(), logits.end());
    logits = copy;
  }
  waiting_.push_back({sampled_.size() - 1, logits});
}

std::vector<StepSampling::Sampled> StepSampling::Take(hardware::ThreadPool& pool) {
  pool.ParallelFor(std::ssize(waiting_), [&](int64_t index, int) {
    const Waiting& waiting = waiting_[static_cast<size_t>(index)];
    Sampled& sampled = sampled_[waiting.sampled_idx];
    sampled.token = SampleFinite(*sampled.request, waiting.logits);
  });
  waiting_.clear();
  num_copies_ = 0;
  return std::exchange(sampled_, {});
}

}  // namespace convene::engine
