#include "model/rope.h"

#include <gtest/gtest.h>

#include <cmath>

namespace convene::model {
namespace {

// The expected values are those of transformers 5.23 with torch 2.13 (modeling_rope_utils.py).
// Their powf may differ in the last bit, hence up to three units in the last place after scaling.
void ExpectFrequencies(const RopeSpec& spec, int length, const std::vector<float>& expected) {
  const std::vector<float> frequencies = InverseFrequencies(spec, length);
  ASSERT_EQ(frequencies.size(), expected.size());
  for (size_t j = 0; j < expected.size(); ++j) {
    const float unit = std::nextafter(expected[j], 2.0f) - expected[j];
    EXPECT_NEAR(frequencies[j], expected[j], 3 * unit) << "frequency " << j;
  }
}

TEST(Rope, UnscaledFrequenciesFallGeometrically) {
  ExpectFrequencies(
      {.theta = 1e6, .rotary_dim = 20}, 1,
      {1.0f, 0.251188636f, 0.0630957335f, 0.0158489291f, 0.00398107152f, 0.00100000005f,
       0.000251188554f, 6.30957438e-05f, 1.58489293e-05f, 3.98107295e-06f});
}

TEST(Rope, LinearScalingDividesTheFrequencies) {
  ExpectFrequencies({.theta = 1e4, .rotary_dim = 16, .scaling = RopeScaling::kLinear, .factor = 3},
                    1,
                    {0.333333343f, 0.105409257f, 0.0333333351f, 0.0105409259f, 0.00333333318f,
                     0.00105409266f, 0.000333333359f, 0.000105409265f});
}

TEST(Rope, DynamicScalingStartsBeyondTheOriginalContext) {
  const RopeSpec spec = {.theta = 1e4,
                         .rotary_dim = 16,
                         .scaling = RopeScaling::kDynamic,
                         .factor = 2.5,
                         .original_max_positions = 64};
  EXPECT_TRUE(spec.DependsOnLength());
  const std::vector<float> unscaled = {1.0f,           0.316227764f,   0.100000001f,
                                       0.0316227786f,  0.00999999978f, 0.00316227786f,
                                       0.00100000005f, 0.000316227786f};
  ExpectFrequencies(spec, 1, unscaled);
  ExpectFrequencies(spec, 64, unscaled);
  ExpectFrequencies(spec, 65,
                    {1.0f, 0.314501435f, 0.0989111438f, 0.0311076958f, 0.00978341512f,
                     0.00307689793f, 0.000967688742f, 0.000304339512f});
  ExpectFrequencies(spec, 300,
                    {1.0f, 0.226882145f, 0.0514755063f, 0.0116788736f, 0.00264972774f,
                     0.00060117594f, 0.000136396076f, 3.09458374e-05f});
}

TEST(Rope, YarnKeepsFastAndInterpolatesSlowDimensions) {
  ExpectFrequencies(
      {.theta = 1e4,
       .rotary_dim = 24,
       .scaling = RopeScaling::kYarn,
       .factor = 4,
       .original_max_positions = 64},
      1,
      {1.0f, 0.377129108f, 0.134652153f, 0.043750003f, 0.011603971f, 0.00538608711f, 0.00249999994f,
       0.00116039743f, 0.000538608583f, 0.000250000012f, 0.000116039737f, 5.38608547e-05f});
  ExpectFrequencies({.theta = 1e6,
                     .rotary_dim = 24,
                     .scaling = RopeScaling::kYarn,
                     .factor = 4,
                     .original_max_positions = 32768},
                    1,
                    {1.0f, 0.316227764f, 0.099999994f, 0.0316227786f, 0.00999999885f,
                     0.00256935111f, 0.000625000044f, 0.000138349686f, 2.49999921e-05f,
                     7.90569356e-06f, 2.50000085e-06f, 7.90569231e-07f});
}

TEST(Rope, YarnWithoutTruncationRampsBetweenFractionsOfDimensions) {
  ExpectFrequencies(
      {.theta = 1e4,
       .rotary_dim = 24,
       .scaling = RopeScaling::kYarn,
       .factor = 40,
       .original_max_positions = 4096,
       .beta_fast = 16,
       .beta_slow = 2,
       .truncate = false},
      1,
      {1.0f, 0.464158893f, 0.215443447f, 0.100000001f, 0.046415884f, 0.0202276874f, 0.00579010416f,
       0.00101713429f, 5.38608547e-05f, 2.49999994e-05f, 1.16039737e-05f, 5.38608538e-06f});
}

TEST(Rope, Llama3ScalesByWavelength) {
  RopeSpec spec = {.theta = 5e5,
                   .rotary_dim = 24,
                   .scaling = RopeScaling::kLlama3,
                   .factor = 8,
                   .original_max_positions = 8192,
                   .low_frequency_factor = 1,
                   .high_frequency_factor = 4};
  ExpectFrequencies(spec, 1,
                    {1.0f, 0.335031629f, 0.112246193f, 0.0376060307f, 0.0125992084f, 0.00422113482f,
                     0.000524846022f, 5.92258002e-05f, 1.98425078e-05f, 6.64786967e-06f,
                     2.22724748e-06f, 7.46197941e-07f});
  spec.original_max_positions = 128;
  ExpectFrequencies(spec, 1,
                    {1.0f, 0.335031629f, 0.0561540797f, 0.00470075384f, 0.00157490105f,
                     0.000527641852f, 0.000176776681f, 5.92258002e-05f, 1.98425078e-05f,
                     6.64786967e-06f, 2.22724748e-06f, 7.46197941e-07f});
}

}  // namespace
}  // namespace convene::model
