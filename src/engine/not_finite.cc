#include "engine/not_finite.h"

#include <fmt/format.h>

#include "weights/finite_weights.h"

namespace convene::engine {

Error NotFiniteError(const std::string& reason) {
  return Internal("the logits are NaN or infinite, so that no token can be chosen: " + reason);
}

std::string NotFiniteReason::Find(LoadedModel& model, std::span<const device::SequenceStep> step) {
  if (!has_looked_) {
    // Its pages come and go while it is read ahead.
    model.transformer().StopReadingAhead();
    matrix_ = weights::FindNotFinite(model.weights());
    has_looked_ = true;
  }
  if (matrix_) {
    return fmt::format(
        "the packed weights {} are; the file is damaged: make the directory again with convene "
        "quantize",
        *matrix_);
  }
  constexpr const char* kAdvice =
      "use more precise formats (--weights f32 or bf16, --kv-cache bf16), or get the checkpoint "
      "again";
  if (model.plan().layout.num_ranks() > 1) {
    return fmt::format(
        "no weight that this rank holds is; look at the other ranks' files, or {}; one rank alone "
        "would tell the layer",
        kAdvice);
  }
  const std::optional<runtime::TaskAt> at = model.transformer().FindNotFinite(step);
  if (!at) return fmt::format("the last matrix (head) makes them from finite values; {}", kAdvice);
  return fmt::format("no weight is, but values overflow in {}layer {} ({}); {}",
                     at->encoder ? "the encoder's " : "", at->layer, at->task, kAdvice);
}

}  // namespace convene::engine
