// One row of `convene bench`: repeated measurements of the same work, between two measurements of
// the machine's peaks. How a row looks in the table and in JSON is here too.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/bench_workload.h"
#include "cli/peak_meter.h"
#include "cli/spread.h"

namespace convene::cli {

struct BenchPoint {
  std::string name;  // "pp512", "tg64"
  int batch = 1;
  std::vector<double> tokens_per_s = {};  // of each repetition
  double flops_per_s = 0;                 // medians
  double bytes_per_s = 0;
  Peaks peaks = {};  // mean of before and after

  double share_of_peak() const { return flops_per_s / peaks.flops_per_s; }
  double share_of_bandwidth() const { return bytes_per_s / peaks.bytes_per_s; }
};

// `repetitions` of one or more steps each. Rates of tokens are per repetition, the others medians
// over all steps.
BenchPoint MakePoint(std::string name, int batch, const std::vector<std::vector<Work>>& repetitions,
                     const Peaks& before, const Peaks& after);

std::string TableHeader();
std::string TableRow(const BenchPoint& point);
nlohmann::ordered_json ToJson(const BenchPoint& point);

}  // namespace convene::cli
