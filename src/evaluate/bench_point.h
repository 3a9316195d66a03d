// One row of `convene bench`: repetitions of the same work, each between two measurements of the
// machine's peaks. How a row looks as JSON is here too.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "evaluate/bench_workload.h"
#include "evaluate/peak_meter.h"
#include "evaluate/spread.h"

namespace convene::evaluate {

struct Repetition {
  double tokens_per_s = 0;
  double flops_per_s = 0;
  double bytes_per_s = 0;
  double expert_flops_per_s = 0;    // of the routed experts' products, while they ran
  double expert_share_of_time = 0;  // that they took
  double load_lane_busy = 0;        // share of time that experts were read from a disk
  Peaks peaks = {};                 // mean of just before and just after; 0: not measured
};

// `steps` is what one repetition did, one step or more.
Repetition MakeRepetition(const std::vector<Work>& steps, const Peaks& before, const Peaks& after);

struct BenchPoint {
  std::string name;  // "pp512", "tg64"
  int batch = 1;
  std::vector<Repetition> repetitions = {};

  // Over all repetitions.
  Spread SpreadOf(double Repetition::*figure) const;
  Peaks peaks() const;           // medians
  double share_of_peak() const;  // median of each repetition's own share; 0: of no measured peak
  double share_of_bandwidth() const;
  double expert_share_of_peak() const;
};

// Peaks, and shares of them, are null where they were not measured.
nlohmann::ordered_json ToJson(const BenchPoint& point);

// Why shares of the points are above 100 %, a sentence for each reason; none where no share is.
std::vector<std::string> RemarksOnShares(const std::vector<BenchPoint>& points,
                                         uint64_t weights_bytes, uint64_t last_level_cache_bytes);

}  // namespace convene::evaluate
