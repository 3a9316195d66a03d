#include "model/rope_config.h"

#include <algorithm>
#include <cmath>

#include "base/quote.h"
#include "model/config_limits.h"

namespace convene::model {
namespace {

constexpr NumberRange kFactor = {1e-3, 1e6};
constexpr NumberRange kMscale = {0, 1e6};

std::optional<RopeScaling> ScalingFromName(std::string_view name) {
  if (name == "default") return RopeScaling::kNone;
  if (name == "linear") return RopeScaling::kLinear;
  if (name == "dynamic") return RopeScaling::kDynamic;
  if (name == "yarn") return RopeScaling::kYarn;
  if (name == "llama3") return RopeScaling::kLlama3;
  return std::nullopt;
}

// transformers' get_mscale.
double YarnMagnitude(double factor, double mscale) {
  return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

void ReadYarn(ConfigFields& parameters, int max_positions, RopeSpec& rope) {
  // Null stands for the ratio of the two contexts.
  if (!parameters.Contains("factor")) {
    parameters.Fail("the yarn RoPE scaling needs the field factor");
  }
  rope.factor = parameters.Number(
      "factor", static_cast<double>(max_positions) / rope.original_max_positions, kFactor);
  // Zero stands for the default too.
  const auto number_or = [&](std::string_view name, double fallback) {
    const double value = parameters.Number(name, fallback, kMscale);
    return value == 0 ? fallback : value;
  };
  rope.beta_fast = number_or("beta_fast", 32);
  rope.beta_slow = number_or("beta_slow", 1);
  if (rope.beta_fast < rope.beta_slow) {
    parameters.Fail(
        fmt::format("beta_fast {} of the yarn RoPE scaling must not be less than beta_slow {}",
                    rope.beta_fast, rope.beta_slow));
  }
  rope.truncate = parameters.Boolean("truncate", true);
  const double mscale = number_or("mscale", 0);
  const double mscale_all_dim = number_or("mscale_all_dim", 0);
  const double inferred =
      mscale != 0 && mscale_all_dim != 0
          ? YarnMagnitude(rope.factor, mscale) / YarnMagnitude(rope.factor, mscale_all_dim)
          : YarnMagnitude(rope.factor, 1);
  rope.attention_factor = parameters.Number("attention_factor", inferred, kMultiplier);
}

void ReadLlama3(ConfigFields& parameters, RopeSpec& rope) {
  for (const char* name : {"factor", "low_freq_factor", "high_freq_factor"}) {
    if (!parameters.Has(name)) {
      parameters.Fail(fmt::format("the llama3 RoPE scaling needs the field {}", name));
    }
  }
  rope.factor = parameters.Number("factor", 1, kFactor);
  rope.low_frequency_factor = parameters.Number("low_freq_factor", 1, kFactor);
  rope.high_frequency_factor = parameters.Number("high_freq_factor", 4, kFactor);
  if (rope.high_frequency_factor <= rope.low_frequency_factor) {
    parameters.Fail(fmt::format(
        "high_freq_factor {} of the llama3 RoPE scaling must be greater than low_freq_factor {}",
        rope.high_frequency_factor, rope.low_frequency_factor));
  }
}

void ReadFactor(ConfigFields& parameters, std::string_view kind, NumberRange range,
                RopeSpec& rope) {
  if (!parameters.Has("factor")) {
    parameters.Fail(fmt::format("the {} RoPE scaling needs the field factor", kind));
  }
  rope.factor = parameters.Number("factor", 1, range);
}

// Everything of a kind of scaling but what it does to scores.
void ReadScaling(ConfigFields& config, ConfigFields& parameters, std::string_view kind,
                 int max_positions, RopeSpec& rope) {
  const double rotated_share = parameters.Number(
      "partial_rotary_factor", config.Number("partial_rotary_factor", 1, {0, 1}), {0, 1});
  if (rotated_share != 1) {
    config.Fail(
        fmt::format("partial_rotary_factor {} is not supported; it must be 1", rotated_share));
  }
  if (rope.scaling == RopeScaling::kLinear) return ReadFactor(parameters, kind, kFactor, rope);
  if (rope.scaling == RopeScaling::kDynamic) {
    ReadFactor(parameters, kind, {1, kFactor.max}, rope);
    if (rope.rotary_dim <= 2) config.Fail("the dynamic RoPE scaling needs a head_dim above 2");
    return;
  }
  constexpr std::string_view kOriginal = "original_max_position_embeddings";
  rope.original_max_positions = config.Integer(
      kOriginal, parameters.Integer(kOriginal, max_positions, kPositions), kPositions);
  if (rope.scaling == RopeScaling::kYarn) {
    ReadYarn(parameters, max_positions, rope);
  } else {
    ReadLlama3(parameters, rope);
  }
}

}  // namespace

RopeSpec ReadRope(ConfigFields& config, const RopeDefaults& defaults) {
  // rope_scaling, where it says anything, replaces rope_parameters altogether.
  ConfigFields scaling = config.Object("rope_scaling");
  ConfigFields parameters = scaling.empty() ? config.Object("rope_parameters") : scaling;

  // Which of the two it is: only a missing rope_type gives way to the older name, not one of null.
  const char* kind_field = parameters.Contains("rope_type") ? "rope_type" : "type";
  if (parameters.IsNull(kind_field)) {
    config.Fail(fmt::format(
        "the {} of the RoPE parameters is null; it can be default, linear, dynamic, yarn or llama3",
        kind_field));
  }
  const std::string kind = parameters.Text(kind_field, "default");
  const std::optional<RopeScaling> known = ScalingFromName(kind);
  if (!known) {
    config.Fail(fmt::format(
        "the RoPE scaling {} is not supported; it can be default, linear, dynamic, yarn or llama3",
        Quote(kind)));
  }
  if (parameters.Has("full_attention") || parameters.Has("sliding_attention")) {
    config.Fail("RoPE parameters that differ between layer types are not supported");
  }

  RopeSpec rope;
  rope.scaling = known.value_or(RopeScaling::kNone);
  rope.rotary_dim = defaults.head_dim;
  const double theta = config.Number("rope_theta", defaults.theta, kRopeTheta);
  rope.theta = parameters.Number("rope_theta", theta, kRopeTheta);
  rope.original_max_positions = defaults.max_positions;
  if (rope.scaling == RopeScaling::kNone) return rope;

  ReadScaling(config, parameters, kind, defaults.max_positions, rope);
  // As transformers' yarn_apply_mscale, for every kind, whatever its name says.
  const double mscale_all_dim = parameters.Number("mscale_all_dim", 0, kMscale);
  if (mscale_all_dim != 0) {
    rope.score_factor = std::pow(YarnMagnitude(rope.factor, mscale_all_dim), 2);
  }
  return rope;
}

int DeclaredContext(const RopeSpec& rope, int max_positions) {
  double context = max_positions;
  if (rope.scaling == RopeScaling::kLinear || rope.scaling == RopeScaling::kDynamic) {
    context = std::max(context, rope.factor * max_positions);
  } else if (rope.scaling == RopeScaling::kYarn) {
    context = std::max(context, rope.factor * rope.original_max_positions);
  }
  return static_cast<int>(std::min(std::round(context), static_cast<double>(kPositions.max)));
}

}  // namespace convene::model
