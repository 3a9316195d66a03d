#include "cost/rates.h"

#include <algorithm>

namespace convene::cost {

RateCurve LinearRate(double all, int streams) {
  RateCurve curve;
  for (int n = 1; n <= streams; ++n) curve.rates.push_back(all * n / streams);
  return curve;
}

Rates RatesFromProfile(const hardware::Profile& profile, int num_ranks) {
  const int num_cpus = std::max(1, static_cast<int>(profile.cpus.size()));
  Rates rates;
  RankRates& each = rates.ranks.front();
  each.cores = std::max(1, num_cpus / num_ranks);
  const double gflops = profile.bf16_gflops > 0 ? profile.bf16_gflops : profile.f32_gflops;
  if (gflops > 0) each.flops = LinearRate(gflops * 1e9 / num_ranks, each.cores);
  if (profile.read_gbps > 0) rates.shared_memory = LinearRate(profile.read_gbps * 1e9, num_cpus);
  rates.shared_disk_bytes_per_second = profile.disk_gbps * 1e9;
  return rates;
}

}  // namespace convene::cost
