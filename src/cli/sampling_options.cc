#include "cli/sampling_options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <random>

#include "base/message.h"
#include "cli/parsed_by.h"
#include "cli/value_options.h"
#include "engine/engine.h"

namespace convene::cli {

void AddSamplingOptions(CLI::App& app, SamplingFlags& flags, std::string_view default_max_tokens) {
  engine::GivenSampling& given = flags.given;
  const auto number = [&](const char* name, std::optional<double>& value,
                          engine::SamplingRange range, const char* description) {
    return AddNumber(app, name, value, {range.min, range.max}, description);
  };
  AddNumber(
      app, "-n,--max-tokens", flags.max_tokens, kPositive,
      fmt::format("Most tokens to generate (default: the model's, else {})", default_max_tokens));
  number("--temperature", given.temperature, engine::kTemperatures,
         "0: greedy, the likeliest token (default: the model's; if that is 0, and one of "
         "the next three is given, 1)")
      ->type_name("T");
  AddNumber(app, "--top-k", given.top_k, {0, kPositive.max}, "Only the K likeliest tokens (0: all)")
      ->type_name("K");
  number("--top-p", given.top_p, engine::kProbabilities,
         "Only the likeliest that together reach probability P")
      ->type_name("P");
  number("--min-p", given.min_p, engine::kProbabilities,
         "Only tokens at least P times as likely as the likeliest")
      ->type_name("P");
  number("--repetition-penalty", given.repetition_penalty, engine::kRepetitionPenalties,
         "Above 1: avoid repetition")
      ->type_name("R");
  AddNumber(app, "--seed", flags.seed, kAnySeed,
            "The same seed gives the same text (default: another each time)");
  const auto check_stop = [](const std::string& text) {
    return engine::CheckRequestOptions({.stop = {text}});
  };
  app.add_option("--stop", flags.stop, "End before this text; may be repeated")
      ->check(ParsedBy(check_stop))
      ->type_name("TEXT")
      ->allow_extra_args(false);  // or it would take MODEL, too
  app.add_flag("--ignore-eos", flags.ignore_eos, "Go on after the end-of-text token");
}

Status CheckSampling(const SamplingFlags& flags) {
  return engine::CheckRequestOptions(RequestOf(flags, {}, std::nullopt));
}

engine::Request RequestOf(const SamplingFlags& flags, const checkpoint::GenerationConfig& config,
                          std::optional<int> default_max_tokens) {
  engine::Request request;
  engine::SamplingOptions& sampling = request.sampling;
  sampling = engine::MergeSampling(engine::DefaultSampling(config), flags.given);
  sampling.seed = flags.seed ? *flags.seed : std::random_device()();
  request.max_tokens = flags.max_tokens;
  if (!request.max_tokens && config.max_new_tokens) request.max_tokens = *config.max_new_tokens;
  if (!request.max_tokens) request.max_tokens = default_max_tokens;
  request.stop = flags.stop;
  request.ignore_eos = flags.ignore_eos;
  return request;
}

void NoteUnknownFields(const checkpoint::GenerationConfig& config) {
  if (config.unknown.empty()) return;
  PrintNote(
      "{} also asks for {}, which convene does not do: answers may differ from transformers'\n",
      config.is_from_model_config ? "config.json" : "generation_config.json",
      fmt::join(config.unknown, ", "));
}

}  // namespace convene::cli
