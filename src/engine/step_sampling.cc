#include "engine/step_sampling.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "tensor/finite.h"

namespace convene::engine {
namespace {

// Copies of more than this would take memory that nobody has planned; what is beyond is drawn at
// once, by the step's thread.
constexpr size_t kMostCopiedBytes = size_t{64} << 20;

std::optional<GeneratedToken> SampleFinite(ActiveRequest& request, std::span<const float> logits,
                                           SamplerBuffers& buffers) {
  if (!tensor::AllFinite(logits)) return std::nullopt;
  return request.Sample(logits, buffers);
}

}  // namespace

uint64_t StepSampling::BytesOf(int64_t vocab_size, int num_sequences, int num_threads) {
  const uint64_t copies = sizeof(float) * static_cast<uint64_t>(vocab_size) * num_sequences;
  return std::min<uint64_t>(copies, kMostCopiedBytes) +
         SamplerBuffers::BytesOf(vocab_size) * std::min(num_sequences, num_threads);
}

void StepSampling::Add(ActiveRequest& request, const runtime::Logits& of_step, bool stays) {
  Sampled& sampled = sampled_.emplace_back(Sampled{.request = &request, .token = {}});
  if (of_step.is_largest_alone()) {
    if (of_step.largest() >= 0) sampled.token = GeneratedToken{.token = of_step.largest()};
    return;
  }
  std::span<const float> logits = of_step;
  const bool may_wait = request.samples_slowly() && request.samples_alone();
  if (!may_wait || (!stays && (num_copies_ + 1) * logits.size_bytes() > kMostCopiedBytes)) {
    sampled.token = SampleFinite(request, logits, buffers_.front());
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
  buffers_.resize(std::max(buffers_.size(), static_cast<size_t>(pool.size())));
  pool.ParallelFor(std::ssize(waiting_), [&](int64_t index, int thread_idx) {
    const Waiting& waiting = waiting_[static_cast<size_t>(index)];
    Sampled& sampled = sampled_[waiting.sampled_idx];
    sampled.token =
        SampleFinite(*sampled.request, waiting.logits, buffers_[static_cast<size_t>(thread_idx)]);
  });
  waiting_.clear();
  num_copies_ = 0;
  return std::exchange(sampled_, {});
}

}  // namespace convene::engine
