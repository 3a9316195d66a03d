#include "kernels/unit_shares.h"

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace convene::kernels {
namespace {

uint64_t RangeOf(const UnitShares::Units& units) {
  return static_cast<uint64_t>(units.end) << 32 | static_cast<uint64_t>(units.begin);
}

UnitShares::Units UnitsOf(uint64_t range) {
  return {static_cast<int64_t>(range & 0xffffffffU), static_cast<int64_t>(range >> 32)};
}

int64_t Count(const UnitShares::Units& units) { return units.end - units.begin; }

}  // namespace

UnitShares::UnitShares(int64_t num_units, int num_shares)
    : shares_(static_cast<size_t>(num_shares)) {
  CHECK(num_units >= 0 && num_units <= std::numeric_limits<int32_t>::max(), "{} units", num_units);
  for (int64_t i = 0; i < num_shares; ++i) {
    shares_[static_cast<size_t>(i)].range.store(
        RangeOf({num_units * i / num_shares, num_units * (i + 1) / num_shares}),
        std::memory_order_relaxed);
  }
}

UnitShares::Units UnitShares::Take(int share_idx, int64_t most) {
  std::atomic<uint64_t>& own = shares_[static_cast<size_t>(share_idx)].range;
  for (;;) {
    uint64_t range = own.load(std::memory_order_relaxed);
    for (;;) {
      const Units left = UnitsOf(range);
      if (Count(left) == 0) break;
      const int64_t count = std::min(most, std::max<int64_t>(Count(left) / 4, 1));
      const Units taken{left.begin, left.begin + count};
      if (own.compare_exchange_weak(range, RangeOf({taken.end, left.end}),
                                    std::memory_order_relaxed)) {
        return taken;
      }
    }
    const Units taken = TakeFromOthers();
    if (Count(taken) == 0) return {};
    own.store(RangeOf(taken), std::memory_order_relaxed);
  }
}

UnitShares::Units UnitShares::TakeFromOthers() {
  for (;;) {
    size_t fullest = 0;
    uint64_t range = 0;
    for (size_t i = 0; i < shares_.size(); ++i) {
      const uint64_t other = shares_[i].range.load(std::memory_order_relaxed);
      if (Count(UnitsOf(other)) <= Count(UnitsOf(range))) continue;
      fullest = i;
      range = other;
    }
    const Units left = UnitsOf(range);
    if (Count(left) == 0) return {};
    const int64_t middle = left.begin + Count(left) / 2;
    if (shares_[fullest].range.compare_exchange_strong(range, RangeOf({left.begin, middle}),
                                                       std::memory_order_relaxed)) {
      return {middle, left.end};
    }
  }
}

}  // namespace convene::kernels
