#include "cli/sampling_options.h"

#include <fmt/format.h>

#include <random>

#include "engine/engine.h"

namespace convene::cli {

void AddSamplingOptions(CLI::App& app, SamplingFlags& flags, std::string_view default_max_tokens) {
  engine::GivenSampling& given = flags.given;
  app.add_option(
         "-n,--max-tokens", flags.max_tokens,
         fmt::format("Most tokens to generate (default: the model's, else {})", default_max_tokens))
      ->type_name("N");
  app.add_option("--temperature", given.temperature,
                 "0: greedy, the likeliest token (default: the model's; if that is 0, and one of "
                 "the next three is given, 1)")
      ->type_name("T");
  app.add_option("--top-k", given.top_k, "Only the K likeliest tokens (0: all)")->type_name("K");
  app.add_option("--top-p", given.top_p, "Only the likeliest that together reach probability P")
      ->type_name("P");
  app.add_option("--min-p", given.min_p, "Only tokens at least P times as likely as the likeliest")
      ->type_name("P");
  app.add_option("--repetition-penalty", given.repetition_penalty, "Above 1: avoid repetition")
      ->type_name("R");
  app.add_option("--seed", flags.seed,
                 "The same seed gives the same text (default: another each time)")
      ->type_name("N");
  app.add_option("--stop", flags.stop, "End before this text; may be repeated")
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

}  // namespace convene::cli
