// How threads share numbered units of work: each begins with a part of its own, whose units follow
// each other, takes them from its front, and, when it has none left, the back half of what another
// has left. So a thread reads memory in one long run, which the CPU's prefetchers follow
// (docs/results/few_rows.md), and all end together even where units or threads are unequal.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

namespace convene::kernels {

class UnitShares {
 public:
  struct Units {
    int64_t begin = 0;
    int64_t end = 0;  // empty: nothing is left
  };

  // Units [0, num_units), fewer than 2^31 (CHECKed), in equal parts.
  UnitShares(int64_t num_units, int num_shares);

  // The next units of this share: at most `most`, and towards its end at most a quarter of what it
  // has left, so that others can help. Each thread has a share of its own, or all have the only
  // one.
  Units Take(int share_idx, int64_t most);

 private:
  // Begin in the lower half, end in the upper. A value never comes back: its first unit is taken
  // before the share can get others.
  struct alignas(64) Share {
    std::atomic<uint64_t> range{0};
  };

  Units TakeFromOthers();

  std::vector<Share> shares_;
};

}  // namespace convene::kernels
