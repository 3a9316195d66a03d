// What measurements that choose between ways of computing have in common: the clock, and when one
// way counts as faster than another. What they time is measure_order.h and measure_streaming.h.
#pragma once

#include <algorithm>
#include <chrono>
#include <vector>

#include "base/median.h"

namespace convene::kernels {

// Seconds since some moment; tests give a clock of their own.
using SecondsNow = double (*)();

inline double SteadySeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// `ratios`: of a way's times to another's, round by round. It is faster where it took less than
// `most` of the other's time in the median, and was faster in three of four rounds: memory that
// others use, too, makes the median of a few rounds less than 1 by itself.
inline bool IsFaster(const std::vector<double>& ratios, double most) {
  const auto wins = std::count_if(ratios.begin(), ratios.end(), [](double r) { return r < 1; });
  return !ratios.empty() && 4 * wins >= 3 * std::ssize(ratios) && Median(ratios) < most;
}

}  // namespace convene::kernels
