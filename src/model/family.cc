#include "model/family.h"

#include <nlohmann/json.hpp>

#include "base/quote.h"
#include "model/quantization.h"

namespace convene::model {
namespace {

struct Family {
  std::string_view name;  // model_type
  Result<ModelSpec> (*read)(ConfigFields& config);
  Storage quantised = Storage::kPlain;  // how it may be stored otherwise
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
    {"switch_transformers", ReadSwitchTransformers},
};

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

namespace {

// Both stacks of an encoder-decoder, with as many sparse layers among so many as before.
void SetStackLayers(nlohmann::json& config, int num_layers) {
  for (const std::string stack : {"encoder", "decoder"}) {
    const std::string count = stack == "encoder" ? "num_layers" : "num_decoder_layers";
    const std::string sparse = "num_sparse_" + stack + "_layers";
    const std::string step = stack + "_sparse_step";
    const auto is_count = [&](const std::string& name) {
      return config.contains(name) && config[name].is_number_integer() && config[name] > 0;
    };
    if (!config.contains(step) && is_count(count) && is_count(sparse)) {
      config[step] =
          std::max<int64_t>(1, config[count].get<int64_t>() / config[sparse].get<int64_t>());
    }
    config[count] = num_layers;
  }
}

}  // namespace

void SetNumLayers(nlohmann::json& config, int num_layers) {
  if (!config.is_object()) return;
  const auto type = config.find("model_type");
  if (type != config.end() && *type == "switch_transformers") {
    return SetStackLayers(config, num_layers);
  }
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

Result<ModelSpec> ModelSpecFromConfig(const nlohmann::json& config) {
  std::optional<Error> first_error;
  ConfigFields fields(config, first_error);
  const std::string name = fields.Text("model_type", "");
  if (!fields.ok()) return fields.error();
  if (name.empty()) return NotSupported("a configuration without model_type");
  for (const Family& family : kFamilies) {
    if (family.name != name) continue;
    if (Status quantised = CheckQuantisation(family, fields); !quantised) return quantised.error();
    Result<ModelSpec> spec = family.read(fields);
    if (spec) spec->family = family.name;
    return spec;
  }
  return NotSupported(fmt::format("model_type {}", Quote(name)));
}

}  // namespace convene::model
