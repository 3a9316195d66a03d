// Ways to round weights to 8 or 4 bits, the engine's own and those it does not have, for measuring
// what each choice costs. Weights stay floats: nothing here is packed or fast.
#pragma once

#include <optional>
#include <span>
#include <string_view>

namespace convene::evaluate {

struct RoundingScheme {
  enum class Unit { kTensor, kChannel, kGroup };  // which weights share a scale
  enum class Scale {
    kFloat,      // any step, the best of many for 4 bits
    kReaching,   // the step that just reaches the largest value, without search
    kWhole,      // the engine's: whole numbers for groups, a float for each row
    kZeroPoint,  // any step, and a whole number that stands for zero
    kOutliers,   // whole numbers, and outliers as they are: a backup's (weights/backup_matrix.h)
  };

  const char* name;
  int bits = 4;  // 4 or 8
  Unit unit = Unit::kGroup;
  int group = 0;  // of Unit::kGroup: columns
  Scale scale = Scale::kFloat;

  // What a weight of a large matrix takes: scales of groups that are any number counted as 16 bits,
  // whole ones as 8, zero points as `bits`, and of outliers the room that there is for them.
  double bits_per_weight() const;
};

// From the coarsest to the finest; the names are BITS-UNIT[-SCALE].
std::span<const RoundingScheme> RoundingSchemes();
std::optional<RoundingScheme> RoundingSchemeFromName(std::string_view name);

// Replaces the matrix `values` (values.size() / cols rows of `cols`) by what the scheme makes of
// it.
void Round(const RoundingScheme& scheme, int cols, std::span<float> values);

}  // namespace convene::evaluate
