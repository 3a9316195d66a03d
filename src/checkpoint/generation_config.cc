#include "checkpoint/generation_config.h"

#include <fmt/format.h>

#include <initializer_list>
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

// Fields of transformers' GenerationConfig (version 5) without a counterpart here, less those whose
// value changes nothing.
std::vector<std::string> UnknownFields(const nlohmann::json& object) {
  std::vector<std::string> fields;
  const auto look_for = [&](std::initializer_list<const char*> names, std::optional<int> neutral) {
    constexpr size_t kMostShown = 32;
    for (const char* name : names) {
      const auto value = object.find(name);
      if (value == object.end() || value->empty() || *value == false) continue;  // null is empty
      if (neutral && *value == *neutral) continue;
      const std::string text = value->dump();
      fields.push_back(text.size() > kMostShown ? name : fmt::format("{}={}", name, text));
    }
  };
  look_for({"num_beams", "num_beam_groups", "num_return_sequences", "typical_p",
            "encoder_repetition_penalty", "guidance_scale"},
           1);
  look_for({"penalty_alpha", "min_length", "min_new_tokens", "epsilon_cutoff", "eta_cutoff",
            "no_repeat_ngram_size", "encoder_no_repeat_ngram_size"},
           0);
  look_for({"dola_layers", "stop_strings", "top_h", "exponential_decay_length_penalty",
            "bad_words_ids", "force_words_ids", "constraints", "suppress_tokens",
            "begin_suppress_tokens", "forced_bos_token_id", "forced_eos_token_id",
            "forced_decoder_ids", "sequence_bias", "token_healing", "watermarking_config"},
           std::nullopt);
  return fields;
}

}  // namespace

Result<GenerationConfig> ReadGenerationConfig(const nlohmann::json* generation,
                                              const nlohmann::json& config) {
  std::optional<Error> first_error;
  const nlohmann::json& source = generation ? *generation : config;
  ConfigFields fields(source, first_error);
  ConfigFields fallback(config, first_error);

  GenerationConfig result;
  result.eos_token_ids = TokenIds(fields, source, "eos_token_id");
  if (result.eos_token_ids.empty()) {
    result.eos_token_ids = TokenIds(fallback, config, "eos_token_id");
  }
  if (fields.Has("do_sample")) result.do_sample = fields.Boolean("do_sample", false);
  result.temperature = fields.OptionalNumber("temperature", {0, 100});
  result.top_k = fields.OptionalInteger("top_k", kCount);
  result.top_p = fields.OptionalNumber("top_p", {0, 1});
  result.min_p = fields.OptionalNumber("min_p", {0, 1});
  result.repetition_penalty = fields.OptionalNumber("repetition_penalty", {0.01, 100});
  result.max_new_tokens = fields.OptionalInteger("max_new_tokens", kCount);
  if (first_error) return *first_error;
  result.unknown = UnknownFields(source);
  result.is_from_model_config = generation == nullptr;
  return result;
}

}  // namespace convene::checkpoint
