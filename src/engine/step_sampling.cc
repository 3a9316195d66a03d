#include "engine/step_sampling.h"

#include <cstdint>
#include <utility>

#include "tensor/finite.h"

namespace convene::engine {
namespace {

// Copies of more than this would take memory that nobody has planned; what is beyond is drawn at
// once, by the step's thread.
constexpr size_t kMostKeptBytes = size_t{64} << 20;

std::optional<GeneratedToken> SampleFinite(ActiveRequest& request, std::span<const float> logits) {
  if (!tensor::AllFinite(logits)) return std::nullopt;
  return request.Sample(logits);
}

}  // namespace

void StepSampling::Add(ActiveRequest& request, std::span<const float> logits) {
  Sampled& sampled = sampled_.emplace_back(Sampled{.request = &request, .token = {}});
  const bool is_kept = request.samples_slowly() && request.samples_alone() &&
                       kept_bytes_ + logits.size_bytes() <= kMostKeptBytes;
  if (!is_kept) {
    sampled.token = SampleFinite(request, logits);
    return;
  }
  if (num_kept_ == kept_.size()) kept_.emplace_back();
  Kept& kept = kept_[num_kept_++];
  kept.sampled_idx = sampled_.size() - 1;
  kept.logits.assign(logits.begin(), logits.end());
  kept_bytes_ += logits.size_bytes();
}

std::vector<StepSampling::Sampled> StepSampling::Take(hardware::ThreadPool& pool) {
  pool.ParallelFor(static_cast<int64_t>(num_kept_), [&](int64_t index, int) {
    const Kept& kept = kept_[static_cast<size_t>(index)];
    Sampled& sampled = sampled_[kept.sampled_idx];
    sampled.token = SampleFinite(*sampled.request, kept.logits);
  });
  num_kept_ = 0;
  kept_bytes_ = 0;
  return std::exchange(sampled_, {});
}

}  // namespace convene::engine
