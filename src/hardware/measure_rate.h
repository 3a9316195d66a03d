// Repeats a piece of work for a given time and tells its rate. What the work is, the caller knows.
#pragma once

#include <algorithm>
#include <chrono>
#include <vector>

namespace convene::hardware {

struct Rate {
  double best = 0;    // of the fastest pass, units per second
  double median = 0;  // of all passes
  double mean = 0;    // all units by all time
  int num_passes = 0;
};

// Calls pass() until `budget_s` seconds are over, at least three times. pass() returns the units
// (bytes, operations) it did; it should take a small part of the budget. A pass of 0 units ends the
// measurement (nothing could be done), with the rates so far.
template <typename Pass>
Rate MeasureRate(double budget_s, Pass&& pass) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> rates;
  double all_units = 0;
  const Clock::time_point start = Clock::now();
  double elapsed_s = 0;
  do {
    const Clock::time_point begin = Clock::now();
    const double units = pass();
    const Clock::time_point end = Clock::now();
    if (units <= 0) break;
    const double pass_s = std::chrono::duration<double>(end - begin).count();
    all_units += units;
    rates.push_back(units / std::max(pass_s, 1e-9));
    elapsed_s = std::chrono::duration<double>(end - start).count();
  } while (elapsed_s < budget_s || rates.size() < 3);
  if (rates.empty()) return {};
  std::sort(rates.begin(), rates.end());
  return {.best = rates.back(),
          .median = rates[rates.size() / 2],
          .mean = all_units / std::max(elapsed_s, 1e-9),
          .num_passes = static_cast<int>(rates.size())};
}

}  // namespace convene::hardware
