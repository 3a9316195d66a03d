#include "evaluate/model_speed.h"

#include <memory>
#include <utility>

#include "base/check.h"
#include "comm/solo/solo_group.h"
#include "evaluate/reference_kernel.h"
#include "memory/ledger.h"
#include "runtime/formats.h"

namespace convene::evaluate {

Result<cost::ReferenceSpeed> MeasureSpeedBeside(engine::LoadedModel& model) {
  CHECK(model.plan().layout.num_ranks() == 1, "{} ranks", model.plan().layout.num_ranks());
  // What the model has left is a tier by itself: nobody else reserves any of it meanwhile.
  memory::Tier left = model.ledger().tier();
  left.budget_bytes = model.ledger().available_bytes();
  memory::Ledger ledger(std::move(left));
  // In the formats with which a profile measures, whatever the model's activations are.
  Result<ReferenceKernel> reference =
      ReferenceKernel::Create(model.kernels(), model.pool(),
                              runtime::DefaultFormats(model.formats().weights.matrices), ledger);
  if (!reference) return reference.error();
  const std::unique_ptr<comm::Group> alone = comm::MakeSoloGroup();
  return reference->Measure(*alone);
}

}  // namespace convene::evaluate
