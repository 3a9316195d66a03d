// The short form of a plan's roles, in which all ranks are alike up to the sizes of their shares of
// the experts: degrees of attention and experts. Which rank then has what is role.h's.
#pragma once

#include <vector>

namespace convene::strategy {

// attention_tp * attention_dp == expert_ep * expert_tp == ranks: heads are divided by tp, sequences
// by dp, experts into ep shares, each expert into tp slices.
struct Layout {
  int attention_tp = 1;
  int attention_dp = 1;
  int expert_ep = 1;
  int expert_tp = 1;
  std::vector<int> expert_weights = {};  // of the expert_ep shares; none: shares are alike

  int num_ranks() const { return attention_tp * attention_dp; }

  bool operator==(const Layout&) const = default;
};

// Part `index` of `parts` of `count` things: [first, first + size). Sizes differ by at most one,
// and powers of two that divide each other give aligned parts.
struct Part {
  int first = 0;
  int size = 0;

  bool operator==(const Part&) const = default;
};
constexpr Part PartOf(int count, int index, int parts) {
  const auto begin = [&](int i) {
    return static_cast<int>(static_cast<long long>(count) * i / parts);
  };
  return {begin(index), begin(index + 1) - begin(index)};
}

}  // namespace convene::strategy
