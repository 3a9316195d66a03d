#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.h"

// Every step below is rounded to float where transformers' modeling_rope_utils.py rounds it: at
// position 1,000 a last bit of a frequency is already 1e-4 of an angle.

namespace convene::model {
namespace {

// base^(2j / dim) for j < dim / 2.
std::vector<float> Wavelengths(float base, int dim) {
  std::vector<float> wavelengths(dim / 2);
  for (int j = 0; j < dim / 2; ++j) {
    const float exponent = static_cast<float>(2 * j) / static_cast<float>(dim);
    wavelengths[j] = static_cast<float>(std::pow(double{base}, double{exponent}));
  }
  return wavelengths;
}

std::vector<float> Unscaled(float base, int dim) {
  std::vector<float> frequencies = Wavelengths(base, dim);
  for (float& value : frequencies) value = 1.0f / value;
  return frequencies;
}

// "NTK-aware" interpolation by a larger base, grown with the sequence.
float DynamicBase(const RopeSpec& spec, int length) {
  const auto base = static_cast<float>(spec.theta);
  if (length <= spec.original_max_positions) return base;
  const float stretch = static_cast<float>(spec.factor) * static_cast<float>(length) /
                            static_cast<float>(spec.original_max_positions) -
                        static_cast<float>(spec.factor - 1.0);
  // torch raises a float tensor to a Python number in double.
  const double exponent = static_cast<double>(spec.rotary_dim) / (spec.rotary_dim - 2);
  return base * static_cast<float>(std::pow(double{stretch}, exponent));
}

// YaRN (Peng et al., 2023, section 3.2): fast dimensions keep their frequency, slow ones are
// interpolated, with a linear ramp between.
std::vector<float> Yarn(const RopeSpec& spec) {
  const int dim = spec.rotary_dim;
  // The dimension that turns `rotations` times within the original context.
  const auto dimension_of = [&](double rotations) {
    return dim * std::log(spec.original_max_positions / (rotations * 2 * std::numbers::pi)) /
           (2 * std::log(spec.theta));
  };
  double low = dimension_of(spec.beta_fast);
  double high = dimension_of(spec.beta_slow);
  if (spec.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1.0);
  if (low == high) high += 0.001;

  std::vector<float> frequencies = Wavelengths(static_cast<float>(spec.theta), dim);
  for (int j = 0; j < dim / 2; ++j) {
    const float extrapolated = 1.0f / frequencies[j];
    const float interpolated = 1.0f / (static_cast<float>(spec.factor) * frequencies[j]);
    const float ramp = std::clamp(
        (static_cast<float>(j) - static_cast<float>(low)) / static_cast<float>(high - low), 0.0f,
        1.0f);
    const float keep = 1.0f - ramp;
    frequencies[j] = interpolated * (1.0f - keep) + extrapolated * keep;
  }
  return frequencies;
}

// Llama 3.1: as YaRN with the ramp over frequency instead of dimension.
std::vector<float> Llama3(const RopeSpec& spec) {
  const auto factor = static_cast<float>(spec.factor);
  const auto low = static_cast<float>(spec.low_frequency_factor);
  const auto span = static_cast<float>(spec.high_frequency_factor - spec.low_frequency_factor);
  const auto context = static_cast<float>(spec.original_max_positions);
  const auto longest = static_cast<float>(spec.original_max_positions / spec.low_frequency_factor);
  const auto shortest =
      static_cast<float>(spec.original_max_positions / spec.high_frequency_factor);

  std::vector<float> frequencies = Unscaled(static_cast<float>(spec.theta), spec.rotary_dim);
  for (float& frequency : frequencies) {
    const float wavelength = static_cast<float>(2 * std::numbers::pi) / frequency;
    if (wavelength > longest) {
      frequency /= factor;
    } else if (!(wavelength < shortest)) {
      const float smooth = (context / wavelength - low) / span;
      frequency = (1.0f - smooth) * frequency / factor + smooth * frequency;
    }
  }
  return frequencies;
}

}  // namespace

std::vector<float> InverseFrequencies(const RopeSpec& spec, int length) {
  if (spec.rotary_dim == 0) return {};
  CHECK(spec.rotary_dim > 0 && spec.rotary_dim % 2 == 0, "rotary_dim {}", spec.rotary_dim);
  const auto base = static_cast<float>(spec.theta);
  switch (spec.scaling) {
    case RopeScaling::kNone:
      return Unscaled(base, spec.rotary_dim);
    case RopeScaling::kLinear: {
      std::vector<float> frequencies = Unscaled(base, spec.rotary_dim);
      for (float& value : frequencies) value /= static_cast<float>(spec.factor);
      return frequencies;
    }
    case RopeScaling::kDynamic:
      return Unscaled(DynamicBase(spec, length), spec.rotary_dim);
    case RopeScaling::kYarn:
      return Yarn(spec);
    case RopeScaling::kLlama3:
      return Llama3(spec);
  }
  CHECK(false, "unknown RoPE scaling");
  return {};
}

}  // namespace convene::model
