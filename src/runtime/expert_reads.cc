#include "runtime/expert_reads.h"

#include <algorithm>

#include "base/check.h"

namespace convene::runtime {
namespace {

using device::Layer;

// Of experts of a layer those that a rank has, each once, numbered as it has them, in increasing
// order.
template <typename Number>
std::vector<int> OwnOf(const std::vector<Number>& experts, const strategy::Part& own) {
  std::vector<int> each;
  for (const Number expert : experts) {
    const int number = static_cast<int>(expert) - own.first;
    if (number >= 0 && number < own.size) each.push_back(number);
  }
  std::ranges::sort(each);
  each.erase(std::unique(each.begin(), each.end()), each.end());
  return each;
}

const Layer* NextWithExperts(const std::vector<Layer>& stack, int layer) {
  const auto next = std::find_if(stack.begin() + layer + 1, stack.end(),
                                 [](const Layer& one) { return one.spec.moe.has_value(); });
  return next != stack.end() ? &*next : nullptr;
}

}  // namespace

void ExpertReads::Begin(const std::optional<strategy::Paging>& paging, size_t num_layers) {
  if (paged_ != nullptr) paged_->BeginStep();
  predicts_ = paging && paging->predicts;
  predicted_.assign(predicts_ ? num_layers : 0, {});
}

const Layer* ExpertReads::ToPredict(const std::vector<Layer>& stack, int layer) const {
  return predicts_ ? NextWithExperts(stack, layer) : nullptr;
}

void ExpertReads::Chose(const Layer& layer, const Layer* predicted, const device::Frame& frame) {
  if (!predicts_) return;
  paged_->Chose(layer.id(), OwnOf(frame.experts, paged_->OwnExperts(layer.id())),
                predicted_[layer.index]);
  if (predicted == nullptr) return;
  predicted_[predicted->index] = OwnOf(frame.predicted, paged_->OwnExperts(predicted->id()));
}

void ExpertReads::Read(const schedule::Task& task, const std::vector<Layer>& stack,
                       const device::Frame* frame) {
  using enum schedule::TaskKind;
  const weights::LayerId layer = stack[task.layer].id();
  if (task.kind == kReadPredicted) {
    const Layer* const next = NextWithExperts(stack, task.layer);
    if (frame != nullptr) paged_->ReadPredicted(next->id(), predicted_[next->index]);
    return;
  }
  if (task.kind == kReadNext) {
    if (frame != nullptr) paged_->ReadNext();
    return;
  }
  CHECK(task.kind == kReadPages || task.kind == kReadChosen, "{}", Label(task));
  if (task.kind == kReadPages) return paged_->ReadAhead(layer, task.chunk);
  std::vector<int> chosen;
  if (frame != nullptr) {
    chosen = OwnOf(frame->expert_rows.WantedExperts(task.chunk), paged_->OwnExperts(layer));
  }
  paged_->ReadChosen(layer, task.chunk, chosen);
}

void ExpertReads::EndStep() {
  if (paged_ != nullptr) paged_->EndStep();
}

void ExpertReads::Release(const schedule::Task& task) {
  if (paged_ != nullptr) paged_->Release({task.layer, task.encoder}, task.chunk);
}

}  // namespace convene::runtime
