#include "model/family.h"

#include <nlohmann/json.hpp>

#include "base/quote.h"
#include "model/quantization.h"

namespace convene::model {
namespace {

// Of a stack of decoder layers, as most families call them.
void SetDecoderLayers(nlohmann::json& config, int num_layers) {
  config[config.contains("n_layers") ? "n_layers" : "num_hidden_layers"] = num_layers;
  if (const auto dense = config.find("mlp_only_layers");
      dense != config.end() && dense->is_array()) {
    const nlohmann::json before = *dense;
    *dense = nlohmann::json::array();
    for (const nlohmann::json& layer : before) {
      if (!layer.is_number_integer() || layer < num_layers) dense->push_back(layer);
    }
  }
  const auto types = config.find("layer_types");
  if (types == config.end() || !types->is_array() || types->empty()) return;
  const nlohmann::json pattern = *types;
  *types = nlohmann::json::array();
  for (int layer = 0; layer < num_layers; ++layer)
    types->push_back(pattern[layer % pattern.size()]);
}

struct Family {
  std::string_view name;  // model_type
  Result<ModelSpec> (*read)(ConfigFields& config);
  Storage quantised = Storage::kPlain;  // how it may be stored otherwise
  void (*set_num_layers)(nlohmann::json& config, int num_layers) = SetDecoderLayers;
};

constexpr Family kFamilies[] = {
    {"mixtral", ReadMixtral},
    {"qwen2_moe", ReadQwen2Moe},
    {"qwen3_moe", ReadQwen3Moe, Storage::kFp8Block},
    {"olmoe", ReadOlmoe},
    {"dbrx", ReadDbrx},
    {"granitemoe", ReadGraniteMoe},
    {"gpt_oss", ReadGptOss, Storage::kMxfp4},
    {"deepseek_v2", ReadDeepseekV2},
    {"deepseek_v3", ReadDeepseekV3, Storage::kFp8Block},
    {"switch_transformers", ReadSwitchTransformers, Storage::kPlain, SetSwitchTransformersLayers},
};

// Null: `name` is no family's.
const Family* FindFamily(std::string_view name) {
  for (const Family& family : kFamilies) {
    if (family.name == name) return &family;
  }
  return nullptr;
}

Error NotSupported(std::string_view what) {
  return Error{fmt::format("{} is not supported; the supported model types are {}", what,
                           fmt::join(FamilyNames(), ", "))};
}

Status CheckQuantisation(const Family& family, ConfigFields& config) {
  const Storage storage = ReadStorage(config);
  if (!config.ok()) return config.error();
  if (storage == Storage::kPlain || storage == family.quantised) return {};
  return Error{
      fmt::format("{} checkpoints of model_type {} are not supported; use the F32, F16 or BF16 "
                  "version of this model",
                  storage == Storage::kMxfp4 ? "MXFP4" : "FP8", family.name)};
}

}  // namespace

std::vector<std::string_view> FamilyNames() {
  std::vector<std::string_view> names;
  for (const Family& family : kFamilies) names.push_back(family.name);
  return names;
}

void SetNumLayers(nlohmann::json& config, int num_layers) {
  if (!config.is_object()) return;
  const auto type = config.find("model_type");
  const bool is_named = type != config.end() && type->is_string();
  const Family* family = is_named ? FindFamily(type->get_ref<const std::string&>()) : nullptr;
  (family != nullptr ? family->set_num_layers : SetDecoderLayers)(config, num_layers);
}

Result<ModelSpec> ModelSpecFromConfig(const nlohmann::json& config) {
  std::optional<Error> first_error;
  ConfigFields fields(config, first_error);
  const std::string name = fields.Text("model_type", "");
  if (!fields.ok()) return fields.error();
  if (name.empty()) return NotSupported("a configuration without model_type");
  const Family* family = FindFamily(name);
  if (family == nullptr) return NotSupported(fmt::format("model_type {}", Quote(name)));
  if (Status quantised = CheckQuantisation(*family, fields); !quantised) return quantised.error();
  Result<ModelSpec> spec = family->read(fields);
  if (spec) spec->family = family->name;
  return spec;
}

}  // namespace convene::model
