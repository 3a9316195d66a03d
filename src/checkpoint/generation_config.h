// How a checkpoint's authors want it sampled: generation_config.json, and the end-of-text tokens
// that config.json names. What the command line says instead is not its business.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

namespace convene::checkpoint {

// Fields that the files do not set are empty; transformers then takes greedy choice, temperature 1,
// top_k 50, top_p 1, no min_p, no penalty.
struct GenerationConfig {
  std::vector<int> eos_token_ids;  // any of them ends the text
  std::optional<bool> do_sample;   // false: greedy, whatever the temperature
  std::optional<double> temperature;
  std::optional<int> top_k;  // 0: all
  std::optional<double> top_p;
  std::optional<double> min_p;
  std::optional<double> repetition_penalty;
  std::optional<int> max_new_tokens;
  // Fields that change what transformers generates and that convene does not know, with their
  // values where these are short: "num_beams=4". Those with a value that changes nothing are left
  // out.
  std::vector<std::string> unknown;
  bool is_from_model_config = false;  // config.json said all this
};

// `generation` is the content of generation_config.json, null where there is no such file; `config`
// that of config.json. As in transformers, config.json says everything where there is no other
// file; otherwise it is asked only for the tokens that `generation` does not name. How long a text
// may become (max_length) is the command line's matter.
// Errors: fields of the wrong type or out of range.
Result<GenerationConfig> ReadGenerationConfig(const nlohmann::json* generation,
                                              const nlohmann::json& config);

}  // namespace convene::checkpoint
