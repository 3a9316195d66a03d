// Finds and reads the small files of a Hugging Face model directory: configurations and the list of
// weight files. The weights themselves are opened by Checkpoint.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/model_spec.h"

namespace convene::checkpoint {

// For commands that need only shapes: the architecture that `path` describes, a model directory or
// a bare config.json. Errors name the file and what is wrong with it.
Result<model::ModelSpec> OpenConfig(const std::string& path);

// The parsed config.json at or in `path`. Errors: there is none, it is not JSON, the directory
// holds a checkpoint of another kind (quantised by ModelOpt).
struct ConfigFile {
  std::string path;
  nlohmann::json json;
};
Result<ConfigFile> ReadConfigFile(const std::string& path);

// A JSON object in the file `path`, at most `max_bytes` long; an empty object where there is no
// file.
Result<nlohmann::json> ReadOptionalJson(const std::string& path, uint64_t max_bytes);

// The names of the weight files in `directory`: model.safetensors, or the shards that
// model.safetensors.index.json lists. Errors: neither is there, an index that is malformed or names
// files elsewhere, shards that are missing.
Result<std::vector<std::string>> FindWeightFiles(const std::string& directory);

// The shards that the text of a model.safetensors.index.json names, sorted, each once.
Result<std::vector<std::string>> ParseShardIndex(std::string_view text);

}  // namespace convene::checkpoint
