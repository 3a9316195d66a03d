// The options of commands that generate text: how tokens are picked and when an answer ends. What
// is not given comes from the model's generation_config.json.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "checkpoint/generation_config.h"
#include "cli/cli11_fwd.h"
#include "engine/request.h"

namespace convene::cli {

struct SamplingFlags {
  std::optional<int> max_tokens;
  engine::GivenSampling given;
  std::optional<uint64_t> seed;
  std::vector<std::string> stop;
  bool ignore_eos = false;
};

// `default_max_tokens`, as the help names it, is for models that name none either.
// --max-tokens, --temperature, --top-k, --top-p, --min-p, --repetition-penalty, --seed, --stop,
// --ignore-eos.
void AddSamplingOptions(CLI::App& app, SamplingFlags& flags, std::string_view default_max_tokens);

// What is wrong with the flags, before a model is loaded for nothing.
Status CheckSampling(const SamplingFlags& flags);

// A request without prompt: the flags, then generation_config.json. Without --seed each call draws
// another one (it is in request.sampling.seed). Without any max_tokens: `default_max_tokens`.
engine::Request RequestOf(const SamplingFlags& flags, const checkpoint::GenerationConfig& config,
                          std::optional<int> default_max_tokens);

// A note that names the fields of the model's generation_config.json that convene does not know;
// none where there are none. For commands whose answers they would change.
void NoteUnknownFields(const checkpoint::GenerationConfig& config);

}  // namespace convene::cli
