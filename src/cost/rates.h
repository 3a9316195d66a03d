// How fast the machines are on which a schedule is priced: rates of cores, memory, links and disk
// by how many use them, and fixed seconds per task. Measured costs are step_costs.h.
#pragma once

#include <array>
#include <vector>

#include "hardware/profile.h"
#include "schedule/schedule.h"

namespace convene::cost {

// What all users of a resource get together, by their number of streams (cores that compute,
// cores that read, transfers).
struct RateCurve {
  std::vector<double> rates = {};  // [n - 1]: of n streams; of more than there are: the last

  bool empty() const { return rates.empty(); }  // nobody waits for such a resource
  double at(int streams) const {
    const size_t num_streams = streams < 1 ? 1 : static_cast<size_t>(streams);
    return rates[(num_streams < rates.size() ? num_streams : rates.size()) - 1];
  }
};

inline RateCurve ConstantRate(double rate) { return {{rate}}; }
// `all` with `streams` of them, and a part of it with fewer.
RateCurve LinearRate(double all, int streams);

enum class LinkKind {
  kSharedMedium,  // all transfers share one rate: a loopback that is limited
  kPerRank,       // each rank sends and receives at the rate, both at once
};

// What a rank has to itself. An empty curve or a rate of 0 costs no time.
struct RankRates {
  int cores = 1;
  int communication_cores = 0;        // of them, those that tasks that compute leave alone
  RateCurve flops = {};               // per second, by cores
  RateCurve host_flops = {};          // of kHost lanes; empty: they use the rank's cores
  RateCurve memory = {};              // bytes per second, by cores that read
  RateCurve host_memory = {};         // of kHost and kStage lanes; empty: they use `memory`
  double load_bytes_per_second = 0;   // of kLoad lanes, between tiers; disks are apart
  double store_bytes_per_second = 0;  // of kStore lanes
  double stage_bytes_per_second = 0;  // of kStage lanes
  double disk_bytes_per_second = 0;
};

struct Rates {
  std::vector<RankRates> ranks = {RankRates{}};  // by rank; only one: all ranks are like it
  // Where ranks share one, as on one node, it takes the place of theirs.
  RateCurve shared_memory = {};
  double shared_disk_bytes_per_second = 0;
  LinkKind link = LinkKind::kPerRank;
  double link_bytes_per_second = 0;
  double link_latency = 0;                // seconds, of each collective
  double link_core_seconds_per_byte = 0;  // of one core of the rank that sends
  std::array<double, schedule::kNumTaskKinds> fixed_seconds = {};

  const RankRates& of(int rank) const { return ranks[ranks.size() == 1 ? 0 : rank]; }
};

// Of a machine that `num_ranks` ranks share evenly. With no better knowledge a core computes and
// reads its part of what all cores do. Links have no rate.
Rates RatesFromProfile(const hardware::Profile& profile, int num_ranks);

}  // namespace convene::cost
