#include "cost/measured_model.h"

#include <fmt/format.h>

#include "cost/import_tables.h"

namespace convene::cost {

MeasuredModel FindModel(const MachineProfile& machine, const DeviceFigures& device,
                        const std::string& name) {
  const auto found = machine.operators.find(name);
  if (found == machine.operators.end()) return {};
  MeasuredModel measured{
      .model = &found->second, .device = device, .link_bytes_per_second = LinkOfHost(machine)};
  if (const auto other = machine.measured_on.find(name); other != machine.measured_on.end()) {
    measured.device = other->second.device;
    measured.link_bytes_per_second = other->second.link_bytes_per_second;
  }
  return measured;
}

std::string NoteOf(const char* what, const MeasuredModel& measured, const DeviceFigures& device,
                   const std::string& instead) {
  if (measured.model == nullptr) return fmt::format("{}: {}", what, instead);
  const bool is_other = measured.device.name != device.name;
  return fmt::format("{}: {} ({}), {:.1f} % from held-out points in the median{}", what,
                     measured.model->spec.name, measured.model->spec.source,
                     100 * measured.model->chosen().median,
                     is_other ? fmt::format("; {} reaches the share of its limits that {} does",
                                            device.name, measured.device.name)
                              : "");
}

}  // namespace convene::cost
