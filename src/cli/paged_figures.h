// What experts that are read while a model runs, and keys and values on a disk, have cost so far,
// as JSON. The lines for people are DescribePages and DescribeSpill (model_options.h).
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "engine/loaded_model.h"

namespace convene::cli {

// Of pages, since the model was loaded; null: all experts are in memory. The share that is found
// there is of the experts that were computed with, the predicted one of those that layers chose
// whose experts were predicted (null: none was).
nlohmann::ordered_json PagedFigures(const engine::LoadedModel& model);
// Of keys and values, likewise; null: all of them are in memory.
nlohmann::ordered_json SpillFigures(const engine::LoadedModel& model);
// With what the model was loaded, as it was chosen or given, where one of the two is not null;
// otherwise null.
nlohmann::ordered_json ChosenFigures(const engine::LoadedModel& model);

}  // namespace convene::cli
