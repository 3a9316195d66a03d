#include "engine/measured_machine.h"

#include <algorithm>
#include <utility>

#include "engine/crossovers.h"
#include "hardware/profile.h"
#include "kernels/choose_kernels.h"

namespace convene::engine {

std::optional<cost::MachineProfile> MeasuredMachine(std::optional<int> gpu) {
  Result<hardware::Profile> kept = hardware::LoadProfile(hardware::ProfilePath());
  if (!kept) return std::nullopt;
  cost::MachineProfile machine;
  if (gpu) {
    const auto found = std::ranges::find(kept->gpus, *gpu, &hardware::GpuProfile::index);
    if (found == kept->gpus.end()) return std::nullopt;
    machine.device = cost::FiguresOf(*found);
  } else {
    const Result<const kernels::KernelSet*> kernels = kernels::ChooseKernels();
    if (!kernels || !IsOf(*kept, ComputesHereWith((*kernels)->name, /*cpus=*/{}))) {
      return std::nullopt;
    }
  }
  machine.machine = *std::move(kept);
  return machine;
}

}  // namespace convene::engine
