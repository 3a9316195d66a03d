#include "runtime/router_override.h"

#include <algorithm>
#include <numeric>
#include <vector>

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

// Systematic sampling: experts lie side by side on a line, each as long as its share, in an order
// of the token's own; those on which the points u, u + 1, u + 2 ... fall are chosen. As no share is
// longer than one, each is met once at most, and with exactly its probability.
void ChooseByShares(std::span<const double> shares, uint64_t key, std::span<int32_t> experts) {
  CHECK(shares.size() >= experts.size(), "{} of {} experts", experts.size(), shares.size());
  uint64_t state = key;
  double point = static_cast<double>(NextRandom(state) >> 11) * 0x1p-53;
  std::vector<int32_t> order(shares.size());
  std::iota(order.begin(), order.end(), 0);
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[NextRandom(state) % i]);
  size_t num_chosen = 0;
  double end = 0;
  size_t num_left = 0;  // not chosen, at the front of `order`
  for (const int32_t expert : order) {
    end += shares[static_cast<size_t>(expert)];
    if (num_chosen < experts.size() && end > point) {
      experts[num_chosen++] = expert;
      point += 1;
    } else {
      order[num_left++] = expert;
    }
  }
  // Sums of shares that fall short of the number by rounding, or since fewer have any.
  while (num_chosen < experts.size()) experts[num_chosen++] = order[--num_left];
  std::sort(experts.begin(), experts.end());
}

}  // namespace convene::runtime
