// Any bytes as a machine's profile: an error, or rates in range that are written and read as the
// same again and from which any number of ranks can be priced.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "base/json.h"
#include "cost/rates.h"
#include "hardware/profile.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  namespace hardware = convene::hardware;
  const auto json = convene::ParseJson({reinterpret_cast<const char*>(data), size});
  if (!json) return 0;
  const auto profile = hardware::ProfileFromJson(*json);
  if (!profile) return 0;
  for (const double rate : {profile->f32_gflops, profile->bf16_gflops, profile->int8_gops,
                            profile->read_gbps, profile->disk_gbps, profile->huge_page_share}) {
    CHECK(std::isfinite(rate) && rate >= 0, "{}", rate);
  }
  for (const int count : {profile->num_numa_nodes, profile->num_interleaved_nodes,
                          profile->dense_from_rows, profile->expand_from_tokens}) {
    CHECK(count >= 0, "{}", count);
  }
  for (const int cpu : profile->cpus) CHECK(cpu >= 0, "{}", cpu);
  const auto again = hardware::ProfileFromJson(hardware::ToJson(*profile));
  CHECK(again.ok(), "{}", again.error().message);
  CHECK(hardware::ToJson(*again) == hardware::ToJson(*profile));

  for (const int num_ranks : {1, 3, 4096}) {
    const convene::cost::Rates rates = convene::cost::RatesFromProfile(*profile, num_ranks);
    CHECK(rates.of(0).cores >= 1);
    for (const auto* curve : {&rates.of(0).flops, &rates.shared_memory}) {
      if (!curve->empty()) CHECK(curve->at(1) >= 0 && curve->at(1 << 20) == curve->rates.back());
    }
  }
  return 0;
}
