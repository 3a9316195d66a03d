// A model of a machine's operator together with the machine whose limits its ideal seconds are: the
// profile's own, or a relative (MachineProfile::measured_on).
#pragma once

#include <string>

#include "cost/machine_profile.h"

namespace convene::cost {

struct MeasuredModel {
  const OperatorModel* model = nullptr;  // null: there is none
  DeviceFigures device = {};
  double link_bytes_per_second = 0;
};

// Of the operator of this name, on a machine with this device. The model is the profile's.
MeasuredModel FindModel(const MachineProfile& machine, const DeviceFigures& device,
                        const std::string& name);

// What stands behind a figure, for people: "products: product bf16 (TABLE, KERNEL), 3.1 % from
// held-out points in the median", and whose share of its limits the device takes; `instead` where
// there is no model.
std::string NoteOf(const char* what, const MeasuredModel& measured, const DeviceFigures& device,
                   const std::string& instead);

}  // namespace convene::cost
