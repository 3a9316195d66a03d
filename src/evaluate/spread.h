// Median and range of repeated measurements. No statistics beyond that.
#pragma once

#include <vector>

namespace convene::evaluate {

struct Spread {
  double median = 0;
  double min = 0;
  double max = 0;
};

// Zeros of no values.
Spread SpreadOf(std::vector<double> values);

}  // namespace convene::evaluate
