// The registry of model families: from a config.json to a ModelSpec. A family is one file beside
// this one and one line in each of the two lists.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/config_fields.h"
#include "model/model_spec.h"

namespace convene::model {

// The architecture that `config`, the content of a config.json, describes. Errors: an unknown
// model_type (the message lists the known ones), fields of the wrong type or out of range, and
// whatever a family can say but convene does not compute.
Result<ModelSpec> ModelSpecFromConfig(const nlohmann::json& config);

// The model_type of every family.
std::vector<std::string_view> FamilyNames();

// Makes `config`, the content of a config.json, describe a model of `num_layers` layers of the same
// kinds: the number itself, and the list of layer types where there is one.
void SetNumLayers(nlohmann::json& config, int num_layers);

// One per family, in the file of its name; `family` in what they return is still empty.
Result<ModelSpec> ReadMixtral(ConfigFields& config);
Result<ModelSpec> ReadQwen2Moe(ConfigFields& config);
Result<ModelSpec> ReadQwen3Moe(ConfigFields& config);
Result<ModelSpec> ReadOlmoe(ConfigFields& config);
Result<ModelSpec> ReadDbrx(ConfigFields& config);
Result<ModelSpec> ReadGraniteMoe(ConfigFields& config);
Result<ModelSpec> ReadGptOss(ConfigFields& config);
Result<ModelSpec> ReadDeepseekV2(ConfigFields& config);
Result<ModelSpec> ReadDeepseekV3(ConfigFields& config);
Result<ModelSpec> ReadSwitchTransformers(ConfigFields& config);

// SetNumLayers of the families that call their layers otherwise than a decoder does.
void SetSwitchTransformersLayers(nlohmann::json& config, int num_layers);

}  // namespace convene::model
