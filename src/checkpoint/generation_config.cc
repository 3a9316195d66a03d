#include "checkpoint/generation_config.h"

#include <nlohmann/json.hpp>

#include "model/config_fields.h"

namespace convene::checkpoint {
namespace {

using model::ConfigFields;

constexpr model::IntegerRange kTokenId = {0, INT32_MAX};
constexpr model::IntegerRange kCount = {0, INT32_MAX};

// One id or a list of them.
std::vector<int> TokenIds(ConfigFields& config, const nlohmann::json& object, const char* name) {
  if (object.is_object() && object.contains(name) && object.at(name).is_array()) {
    return config.Integers(name, kTokenId);
  }
  const std::optional<int> id = config.OptionalInteger(name, kTokenId);
  return id ? std::vector<int>{*id} : std::vector<int>{};
}

}  // namespace

Result<GenerationConfig> ReadGenerationConfig(const nlohmann::json& generation,
                                              const nlohmann::json& config) {
  std::optional<Error> first_error;
  ConfigFields fields(generation, first_error);
  ConfigFields fallback(config, first_error);

  GenerationConfig result;
  result.eos_token_ids = TokenIds(fields, generation, "eos_token_id");
  if (result.eos_token_ids.empty()) {
    result.eos_token_ids = TokenIds(fallback, config, "eos_token_id");
  }
  result.bos_token_id = fields.OptionalInteger("bos_token_id", kTokenId);
  if (!result.bos_token_id) {
    result.bos_token_id = fallback.OptionalInteger("bos_token_id", kTokenId);
  }
  if (fields.Has("do_sample")) result.do_sample = fields.Boolean("do_sample", false);
  result.temperature = fields.OptionalNumber("temperature", {0, 100});
  result.top_k = fields.OptionalInteger("top_k", kCount);
  result.top_p = fields.OptionalNumber("top_p", {0, 1});
  result.min_p = fields.OptionalNumber("min_p", {0, 1});
  result.repetition_penalty = fields.OptionalNumber("repetition_penalty", {0.01, 100});
  result.max_new_tokens = fields.OptionalInteger("max_new_tokens", kCount);
  if (first_error) return *first_error;
  return result;
}

}  // namespace convene::checkpoint
