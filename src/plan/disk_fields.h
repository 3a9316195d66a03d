// The fields of a plan that say what lies on a disk: experts, and keys and values. Their texts in
// the file; what they mean is plan.h.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "base/result.h"
#include "plan/plan.h"

namespace convene::plan {

// Precondition: a whole number. Error: out of range.
Result<int> ExpertsInMemoryFromJson(const nlohmann::json& value);

nlohmann::ordered_json ToJson(const SpilledKv& spilled);
// Errors: no object with all its members, values out of range, keys that are not known.
Result<SpilledKv> SpilledKvFromJson(const nlohmann::json& value);

// Error: CanPage's or CanSpill's where the plan says something of a disk, with the field's name.
Status CheckDiskFields(const Plan& plan);

}  // namespace convene::plan
