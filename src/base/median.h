// The middle of some numbers.
#pragma once

#include <algorithm>
#include <iterator>
#include <vector>

namespace convene {

// The mean of both where two are in the middle; 0 of none.
inline double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*std::max_element(values.begin(), middle) + *middle) / 2;
}

}  // namespace convene
