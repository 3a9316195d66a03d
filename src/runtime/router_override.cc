#include "runtime/router_override.h"

#include <algorithm>

#include "base/check.h"

namespace convene::runtime {
namespace {

// splitmix64: one step of its state, so that each token's choice depends on its key alone.
uint64_t NextRandom(uint64_t& state) {
  state += 0x9e3779b97f4a7c15;
  uint64_t mixed = state;
  mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9;
  mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111eb;
  return mixed ^ (mixed >> 31);
}

}  // namespace

uint64_t TokenKey(int layer, int position, int32_t token) {
  return (static_cast<uint64_t>(layer) << 56) ^ (static_cast<uint64_t>(position) << 32) ^
         static_cast<uint32_t>(token);
}

void OverrideExperts(const RouterOverride& router, int num_experts, uint64_t key,
                     std::span<int32_t> experts) {
  const auto top_k = static_cast<int>(experts.size());
  CHECK(router.num_experts >= top_k && router.num_experts <= num_experts, "{} of {} experts",
        router.num_experts, num_experts);
  uint64_t state = key;
  const double uniform = static_cast<double>(NextRandom(state) >> 11) * 0x1p-53;
  const bool is_skewed = uniform < router.skew || num_experts - router.num_experts < top_k;
  const int first = is_skewed ? 0 : router.num_experts;
  const int count = is_skewed ? router.num_experts : num_experts - router.num_experts;
  for (int i = 0; i < top_k; ++i) {
    int32_t expert = 0;
    do {
      expert = first + static_cast<int32_t>(NextRandom(state) % static_cast<uint64_t>(count));
    } while (std::find(experts.begin(), experts.begin() + i, expert) != experts.begin() + i);
    experts[i] = expert;
  }
  std::sort(experts.begin(), experts.end());
}

}  // namespace convene::runtime
