// The fields of a plan that say how steps are cut: chunks, micro-batches, and what overlaps. Their
// texts in the file; what they mean is plan.h and strategy/step.h.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "base/result.h"
#include "plan/plan.h"

namespace convene::plan {

nlohmann::ordered_json PipelineToJson(const Plan& plan);
// Sets what the object has of it. Errors: no object, values out of range, keys that are not known.
// What does not go together is CheckPipeline's.
Status ReadPipeline(const nlohmann::json& object, Plan* plan);

}  // namespace convene::plan
