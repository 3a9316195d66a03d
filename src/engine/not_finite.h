// What is said of a model whose logits or states are NaN or infinite: no token can be chosen from
// them. Looks for the reason in the weights first, then in a layer.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "base/result.h"
#include "engine/loaded_model.h"
#include "runtime/transformer.h"

namespace convene::engine {

Error NotFiniteError(const std::string& reason);

class NotFiniteReason {
 public:
  // Why a step gave what is not finite, as the end of a sentence: the packed matrix that holds it,
  // or the layer where values overflow. Reads all weights once and runs the step again (on one
  // rank; on several the layer is not told), so only when it has happened.
  std::string Find(LoadedModel& model, std::span<const device::SequenceStep> step);

 private:
  bool has_looked_ = false;
  std::optional<std::string> matrix_;  // the name of the one that is not finite, once found
};

}  // namespace convene::engine
