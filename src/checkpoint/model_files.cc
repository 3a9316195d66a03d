#include "checkpoint/model_files.h"

#include <fmt/format.h>

#include <filesystem>
#include <set>

#include "base/is_there.h"
#include "base/json.h"
#include "base/quote.h"
#include "base/read_file.h"
#include "model/family.h"

namespace convene::checkpoint {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// Real files: at most 100 KB, and 5 MB for the index of the largest models.
constexpr uint64_t kMaxConfigBytes = 8 << 20;
constexpr uint64_t kMaxIndexBytes = 32 << 20;

bool Exists(const fs::path& path) { return IsThere(path.string()); }

bool IsDirectory(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

Result<json> ParseFile(const std::string& path, const Result<std::string>& text) {
  if (!text) return text.error();
  Result<json> document = ParseJson(*text);
  if (!document) return document.error().At(path);
  return document;
}

}  // namespace

Result<json> ReadOptionalJson(const std::string& path, uint64_t max_bytes) {
  if (!Exists(path)) return json::object();
  return ParseFile(path, ReadFile(path, max_bytes));
}

Result<ConfigFile> ReadConfigFile(const std::string& path) {
  if (!Exists(path)) {
    return NotFound(fmt::format("there is no {}; give a model directory or its config.json", path));
  }
  ConfigFile config = {.path = path, .json = {}};
  if (IsDirectory(path)) {
    config.path = (fs::path(path) / "config.json").string();
    if (!Exists(config.path)) {
      return NotFound(
          fmt::format("{} has no config.json, so it is not a (complete) model directory", path));
    }
    if (Exists(fs::path(path) / "hf_quant_config.json")) {
      return Error{
          fmt::format("{} holds a quantised checkpoint (hf_quant_config.json), which is "
                      "not supported yet; use the F32, F16 or BF16 version of this model",
                      path)};
    }
  }
  // A file that was named itself may be a stream.
  Result<json> document =
      ParseFile(config.path, config.path == path ? ReadFileOrStream(path, kMaxConfigBytes)
                                                 : ReadFile(config.path, kMaxConfigBytes));
  if (!document) return document.error();
  config.json = *std::move(document);
  return config;
}

Result<model::ModelSpec> OpenConfig(const std::string& path) {
  const Result<ConfigFile> config = ReadConfigFile(path);
  if (!config) return config.error();
  Result<model::ModelSpec> spec = model::ModelSpecFromConfig(config->json);
  if (!spec) return spec.error().At(config->path);
  return spec;
}

Result<std::vector<std::string>> ParseShardIndex(std::string_view text) {
  const Result<json> index = ParseJson(text);
  if (!index) return index.error();
  if (!index->is_object() || !index->contains("weight_map") ||
      !index->at("weight_map").is_object()) {
    return Error{"it has no object weight_map"};
  }
  std::set<std::string> shards;
  for (const auto& [tensor, file] : index->at("weight_map").items()) {
    if (!file.is_string()) {
      return Error{fmt::format("weight_map gives no file name for tensor {}", Quote(tensor))};
    }
    const auto& name = file.get_ref<const std::string&>();
    if (name.empty() || name.find_first_of(std::string_view("/\\\0", 3)) != std::string::npos ||
        name == "." || name == "..") {
      return Error{fmt::format("weight_map names the file {}; shards must lie beside the index",
                               Quote(name))};
    }
    shards.insert(name);
  }
  if (shards.empty()) return Error{"weight_map is empty"};
  return std::vector<std::string>(shards.begin(), shards.end());
}

Result<std::vector<std::string>> FindWeightFiles(const std::string& directory) {
  const fs::path root = directory;
  if (Exists(root / "model.safetensors")) return std::vector<std::string>{"model.safetensors"};
  const std::string index_path = (root / "model.safetensors.index.json").string();
  if (!Exists(index_path)) {
    if (Exists(root / "convene.safetensors")) {
      return NotFound(
          fmt::format("{} has packed weights (convene.safetensors), but no convene.json that says "
                      "how; make the directory again with convene quantize",
                      directory));
    }
    return NotFound(
        fmt::format("{} has neither model.safetensors nor model.safetensors.index.json; "
                    "other formats must be converted to safetensors first",
                    directory));
  }
  const Result<std::string> text = ReadFile(index_path, kMaxIndexBytes);
  if (!text) return text.error();
  Result<std::vector<std::string>> shards = ParseShardIndex(*text);
  if (!shards) return shards.error().At(index_path);

  std::vector<std::string> missing;
  for (const std::string& shard : *shards) {
    if (!Exists(root / shard)) missing.push_back(shard);
  }
  if (!missing.empty()) {
    return NotFound(fmt::format("{} lacks {} of the {} shards that its index names, the first {}",
                                directory, missing.size(), shards->size(), Quote(missing.front())));
  }
  return shards;
}

}  // namespace convene::checkpoint
