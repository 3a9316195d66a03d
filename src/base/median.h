// The middle of some numbers.
#pragma once

#include <algorithm>
#include <iterator>
#include <vector>

namespace convene {

// The upper one where two are in the middle; 0 of none.
inline double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace convene
